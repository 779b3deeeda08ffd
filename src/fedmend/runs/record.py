"""A run's folder: what was run, on what, with which result, so that it can be checked and reused.

    RUN/record.json            a `Record`: settings, versions, seed, split, rounds, result, bytes
    RUN/weights.safetensors    the shared model; or weights/SILO.safetensors, one per silo
    RUN/ledger.csv             every line of the ledger
    RUN/nodes.safetensors      what silos remember of their nodes, where they do (node_memory)
    RUN/checkpoint.safetensors where to resume

Every run writes it: in-process, of a study or a suite, at a deployed server, and at each deployed
silo, whose folder holds its own part. The record is written last: a folder that has one is
complete. The same seed gives the same record except for `measured`: times, memory and the date.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedmend import __version__
from fedmend.data.partition import SiloStatistics
from fedmend.errors import FedmendError, FileFormatError
from fedmend.evaluation.evaluate import ALWAYS, Scores
from fedmend.files import (
    make_folder,
    plain,
    read_json,
    storage_errors,
    typed,
    write_bytes,
    write_json,
)
from fedmend.models.backbones import BACKBONES, ModelShape
from fedmend.plugins.registry import registry
from fedmend.privacy.account import Account
from fedmend.privacy.ledger import Ledger
from fedmend.runs import node_memory
from fedmend.runs.node_memory import NodeMemory
from fedmend.runs.renamed import of_today

FORMAT = "fedmend run 2"
_BEFORE = "fedmend run 1"
RECORD, WEIGHTS, OWN_WEIGHTS = "record.json", "weights.safetensors", "weights"
LEDGER, CHECKPOINT = "ledger.csv", "checkpoint.safetensors"
SUMMARY = "summary.json"
_WEIGHTS_LIMIT = 16 * 2**30


@dataclass(frozen=True, kw_only=True)
class Split:
    """How the silos came about; `hash` is None where nobody sees them together."""

    how: str
    seed: int | None
    hash: str | None


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is known of the silos' data; of deployed silos only how many there are."""

    silos: int
    mean_nodes: float | None = None
    mean_edges: float | None = None
    missing_links: int | None = None
    missing_share: float | None
    per_silo: tuple[SiloStatistics, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Bytes of all messages; `left_by_silo` by the kind of what left.

    between_silo_and_devices: by silo, where a method tells the two apart.
    """

    up: int
    down: int
    left_by_silo: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    between_silo_and_devices: Mapping[str, Mapping[str, int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What differs from one run of the same to the next."""

    finished: str = ""
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    peak_memory_mb: float | None = None
    machine: str | None = None
    workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What tables read of a run, or of a baseline, which is no run.

    content_hash: of the features and the edges between silos; with the split's, the data.
    pooled: all raw data was in one place.
    ran: what really ran, where the settings do not say it; of kept figures only.
    """

    method: str
    settings: Mapping[str, Any]
    seed: int
    evaluation: str
    split: Split
    content_hash: str | None
    dataset: str | None
    data: Data
    pooled: bool
    result: Scores | None
    bytes: Sent
    measured: Measured
    versions: Mapping[str, str] = field(default_factory=dict)
    ran: str = ""

    def is_of(self, what: Mapping[str, Any]) -> bool:
        """Whether this is the run that `what` describes by some of these fields."""
        found = {key: getattr(self, key) for key in what}
        if "settings" in what:
            found["settings"] = of_today(self.settings, what["settings"])
        return all(plain(found[key]) == plain(value) for key, value in what.items())


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a run ran on.

    run, silos: a deployed run's name, and who took part in it. silo: whose record this is, where
    it is a deployed silo's own.
    """

    name: str
    threads: int | None = None
    run: str | None = None
    silos: tuple[str, ...] | None = None
    silo: str | None = None


Place = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Rows on their two main axes: those that were generated and those that are missing."""

    generated: tuple[Place, ...]
    true: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Generator:
    """How generated neighbours compare with the true ones; see `evaluation.generated`.

    predicted, true: how many neighbours nodes miss, of some nodes; generated, missing: of all.
    """

    predicted: tuple[float, ...]
    true: tuple[float, ...]
    generated: int = 0
    missing: int = 0
    projection: Projection | None = None


@dataclass(frozen=True, kw_only=True)
class Record(Figures):
    """A finished run.

    source: how the silos can be made again. rounds: figures by phase and round. said: what the
    user was told. privacy: an account of every mechanism of the method that hides something.
    plugins: of its method, backbone, partitioner, dataset and metric those from outside, by kind:
    the plugin and its version.
    """

    engine: Engine
    model: ModelShape
    label_names: tuple[str, ...]
    feature_names_hash: str = ""
    shared_model: bool
    silos_with_own_model: tuple[str, ...]
    source: Mapping[str, Any] | None = None
    privacy: tuple[Account, ...] = ()
    generator: Generator | None = None
    rounds: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    plugins: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file."""
        known = {key: plain(each) for key, each in vars(self).items() if each or key != "ran"}
        return {"format": FORMAT, **known}

    @property
    def silos(self) -> tuple[str, ...]:
        """Who took part."""
        deployed = self.engine.silos
        return tuple(s.name for s in self.data.per_silo) if deployed is None else deployed


def read_record(path: Path) -> Record:
    """A record from a file, in which anything may stand; also one of the format before."""
    given = read_json(path)
    try:
        if given["format"] == _BEFORE:
            given = _upgraded(given)
        elif given["format"] != FORMAT:
            raise FileFormatError(f"{path} was written by another version of fedmend")
        if unknown := set(given["model"]) - set(ModelShape.__dataclass_fields__):
            raise ValueError(f"the model has no {', '.join(sorted(map(str, unknown)))}")
        record: Record = typed(Record, given, "the record")
        _check_plugins(record)
        _check_shape(record.model)
        _check(record)
    except FileFormatError as error:
        raise error if str(path) in str(error) else _no_record(path, error) from error
    except (KeyError, TypeError, ValueError, AttributeError, FedmendError) as error:
        raise _no_record(path, error) from error
    return record


def read_figures(path: Path) -> Figures:
    """What was kept of a baseline, which is no run."""
    try:
        found: Figures = typed(Figures, read_json(path), "it")
        check_figures(found)
    except ValueError as error:
        raise FileFormatError(f"{path} holds no figures: {error}") from error
    return found


def _no_record(path: Path, why: Exception) -> FileFormatError:
    words = f"{why} is missing" if isinstance(why, KeyError) else str(why)
    return FileFormatError(f"{path} is not a run's record: {words}")


def _check_plugins(record: Record) -> None:
    """Raise where the method or the network is of a plugin that is not here."""
    for kind, name in (("method", record.method), ("backbone", record.model.backbone)):
        if kind in record.plugins and name not in registry(kind):
            raise ValueError(
                f"its {kind} {name!r:.80} is of the plugin {record.plugins[kind]!r:.80}, which is "
                "not here: install it, or name its file with --plugin"
            )


def _check(record: Record) -> None:
    """Raise unless what is in a record belongs together."""
    if not all(map(is_file_name, record.silos_with_own_model)):
        raise ValueError("it names a silo outside its folder")
    if len(record.label_names) != record.model.num_classes:
        raise ValueError(
            f"it names {len(record.label_names)} classes, but its model has "
            f"{record.model.num_classes}"
        )
    check_figures(record)
    made = record.generator
    if made is not None and len(made.predicted) != len(made.true):
        raise ValueError(f"{len(made.predicted)} predictions for {len(made.true)} nodes")


def check_figures(run: Figures) -> None:
    """Raise unless tables can be made of these figures."""
    if run.seed < 0:
        raise ValueError("seed is below 0")
    if run.result is not None and not all(0 <= run.result.figures[each] <= 1 for each in ALWAYS):
        raise ValueError("result is no share")
    if min(run.bytes.up, run.bytes.down, run.measured.seconds) < 0:
        raise ValueError("bytes or measured is below 0")
    if any(silo.labels.keys() != run.data.per_silo[0].labels.keys() for silo in run.data.per_silo):
        raise ValueError("data: its silos have different classes")


def _upgraded(given: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the format before: a silo's own said little, accounts had no common form."""
    of_a_silo: dict[str, Any] = {
        "evaluation": "own-subgraph",
        "split": {"how": "deployed", "seed": None, "hash": None},
        "content_hash": None,
        "dataset": None,
        "data": {"silos": 1, "missing_share": None},
        "pooled": False,
        "result": None,
        "bytes": {"up": 0, "down": 0},
        "measured": {"seconds": 0.0},
        "privacy": None,
    }
    whole = {**of_a_silo, **given} if "silo" in given["engine"] else dict(given)
    account = _account_before(whole["privacy"])
    return {**whole, "format": FORMAT, "privacy": [] if account is None else [account]}


def _account_before(privacy: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if privacy is None:
        return None
    found = {"mechanism": "noise", "per": "", "uses": 0, "sentence": privacy["sentence"]}
    found["drawn"] = False
    if nfdp := privacy.get("nfdp"):
        return {**found, "mechanism": "neighbour sampling", "details": nfdp} | {
            key: nfdp["recomputed"]["sampled"][key] for key in ("epsilon", "delta")
        }
    details = privacy.get("dp_sgd") or privacy.get("row_epsilon") or {}
    epsilon = details.get("epsilon", details.get("both"))
    found["drawn"] = epsilon is not None
    return {**found, "epsilon": epsilon, "delta": details.get("delta", 0.0), "details": details}


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


def sent(ledger: Ledger, inside: Mapping[str, Mapping[str, int]] | None = None) -> Sent:
    """What a ledger comes to; inside: between silos and their devices."""
    return Sent(
        up=ledger.total("up"),
        down=ledger.total("down"),
        left_by_silo=ledger.left(),
        between_silo_and_devices=inside,
    )


def measured_now(**known: Any) -> Measured:
    """What is measured as a run ends, with what is known of it."""
    return Measured(
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        peak_memory_mb=peak_memory_mb(),
        machine=machine(),
        **known,
    )


def write_run(
    folder: Path,
    record: Record,
    weights: Mapping[str, Tensor] | None,
    own: Mapping[str, Mapping[str, Tensor]],
    memory: NodeMemory | None,
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
    node_memory.write(folder, memory)
    write_bytes(folder / LEDGER, ledger.to_csv().encode())
    write_json(folder / RECORD, plain(record))


def _saved(weights: Mapping[str, Tensor]) -> bytes:
    return save({key: value.cpu().contiguous().clone() for key, value in weights.items()})


@dataclass(frozen=True)
class SavedRun:
    """What `predict` needs of a run's folder."""

    folder: Path
    record: Record
    weights: dict[str, Tensor] | None

    @cached_property
    def memory(self) -> NodeMemory | None:
        """What silos remember of their nodes."""
        return node_memory.read(self.folder)

    def own_weights(self, silo: str) -> dict[str, Tensor]:
        """One silo's own model; `silo` must be one of those that have one."""
        path = self.folder / OWN_WEIGHTS / f"{silo}.safetensors"
        if self.record.engine.run is not None and not path.exists():
            raise FileFormatError(
                f"{self.folder} does not hold {silo}'s own model: in a deployed run it stays at "
                "the silo, in its state folder"
            )
        return _weights(path)


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
    record = read_record(path)
    return SavedRun(folder, record, _weights(folder / WEIGHTS) if record.shared_model else None)


def _check_shape(shape: ModelShape) -> None:
    """Raise unless a model of this shape can be built."""
    for name, value in vars(shape).items():
        match name:
            case "backbone":
                fits = value in BACKBONES
            case "dropout":
                fits = 0 <= value < 1
            case _:
                fits = (0 if name in ("embedding", "joined") else 1) <= value < 2**31
        if not fits:
            raise ValueError(f"{name} of the model cannot be {value!r}")


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
