"""Running a suite: its cells, its tables, and the files that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmend import methods
from fedmend.bench import Row, Suite, published_figure
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.evaluation.baselines import BASELINES
from fedmend.files import write_bytes, write_json
from fedmend.reports import bench_formats, benches
from fedmend.reports.benches import Block, Given
from fedmend.runs.cells import Cell, Engine, Outcome, Telling, known_settings, run_cells
from fedmend.runs.plan import Source, is_cut
from fedmend.runs.record import machine, versions

MLP = Row("mlp", "global", "", {"backbone": "mlp"})
"""The features-only network that every table carries, beside the two of `BASELINES`."""


@dataclass(frozen=True)
class Place:
    """One table of a suite."""

    dataset: str
    split: str
    silos: int

    @property
    def folder(self) -> str:
        split = "".join(c if c.isalnum() or c in "-+.=" else "-" for c in self.split)
        dataset = "".join(c if c.isalnum() or c in "-+.=" else "-" for c in self.dataset)
        return f"{dataset.lstrip('.')}/{split}-{self.silos}"


@dataclass(frozen=True)
class BenchPlan:
    """A suite with what was chosen for it."""

    suite: Suite
    settings: Mapping[str, Any]
    data_root: str | None = None

    def __post_init__(self) -> None:
        unknown = self.suite.unknown_methods
        if unknown:
            rows = ",".join(row.label for row in self.suite.rows if row.method not in unknown)
            hint = f"; the rest runs with --rows {rows}" if rows else ""
            raise SettingsError(
                f"suite {self.suite.name} needs {', '.join(unknown)}, which this version of "
                f"fedmend does not have{hint}"
            )
        here = {row.method for row in self.suite.rows}
        # A suite's own settings may be of rows that were left out; those chosen now may not.
        own = [self.suite.settings, *self.suite.dataset_settings.values()]
        all_of_it = here | (self.suite.methods & set(methods.METHODS))
        for every, takers in ((own, all_of_it), ([self.settings], here)):
            known = set().union(*map(known_settings, takers))
            for key in (key for settings in every for key in settings):
                if key not in known:
                    raise UnknownNameError("setting", key, known)

    @property
    def places(self) -> list[Place]:
        return [
            Place(dataset, split, silos)
            for dataset in self.suite.datasets
            for split in self._splits(dataset)
            for silos in self.suite.silos
        ]

    def _splits(self, dataset: str) -> tuple[str, ...]:
        """The suite's; a folder of silos is cut already and has its own."""
        return (Source(dataset).cut()[1],) if is_cut(dataset) else self.suite.splits

    @property
    def rows(self) -> tuple[Row, ...]:
        """The suite's rows and the baselines that are always there."""
        labels = {row.label for row in self.suite.rows}
        extra = [Row(name, name, "") for name in BASELINES] + [MLP]
        return (*self.suite.rows, *(row for row in extra if row.label not in labels))

    def is_baseline(self, row: Row) -> bool:
        return row not in self.suite.rows

    def cell(self, place: Place, row: Row, seed: int) -> Cell:
        """The run of a row on a table's split with a seed."""
        source = Source(place.dataset, place.silos, place.split, self.suite.ratio, self.data_root)
        return Cell(
            f"{place.folder}/{row.label}/seed-{seed}",
            row.method,
            source,
            seed,
            self._settings(place, row),
            row.evaluation or self.suite.evaluation,
        )

    def _settings(self, place: Place, row: Row) -> dict[str, Any]:
        if row.method in BASELINES:
            return {}
        common = {
            **self.suite.settings,
            **self.suite.dataset_settings.get(place.dataset, {}),
            **self.settings,
        }
        known = known_settings(row.method) - set(methods.find(row.method).fixed)
        own = {**row.settings, **row.dataset_settings.get(place.dataset, {})}
        return {**{k: v for k, v in common.items() if k in known}, **own}

    def cells(self) -> list[Cell]:
        """All runs: table by table, and in each seed by seed, so that rows share the split."""
        return [
            self.cell(place, row, seed)
            for place in self.places
            for seed in self.suite.seed_numbers
            for row in self.rows
        ]

    def block(self, place: Place, outcome: Outcome) -> Block:
        """One table of what has finished."""
        given = []
        for row in self.rows:
            names = [self.cell(place, row, seed).name for seed in self.suite.seed_numbers]
            figure = published_figure(self.suite, row, place.dataset, place.silos)
            given.append(
                Given(
                    row.label,
                    row.method,
                    self.is_baseline(row),
                    [outcome.records[name] for name in names if name in outcome.records],
                    sum(name in outcome.failures for name in names),
                    figure,
                    row.between,
                )
            )
        return benches.block(place.dataset, place.split, place.silos, self.suite.base, given)

    def place_of(self, cell: str) -> Place:
        """The table a cell belongs to."""
        return next(place for place in self.places if cell.startswith(f"{place.folder}/"))


def run_bench(
    plan: BenchPlan, out: Path, engine: Engine, telling: Telling
) -> tuple[list[Block], Outcome]:
    """Run what is not there yet and write the tables; where all failed, earlier ones stay."""
    outcome = run_cells(plan.cells(), out, engine, telling)
    blocks = [plan.block(place, outcome) for place in plan.places]
    if outcome.records or not (out / "bench.json").exists():
        write_tables(plan, blocks, outcome, out)
    return blocks, outcome


def write_tables(plan: BenchPlan, blocks: list[Block], outcome: Outcome, out: Path) -> None:
    """bench.json and the table as Markdown, CSV, LaTeX and HTML."""
    suite = plan.suite
    write_json(
        out / "bench.json",
        {
            "format": "fedmend bench 1",
            "suite": suite.name,
            "about": suite.about,
            "paper": suite.paper,
            "seeds": suite.seeds,
            "first_seed": suite.first_seed,
            "settings": {**suite.settings, **plan.settings},
            "tables": [block.as_dict() for block in blocks],
            "failures": outcome.failures,
            "measured": conditions(),
        },
    )
    texts = {
        "table.md": bench_formats.markdown(blocks),
        "table.csv": bench_formats.to_csv(blocks),
        "table.tex": bench_formats.latex(blocks),
        "table.html": bench_formats.to_html(f"{suite.name}: {suite.about}", blocks),
    }
    for name, text in texts.items():
        write_bytes(out / name, text.encode())


def conditions() -> dict[str, Any]:
    """Machine, versions and date: what a table of figures must state."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
    }
