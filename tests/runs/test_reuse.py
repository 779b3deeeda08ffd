"""Finished runs are taken over where they are the same run, and nothing else is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmend.errors import FileFormatError, SettingsError
from fedmend.reports import figures
from fedmend.runs.cells import Cell, Engine, Telling, run_cells
from fedmend.runs.plan import Source
from fedmend.runs.record import Figures, read_record, read_run
from tests.tiny import QUICK

SOURCE = Source("csbm:nodes=80,classes=3,features=6", 3, "random")
HERE = Cell("here/seed-0", "fedavg", SOURCE, 0, QUICK)
THERE = replace(HERE, name="there/another-name")


def rounds_of(cell: Cell, out: Path, engine: Engine) -> tuple[int, Figures]:
    """How many rounds were run for a cell, and its record."""
    ran: list[str] = []
    telling = Telling(round=lambda cell, _: ran.append(cell.name))
    outcome = run_cells([cell], out, engine, telling)
    assert outcome.failures == {}
    return len(ran), outcome.records[cell.name]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    assert rounds_of(THERE, tmp_path / "elsewhere", Engine(workers=1))[0]
    return tmp_path / "elsewhere"


def test_the_same_run_is_taken_over(tmp_path: Path, elsewhere: Path) -> None:
    engine = Engine(workers=1, reuse=(elsewhere,))
    ran, record = rounds_of(HERE, tmp_path / "out", engine)
    assert ran == 0
    first = read_record(elsewhere / THERE.name / "record.json")
    assert record == first  # times too
    assert read_run(tmp_path / "out" / HERE.name).record == first  # all that a run folder has
    # A second call finds it in its own place, with the other gone.
    (elsewhere / THERE.name / "record.json").unlink()
    assert rounds_of(HERE, tmp_path / "out", engine) == (0, first)


def test_with_several_processes(tmp_path: Path, elsewhere: Path) -> None:
    engine = Engine(jobs=2, workers=1, reuse=(elsewhere,))
    other = replace(HERE, name="here/seed-1", seed=1)
    ran: set[str] = set()
    telling = Telling(round=lambda cell, _: ran.add(cell.name))
    outcome = run_cells([HERE, other], tmp_path / "out", engine, telling)
    assert outcome.failures == {}
    assert ran == {other.name}


OTHER: dict[str, Callable[[Cell], Cell]] = {
    "seed": lambda cell: replace(cell, seed=1),
    "method": lambda cell: replace(cell, method="fedprox"),
    "settings": lambda cell: replace(cell, settings={**QUICK, "lr": 0.5}),
    "split": lambda cell: replace(cell, source=replace(SOURCE, split="label-dirichlet")),
    "features": lambda cell: replace(
        cell, source=replace(SOURCE, dataset="csbm:nodes=80,classes=3,features=6,signal=0.1")
    ),
    "mode": lambda cell: replace(cell, evaluation="own-subgraph"),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_run_is_not(tmp_path: Path, elsewhere: Path, what: str) -> None:
    cell = OTHER[what](HERE)
    ran, record = rounds_of(cell, tmp_path / "out", Engine(workers=1, reuse=(elsewhere,)))
    assert ran
    assert record == rounds_of(cell, tmp_path / "out", Engine(workers=1))[1]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"method": "fedavg"}', "null", "\x00"])
def test_what_is_no_record_is_passed_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "record.json").write_text(content)
    engine = Engine(workers=1, reuse=(tmp_path / "elsewhere",))
    assert rounds_of(HERE, tmp_path / "out", engine)[0]


def test_a_link_to_a_file_elsewhere_is_not_followed(tmp_path: Path, elsewhere: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not of this run")
    (elsewhere / THERE.name / "notes.txt").symlink_to(secret)
    rounds_of(HERE, tmp_path / "out", Engine(workers=1, reuse=(elsewhere,)))
    assert not (tmp_path / "out" / HERE.name / "notes.txt").exists()


def test_where_files_cannot_be_linked_they_are_copied(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_disk(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", another_disk)
    ran, record = rounds_of(HERE, tmp_path / "out", Engine(workers=1, reuse=(elsewhere,)))
    assert ran == 0
    assert record == read_record(elsewhere / THERE.name / "record.json")


def test_a_run_begun_here_is_replaced_by_one_finished_there(
    tmp_path: Path, elsewhere: Path
) -> None:
    begun = tmp_path / "out" / HERE.name
    begun.mkdir(parents=True)
    (begun / "checkpoint.safetensors").write_bytes(b"half a run")
    assert rounds_of(HERE, tmp_path / "out", Engine(workers=1, reuse=(elsewhere,)))[0] == 0
    assert not (begun / "checkpoint.safetensors").exists()


def test_a_folder_that_is_not_there_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such folder"):
        run_cells([HERE], tmp_path / "out", Engine(reuse=(tmp_path / "nowhere",)))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def kept(tmp_path: Path, elsewhere: Path) -> Path:
    """A folder with a run's figures and without the run."""
    record = read_record(elsewhere / THERE.name / "record.json")
    figures.write(tmp_path / "kept" / "some.jsonl", {THERE.name: record})
    return tmp_path / "kept"


@pytest.mark.parametrize("jobs", [1, 2])
def test_kept_figures_are_taken_over(tmp_path: Path, kept: Path, jobs: int) -> None:
    engine = Engine(jobs=jobs, workers=1, reuse=(kept,))
    ran, record = rounds_of(HERE, tmp_path / "out", engine)
    assert ran == 0
    (figure,) = figures.read(kept / "some.jsonl").values()
    assert record == figure
    # The next call finds them in the cell's folder, which is not taken for a run.
    assert rounds_of(HERE, tmp_path / "out", Engine(workers=1)) == (0, figure)
    with pytest.raises(FileFormatError):
        read_run(tmp_path / "out" / HERE.name)


@pytest.mark.parametrize("what", OTHER)
def test_figures_of_another_run_are_not(tmp_path: Path, kept: Path, what: str) -> None:
    cell = OTHER[what](HERE)
    assert rounds_of(cell, tmp_path / "out", Engine(workers=1, reuse=(kept,)))[0]


def test_a_whole_run_comes_before_its_figures(tmp_path: Path, kept: Path, elsewhere: Path) -> None:
    rounds_of(HERE, tmp_path / "out", Engine(workers=1, reuse=(kept,)))
    engine = Engine(workers=1, reuse=(kept, elsewhere))
    ran, record = rounds_of(HERE, tmp_path / "out", engine)
    assert ran == 0
    assert read_run(tmp_path / "out" / HERE.name).record == record


def test_figures_of_other_settings_in_a_cells_folder_are_not_its_own(
    tmp_path: Path, kept: Path
) -> None:
    rounds_of(HERE, tmp_path / "out", Engine(workers=1, reuse=(kept,)))
    other = replace(HERE, settings={**QUICK, "lr": 0.5})
    ran, record = rounds_of(other, tmp_path / "out", Engine(workers=1))
    assert ran
    assert record.settings["lr"] == 0.5


def test_damaged_figures_are_said_before_anything_runs(tmp_path: Path, kept: Path) -> None:
    path = kept / "some.jsonl"
    path.write_text(path.read_text().replace('"pooled":false', '"pooled":7'))
    with pytest.raises(FileFormatError, match="pooled cannot be 7"):
        run_cells([HERE], tmp_path / "out", Engine(reuse=(kept,)))
    assert not (tmp_path / "out").exists()
    path.write_text("some other lines\n")  # not ours: it may be anything
    assert rounds_of(HERE, tmp_path / "out", Engine(workers=1, reuse=(kept,)))[0]
