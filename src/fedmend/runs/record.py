"""A run's folder: what was run, on what, with which result, so that it can be checked and reused.

    RUN/record.json            settings, versions, seed, split, rounds, result, bytes, timings
    RUN/weights.safetensors    the shared model; or weights/SILO.safetensors, one per silo
    RUN/ledger.csv             every line of the ledger
    RUN/nodes.safetensors      what the method remembers of its nodes (FedGGR; see node_memory)
    RUN/checkpoint.safetensors where to resume

The record is written last: a folder that has one is complete. The same seed gives the same record
except for `measured`, which holds times, memory and the date.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedmend import __version__
from fedmend.errors import FedmendError, FileFormatError
from fedmend.files import make_folder, read_json, storage_errors, write_bytes, write_json
from fedmend.models.backbones import BACKBONES, ModelShape
from fedmend.privacy.ledger import Ledger

FORMAT = "fedmend run 1"
RECORD, WEIGHTS, OWN_WEIGHTS = "record.json", "weights.safetensors", "weights"
LEDGER, CHECKPOINT = "ledger.csv", "checkpoint.safetensors"
SUMMARY = "summary.json"
_WEIGHTS_LIMIT = 16 * 2**30


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    found = {name: version(name) for name in ("torch", "numpy", "scipy", "igraph", "safetensors")}
    return {"fedmend": __version__, "python": platform.python_version(), **found}


def machine() -> str:
    """What a result's seconds depend on."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def peak_memory_mb() -> float:
    """The most memory this process has held so far.

    On Linux from /proc: `ru_maxrss` starts at the size of the process that started this one.
    """
    try:
        status = Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return float(peak.split()[1]) / 2**10
    except (OSError, StopIteration):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(used / 2**20 if sys.platform == "darwin" else used / 2**10)


def write_run(
    folder: Path,
    record: Mapping[str, Any],
    weights: Mapping[str, Tensor] | None,
    own: Mapping[str, Mapping[str, Tensor]],
    ledger: Ledger,
) -> None:
    """Write a run's folder, the record last."""
    make_folder(folder)
    with storage_errors(folder / RECORD):
        # An older run's record must not stand beside the new weights if this is interrupted.
        (folder / RECORD).unlink(missing_ok=True)
    if weights is not None:
        write_bytes(folder / WEIGHTS, _saved(weights))
    for silo, each in own.items():
        write_bytes(folder / OWN_WEIGHTS / f"{silo}.safetensors", _saved(each))
    write_bytes(folder / LEDGER, ledger.to_csv().encode())
    write_json(folder / RECORD, record)


def _saved(weights: Mapping[str, Tensor]) -> bytes:
    return save({key: value.cpu().contiguous().clone() for key, value in weights.items()})


@dataclass(frozen=True)
class SavedRun:
    """What `predict` needs of a run's folder."""

    folder: Path
    record: dict[str, Any]
    shape: ModelShape
    weights: dict[str, Tensor] | None
    own: tuple[str, ...]

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(self.record["label_names"])

    def own_weights(self, silo: str) -> dict[str, Tensor]:
        """One silo's own model; `silo` must be one of `own`."""
        deployed = self.record.get("engine", {}).get("name") == "flare"
        if deployed and not (self.folder / OWN_WEIGHTS / f"{silo}.safetensors").exists():
            raise FileFormatError(
                f"{self.folder} does not hold {silo}'s own model: in a deployed run it stays at "
                "the silo, in its state folder"
            )
        return _weights(self.folder / OWN_WEIGHTS / f"{silo}.safetensors")


def read_run(folder: Path) -> SavedRun:
    """A finished run's folder."""
    path = folder / RECORD
    if not path.exists():
        if (folder / SUMMARY).exists():
            one = next(iter(sorted(folder.glob(f"*/{RECORD}"))), None)
            hint = f"it holds several runs; choose one, e.g. {one.parent}" if one else "it is empty"
        elif (folder / CHECKPOINT).exists():
            hint = "it was not finished; go on with `fedmend run ... --resume`"
        else:
            hint = f"there is no {RECORD} in it"
        raise FileFormatError(f"{folder} is not a finished run: {hint}")
    record = read_json(path)
    try:
        if record["format"] != FORMAT:
            raise FileFormatError(f"{path} was written by another version of fedmend")
        shape = _shape(record["model"])
        own = tuple(map(str, record["silos_with_own_model"]))
        shared = bool(record["shared_model"])
        labels, method = list(record["label_names"]), record["method"]
    except (KeyError, TypeError, ValueError, FedmendError) as error:
        raise FileFormatError(f"{path} is not a run's record: {error}") from error
    if not all(map(is_file_name, own)):
        raise FileFormatError(f"{path} names a silo outside its folder")
    if not all(isinstance(text, str) for text in [method, *labels]):
        raise FileFormatError(f"{path} is not a run's record: names must be texts")
    if len(labels) != shape.num_classes:
        raise FileFormatError(
            f"{path} names {len(labels)} classes, but its model has {shape.num_classes}"
        )
    weights = _weights(folder / WEIGHTS) if shared else None
    return SavedRun(folder, record, shape, weights, own)


def _shape(values: Mapping[str, Any]) -> ModelShape:
    """A model's shape from a file, in which anything may stand."""
    shape = ModelShape(**values)
    for name, value in asdict(shape).items():
        match name:
            case "backbone":
                fits = value in BACKBONES
            case "dropout":
                fits = type(value) in (int, float) and 0 <= value < 1
            case _:
                least = 0 if name in ("embedding", "joined") else 1
                fits = type(value) is int and least <= value < 2**31
        if not fits:
            raise ValueError(f"{name} of the model cannot be {value!r}")
    return shape


def is_file_name(silo: str) -> bool:
    """Whether a silo's name can be that of its weights' file, in this folder and no other."""
    fits = silo.isprintable() and 0 < len(silo.encode()) <= 200  # and room for what is added
    return fits and silo[0] != "." and not set(silo) & {"/", "\\"}


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        if path.stat().st_size > _WEIGHTS_LIMIT:
            raise FileFormatError(f"{path} is too large to be weights of ours")
        return load(path.read_bytes())
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}") from error
