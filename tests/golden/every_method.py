"""What every method gave on fixed seeds, for tests/golden/test_every_method.py.

`python -m tests.golden.every_method` writes the figures down anew: only where a bit must change,
in a commit of its own that says why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.files import plain
from fedmend.methods import METHODS
from fedmend.runs.train import Result, train
from tests.contract.test_every_method import settings_of
from tests.tiny import tiny_partition

FILE = Path(__file__).with_name("every_method.json")

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg patience": ("fedavg", {"rounds": 12, "patience": 2}),
    "fedavg equal weights, fresh optimiser": (
        "fedavg",
        {"weighting": "equal", "keep_optimizer": False, "local_epochs": 2},
    ),
    "fedper two layers": ("fedper", {"layers": 3, "personal_layers": 2}),
    "fedsage+ copies": ("fedsage+", {"generator": "copy", "neighbours": 2}),
    "feddep as printed": ("feddep", {"fused": "paper", "joint": True}),
    "feddep mended at inference": ("feddep", {"generate_at_inference": True}),
    "hifgl averages": ("hifgl", {"training": "fedavg", "local_epochs": 2, "weighting": "equal"}),
    "hifgl proximal": ("hifgl", {"training": "fedprox", "mu": 0.1}),
    "hifgl personal": ("hifgl", {"training": "fedper"}),
    "hifgl devices": ("hifgl", {"setting": "devices", "backbone": "sage"}),
    "hifgl three layers, shares checked": ("hifgl", {"layers": 3, "check_shares": 1}),
    "hifgl every neighbour": ("hifgl", {"min_neighbours": 1, "input_min_neighbours": 1}),
    "hifgl noised": ("hifgl", {"below_minimum": "noise"}),
    "fedggr proximal": ("fedggr", {"aggregation": "fedprox", "mu": 0.1}),
    "fedggr personal": ("fedggr", {"aggregation": "fedper"}),
    "fedggr noised": ("fedggr", {"embedding_noise": 0.5, "gradient_noise": 0.5}),
    "fedggr each alone": ("fedggr", {"autoencoder_rounds": 0, "weighting": "nodes"}),
    "fedggr no global module": ("fedggr", {"global_width": 0}),
}
"""Settings that take other ways through the code than the defaults, on the tiny graph."""

SILOS = {"hifgl three layers, shares checked": 4}
ON_CORA: dict[str, Any] = {"rounds": 3, "hidden": 16}


@cache
def small_cora() -> Partition:
    """The shipped Cora, cut at random into three: many edges are missing, some nodes are alone."""
    return split(load("cora"), 3, "random", seed=0)


def cases() -> dict[str, tuple[str, str]]:
    """Every case: a name, the graph it runs on, and its method or variant."""
    found = {f"csbm {name}": ("csbm", name) for name in METHODS}
    found |= {f"csbm {name}": ("csbm", name) for name in VARIANTS}
    return found | {f"cora {name}": ("cora", name) for name in METHODS}


def give(case: str, **options: Any) -> Result:
    """Run a case; options are `train`'s."""
    graph, name = cases()[case]
    method, more = VARIANTS.get(name, (name, {}))
    if graph == "cora":
        small = {
            key: value
            for key, value in settings_of(method).items()
            if key.startswith(("generator_", "autoencoder_", "encoder_"))
        }
        return train(method, small_cora(), seed=3, **{**small, **ON_CORA}, **options)
    silos = tiny_partition(SILOS.get(name, 3))
    return train(method, silos, seed=3, **settings_of(method, **more), **options)


def hashed(weights: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes and bits."""
    digest = hashlib.sha256()
    for key, value in sorted(weights.items()):
        digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def figures(result: Result) -> dict[str, Any]:
    """All of a run that must not change."""
    models = {"": result.weights or {}, **result.own}
    ledger = result.ledger.to_csv()
    scores = result.scores
    return {
        "weights": {name: hashed(each) for name, each in sorted(models.items())},
        "norms": {
            name: float(
                np.sqrt(sum(float((v.double() ** 2).sum()) for _, v in sorted(each.items())))
            )
            for name, each in sorted(models.items())
        },
        "ledger": hashlib.sha256(ledger.encode()).hexdigest()[:16],
        "messages": sorted({entry.message for entry in result.ledger.entries}),
        "bytes": [result.ledger.total("up"), result.ledger.total("down")],
        "history": hashlib.sha256(json.dumps(result.history, sort_keys=True).encode()).hexdigest()[
            :16
        ],
        "said": list(result.record.said),
        "accuracy": None if scores is None else scores.accuracy,
        "macro_f1": None if scores is None else scores.macro_f1,
        "privacy": plain(result.record.privacy),
    }


def machine() -> str:
    """Where bits are comparable: products round differently elsewhere."""
    return f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()} {_vendor()}"


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return sys.platform
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor")), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="parts of names; all if none is given")
    wanted = parser.parse_args().cases
    known = json.loads(FILE.read_text()) if FILE.exists() else {"cases": {}}
    names = [name for name in cases() if not wanted or any(part in name for part in wanted)]
    torch.set_num_threads(1)
    written = {name: figures(give(name)) for name in names}
    kept = {name: each for name, each in known["cases"].items() if name in cases()}
    found = {"machine": machine(), "cases": dict(sorted({**kept, **written}.items()))}
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
