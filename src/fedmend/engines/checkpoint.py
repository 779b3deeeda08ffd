"""A checkpoint: one safetensors file that holds all it takes to go on to the identical result."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedmend.errors import FileFormatError, SettingsError
from fedmend.files import write_bytes
from fedmend.training.state import under

FORMAT = "fedmend checkpoint 2"
_ABOUT = "about"
Packed = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood after a round.

    fingerprint: what the run was (method, settings, split, seed); another run refuses it.
    server: the server's state as tensors and plain values; silos: each silo's tensors.
    """

    fingerprint: str
    phase: str
    round: int
    finished: tuple[str, ...]
    server: Packed
    silos: Mapping[str, Mapping[str, Tensor]]
    ledger: str
    history: dict[str, dict[int, dict[str, float]]]
    sentences: tuple[str, ...]

    def fill(self, state: Any) -> None:
        """Put the saved server state into `state`, field by field."""
        tensors, plain = self.server
        for field in dataclasses.fields(state):
            now = getattr(state, field.name)
            if field.name in plain:
                found = plain[field.name]
                if isinstance(now, int | float) and not isinstance(found, int | float):
                    raise TypeError(f"{field.name} is no number")
            elif field.name in tensors:
                found = tensors[field.name]
            else:
                found = under(f"{field.name}/", tensors)
                # Of an empty dict nothing was written; anything else should have been.
                if not found and not isinstance(now, dict | None):
                    raise KeyError(field.name)
            setattr(state, field.name, found)


def packed(state: Any) -> Packed:
    """A dataclass of tensors, dicts of tensors and plain values, taken apart."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif isinstance(value, dict) and all(isinstance(v, Tensor) for v in value.values()):
            tensors.update({f"{field.name}/{key}": each for key, each in value.items()})
        else:
            plain[field.name] = value
    return tensors, plain


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint completely or not at all."""
    tensors, plain = checkpoint.server
    named = {f"server|{key}": value for key, value in tensors.items()}
    # Silos by number, not by name: a name may contain anything.
    for number, state in enumerate(checkpoint.silos.values()):
        named.update({f"silo|{number}|{key}": value for key, value in state.items()})
    about = {
        "fingerprint": checkpoint.fingerprint,
        "phase": checkpoint.phase,
        "round": checkpoint.round,
        "finished": checkpoint.finished,
        "server": plain,
        "silos": list(checkpoint.silos),
        "history": checkpoint.history,
        "sentences": checkpoint.sentences,
        "ledger": checkpoint.ledger,
    }
    # As a tensor: ledger and history grow with rounds and silos, and safetensors' own header, where
    # texts usually stand, must not exceed 100 MB.
    named[_ABOUT] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    # Clones: safetensors refuses two names for one storage, and a state may well share tensors.
    data = save(
        {key: value.detach().cpu().clone() for key, value in named.items()},
        metadata={"fedmend": FORMAT},
    )
    write_bytes(path, data)


def read(path: Path, fingerprint: str) -> Checkpoint:
    """The checkpoint in a file, if it is one of this very run."""
    try:
        with safe_open(str(path), framework="pt") as file:
            if (file.metadata() or {}).get("fedmend") != FORMAT:
                raise FileFormatError(f"{path} is not a checkpoint of this version of fedmend")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no dict
        about = json.loads(tensors.pop(_ABOUT).numpy().tobytes())
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a checkpoint of fedmend: {error}") from error
    if not isinstance(about, dict):
        raise FileFormatError(f"{path} is not a checkpoint of fedmend: it does not say of what")
    if about.get("fingerprint") != fingerprint:
        raise SettingsError(
            f"{path} belongs to another run: method, settings, split, seed and threads must be "
            "the same to resume; choose another --out to start anew"
        )
    with damaged(path):
        return _unpacked(about, tensors)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn what a damaged checkpoint causes when it is taken apart into a FileFormatError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, csv.Error) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FileFormatError(f"{path} is damaged ({why}); delete it to start anew") from error


def _unpacked(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Checkpoint:
    server: dict[str, Tensor] = {}
    names = [str(name) for name in about["silos"]]
    silos: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for key, value in tensors.items():
        owner, _, rest = key.partition("|")
        if owner == "server":
            server[rest] = value
        else:
            number, _, name = rest.partition("|")
            silos[names[int(number)]][name] = value
    history = {
        phase: {int(number): dict(metrics) for number, metrics in rounds.items()}
        for phase, rounds in about["history"].items()
    }
    return Checkpoint(
        fingerprint=about["fingerprint"],
        phase=str(about["phase"]),
        round=int(about["round"]),
        finished=tuple(about["finished"]),
        server=(server, dict(about["server"])),
        silos=silos,
        ledger=about["ledger"],
        history=history,
        sentences=tuple(about["sentences"]),
    )
