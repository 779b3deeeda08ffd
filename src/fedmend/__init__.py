"""fedmend: train one graph neural network over graphs that several silos keep private.

    import fedmend as fm

    silos = fm.split(fm.load("cora"), silos=5, how="louvain")
    result = fm.train("fedsage", silos, rounds=50)
    print(result.accuracy, result.ledger.total("up"))

Names are imported when they are first used, so that `import fedmend` is instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedmend import privacy
    from fedmend.data.datasets import load
    from fedmend.data.folders import read_folder, read_silos, write_folder, write_partition
    from fedmend.data.masks import random_masks
    from fedmend.data.partition import Partition, split
    from fedmend.errors import FedmendError
    from fedmend.graph import Graph
    from fedmend.plugins.registry import register
    from fedmend.privacy.ledger import Ledger
    from fedmend.runs.train import Result, train

__all__ = [
    "FedmendError",
    "Graph",
    "Ledger",
    "Partition",
    "Result",
    "load",
    "privacy",
    "random_masks",
    "read_folder",
    "read_silos",
    "register",
    "split",
    "train",
    "write_folder",
    "write_partition",
]

_HOMES = {
    "FedmendError": "errors",
    "Graph": "graph",
    "Ledger": "privacy.ledger",
    "Partition": "data.partition",
    "Result": "runs.train",
    "load": "data.datasets",
    "random_masks": "data.masks",
    "read_folder": "data.folders",
    "read_silos": "data.folders",
    "register": "plugins.registry",
    "split": "data.partition",
    "train": "runs.train",
    "write_folder": "data.folders",
    "write_partition": "data.folders",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "privacy":  # a package: `fedmend.privacy.nfdp`
        return importlib.import_module("fedmend.privacy")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmend' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedmend.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
