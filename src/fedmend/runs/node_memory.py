"""What a run remembers of its nodes, so that those which come later can be predicted with them.

    RUN/nodes.safetensors      the server's part, each silo's part, and the ids of its nodes

For methods in which a node brings something along that other nodes gave it (FedGGR), or is mended.
A deployed silo keeps its own part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedmend.errors import FileFormatError
from fedmend.files import storage_errors, write_bytes
from fedmend.models.predictor import Predictor
from fedmend.training.state import under

FILE = "nodes.safetensors"
FORMAT = "fedmend nodes 2"
_ABOUT = "about"


@dataclass(frozen=True)
class NodeMemory:
    """server, silos: tensors by name, as the method wants them; ids: each silo's nodes."""

    server: Mapping[str, Tensor]
    silos: Mapping[str, Mapping[str, Tensor]]
    ids: Mapping[str, NDArray[Any]]


def of(
    predictors: Mapping[str, Predictor], server: Mapping[str, Tensor], mode: str
) -> NodeMemory | None:
    """What silos' predictors remember of their nodes, as far as a test in this mode used it."""
    silos = {name: each.on(mode).remembered() for name, each in sorted(predictors.items())}
    if not any(silos.values()):
        return None
    return NodeMemory(server, silos, {name: predictors[name].ids for name in silos})


def write(folder: Path, memory: NodeMemory | None) -> None:
    """Keep it in a run's folder; without any, what an older run left there goes."""
    if memory is None:
        with storage_errors(folder / FILE):
            (folder / FILE).unlink(missing_ok=True)
        return
    tensors = {f"server|{key}": value for key, value in memory.server.items()}
    # Silos by number, not by name: a name may contain anything.
    for number, silo in enumerate(memory.ids):
        for key, value in memory.silos.get(silo, {}).items():
            tensors[f"silo|{number}|{key}"] = value
    about = {
        "silos": list(memory.ids),
        "ids": [each.astype(str).tolist() for each in memory.ids.values()],
    }
    # As a tensor: safetensors' own header, where texts usually stand, must not exceed 100 MB.
    tensors[_ABOUT] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    data = save(
        {key: value.detach().cpu().clone() for key, value in tensors.items()},
        metadata={"fedmend": FORMAT},
    )
    write_bytes(folder / FILE, data)


def read(folder: Path) -> NodeMemory | None:
    """What a run's folder holds of it; None if nothing."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            if (file.metadata() or {}).get("fedmend") != FORMAT:
                raise FileFormatError(f"{path} was written by another version of fedmend")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no dict
        about = json.loads(tensors.pop(_ABOUT).numpy().tobytes())
        names = [str(name) for name in about["silos"]]
        ids = [np.asarray(each, dtype=str) for each in about["ids"]]
        return NodeMemory(
            under("server|", tensors),
            {name: under(f"silo|{number}|", tensors) for number, name in enumerate(names)},
            dict(zip(names, ids, strict=True)),
        )
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{path} does not hold what a run knows of its nodes: {error}"
        ) from error
