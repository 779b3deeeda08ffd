"""Runs as a report shows them: read from their folders with care, grouped and named."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmend.errors import FileFormatError, SettingsError
from fedmend.privacy.ledger import Ledger
from fedmend.runs.record import LEDGER, RECORD, Projection, Record, SavedRun, read_run

MOST_RUNS = 60
_LEDGER_LIMIT = 256 * 2**20


@dataclass(frozen=True)
class Drawing:
    """A graph to draw: where nodes stand, whose they are, and its links.

    shown, nodes: how many of how many nodes are drawn.
    """

    x: list[float]
    y: list[float]
    silo: list[str]
    label: list[str]
    inside: list[tuple[int, int]]
    missing: list[tuple[int, int]]
    shown: int
    nodes: int


@dataclass(frozen=True)
class Retraced:
    """What only the data can tell, found by making the run's silos again.

    confusion: of the test nodes, rows are true classes; None where the run cannot be repeated.
    note: why something is missing.
    """

    drawing: Drawing | None = None
    confusion: list[list[int]] | None = None
    note: str = ""


@dataclass
class RunView:
    """One run with everything a report shows of it."""

    folder: Path
    saved: SavedRun
    ledger: Ledger
    label: str = ""
    group: str = ""
    retraced: Retraced = field(default_factory=Retraced)

    @property
    def record(self) -> Record:
        return self.saved.record

    @property
    def hash(self) -> str:
        """Of the split; of deployed silos, which nobody sees together, the run's name."""
        engine = self.record.engine
        return self.record.split.hash or f"run {engine.run} {engine.silo or ''}".strip()

    @property
    def where(self) -> str:
        """Its data in words."""
        record = self.record
        silo = f", {record.engine.silo} alone" if record.engine.silo else ""
        name = record.dataset or "own graph"
        return f"{name}, {record.split.how}, {len(record.silos)} silos{silo}"


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders at or below these paths, each once, in order."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise SettingsError(f"{path} is not a folder: name a run's folder, or one of many runs")
        inside = sorted(record.parent for record in path.rglob(RECORD))
        if not inside:
            read_run(path)  # says what is wrong with it
        found.update(dict.fromkeys(inside))
    if len(found) > MOST_RUNS:
        raise SettingsError(
            f"{len(found)} runs are too many for one page (at most {MOST_RUNS}); name fewer folders"
        )
    return list(found)


def read_views(folders: Sequence[Path]) -> list[RunView]:
    """The runs of these folders, with names that tell them apart."""
    views = [_view(folder) for folder in folders]
    _name(views)
    return views


def _view(folder: Path) -> RunView:
    saved = read_run(folder)
    path = folder / LEDGER
    try:
        if path.stat().st_size > _LEDGER_LIMIT:
            raise FileFormatError(f"{path} is too large to be a ledger of ours")
        text = path.read_text(encoding="utf-8")
        if text.splitlines()[:1] != Ledger().to_csv().splitlines():
            raise ValueError("its first line does not name the columns")
        ledger = Ledger.from_csv(text)
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise FileFormatError(f"{path} is not a ledger: {error}") from error
    return RunView(folder, saved, ledger)


def _name(views: Sequence[RunView]) -> None:
    """Groups: what differs in nothing but the seed. Labels: unique, as short as they may be."""
    kinds: dict[str, list[RunView]] = {}
    for view in views:
        kinds.setdefault(_kind(view), []).append(view)
    by_method: dict[str, list[list[RunView]]] = {}
    for group in kinds.values():
        by_method.setdefault(group[0].record.method, []).append(group)
    taken: set[str] = set()
    for method, groups in by_method.items():
        differing = _differing([group[0] for group in groups])
        for group in groups:
            facts = _facts(group[0])
            words = ", ".join(f"{key}={facts.get(key)}" for key in differing)
            name = _unique(f"{method} ({words})" if words else method, taken)
            for view in group:
                view.group = name
                seed = f", seed {view.record.seed}" if len(views) > 1 else ""
                view.label = _unique(f"{name}{seed}", taken) if seed else name


def _unique(name: str, taken: set[str]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name} #{number}", number + 1
    taken.add(found)
    return found


def _facts(view: RunView) -> dict[str, Any]:
    """What a run is, but for its seed."""
    record = view.record
    return {
        **record.settings,
        "dataset": record.dataset,
        "split": record.split.how,
        "silos": ", ".join(record.silos) if record.engine.silos else len(record.silos),
        "of": record.engine.silo,
        "evaluation": record.evaluation,
    }


def _kind(view: RunView) -> str:
    return f"{view.record.method} {sorted((k, str(v)) for k, v in _facts(view).items())}"


def _differing(views: Sequence[RunView]) -> list[str]:
    facts = [_facts(view) for view in views]
    keys = dict.fromkeys(key for each in facts for key in each)
    return [key for key in keys if len({str(each.get(key)) for each in facts}) > 1]


def same_group(views: Sequence[RunView]) -> dict[str, list[RunView]]:
    """The runs of each group."""
    found: dict[str, list[RunView]] = {}
    for view in views:
        found.setdefault(view.group, []).append(view)
    return found


def generated_spread(places: Projection) -> float | None:
    """How much generated neighbours vary where true ones vary by 1; None if that says nothing."""
    generated, true = _variance(places.generated), _variance(places.true)
    return math.sqrt(generated / true) if 0 < true < math.inf and generated < math.inf else None


def _variance(places: Sequence[tuple[float, float]]) -> float:
    """Along both axes together; of a single place it would say nothing, and is infinite here."""
    if len(places) < 2:
        return math.inf
    total = 0.0
    for axis in zip(*places, strict=True):
        mean = sum(axis) / len(axis)
        total += sum((value - mean) * (value - mean) for value in axis)
    return total / len(places)
