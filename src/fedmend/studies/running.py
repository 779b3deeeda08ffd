"""Running a study: its cells, and what their records say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend import methods
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.files import write_bytes, write_json
from fedmend.reports import studies as reports
from fedmend.reports.studies import Entry
from fedmend.runs.cells import Cell, Engine, Outcome, Telling, known_settings, run_cells
from fedmend.runs.plan import Source
from fedmend.runs.record import Figures
from fedmend.studies import SILOS, Point, Study

ANYWHERE = "any"
"""The folder of a method that does not have what varies: one run serves all points."""


@dataclass(frozen=True)
class StudyPlan:
    """A study with everything that was chosen for it."""

    study: Study
    source: Source
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    names: tuple[str, ...]
    """The methods; the first is the base."""
    settings: Mapping[str, Any]
    evaluation: str | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            methods.find(name)
        if len(set(self.names)) < len(self.names) or not self.names:
            raise SettingsError(f"methods must be named, each once: {','.join(self.names)!r}")
        known = set().union(*(known_settings(name) for name in self.ran))
        varied = {key for point in self.points for key in point.settings}
        for key in self.settings:
            if key not in known:
                raise UnknownNameError("setting", key, known)
            if key in varied:
                raise SettingsError(f"study {self.study.name} varies {key}: use --values for it")
        for key in varied:
            if key not in known:
                raise SettingsError(
                    f"study {self.study.name} varies {key}, which none of {', '.join(self.ran)} has"
                )

    @property
    def ran(self) -> list[str]:
        """Every method that runs at some point."""
        at = [point.instead.get(name, name) for point in self.points for name in self.names]
        return list(dict.fromkeys(at))

    def cell(self, point: Point, name: str, seed: int) -> Cell:
        """The run of this method at this point; points that make no difference to it share one."""
        method = point.instead.get(name, name)
        known = known_settings(method)
        varied = {key: value for key, value in point.settings.items() if key in known}
        fixed = {
            key: value
            for key, value in {**self.study.settings, **self.settings}.items()
            if key in known
        }
        for key in methods.find(method).fixed:  # what the name implies goes before the study's
            if key not in self.settings:
                fixed.pop(key, None)
        folder = point.label if varied or point.silos or method != name else ANYWHERE
        source = self.source if point.silos is None else replace(self.source, silos=point.silos)
        return Cell(
            f"{method}/{_folder(folder)}/seed-{seed}",
            method,
            source,
            seed,
            {**fixed, **varied},
            self.evaluation or self.study.evaluation,
        )

    def cells(self) -> list[Cell]:
        """All runs, those that share a split beside each other."""
        found = {}
        for seed in self.seeds:
            for point in self.points:
                for name in self.names:
                    cell = self.cell(point, name, seed)
                    found[cell.name] = cell
        return list(found.values())


def _folder(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-+.=" else "-" for c in label).lstrip(".") or "-"


def run_study(
    plan: StudyPlan, out: Path, engine: Engine, telling: Telling
) -> tuple[list[Entry], dict[str, str]]:
    """Run what is not there yet and write the study's files; gives its lines and the failures."""
    outcome = run_cells(plan.cells(), out, engine, telling)
    entries = gather(plan, outcome)
    if outcome.records or not (out / "study.json").exists():  # where all failed, earlier ones stay
        write_files(plan, entries, outcome, out)
    return entries, outcome.failures


def gather(plan: StudyPlan, outcome: Outcome) -> list[Entry]:
    """A line per point and method from the records there are."""
    found = []
    for point in plan.points:
        base = _records(plan, outcome, point, plan.names[0])
        for name in plan.names:
            runs = _records(plan, outcome, point, name)
            method = point.instead.get(name, name)
            compared = [] if name == plan.names[0] else base
            found.append(reports.entry(point.label, point.number, name, method, runs, compared))
    return found


def _records(plan: StudyPlan, outcome: Outcome, point: Point, name: str) -> list[Figures]:
    cells = [plan.cell(point, name, seed) for seed in plan.seeds]
    return [outcome.records[cell.name] for cell in cells if cell.name in outcome.records]


def write_files(plan: StudyPlan, entries: Sequence[Entry], outcome: Outcome, out: Path) -> None:
    """Write study.json and study.csv beside the runs."""
    study = plan.study
    silos, split = plan.source.cut()
    about = {
        "format": "fedmend study 1",
        "study": study.name,
        "summary": study.summary,
        "repeats": study.repeats,
        "varies": study.varies,
        "dataset": plan.source.dataset,
        "silos": None if study.varies == SILOS else silos,
        "split": split,
        "ratio": plan.source.ratio,
        "seeds": list(plan.seeds),
        "base": plan.names[0],
        "settings": {**study.settings, **plan.settings},
        "entries": [each.as_dict() for each in entries],
        "failures": outcome.failures,
    }
    write_json(out / "study.json", about)
    write_bytes(out / "study.csv", reports.to_csv(study.varies, entries).encode())
