"""Cells: skipped when finished, gone on with when stopped, and one that fails stops no other."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmend.engines.base import Interrupted, Moment
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.runs.cells import Cell, Engine, Outcome, Telling, run_cells
from fedmend.runs.plan import Source
from tests.tiny import QUICK, comparable

SOURCE = Source("csbm:nodes=80,classes=3,features=6", 3, "random")
ONE = Engine(workers=1)
TWO = Engine(jobs=2, workers=1)


def cells(count: int = 3, **settings: Any) -> list[Cell]:
    return [
        Cell(f"fedavg/seed-{seed}", "fedavg", SOURCE, seed, {**QUICK, **settings})
        for seed in range(count)
    ]


def failing(name: str = "broken") -> Cell:
    """A cell that is fine until its graph is cut."""
    return Cell(name, "fedavg", replace(SOURCE, silos=1000), 0, QUICK)


def same(one: Outcome, other: Outcome) -> bool:
    return {k: comparable(v) for k, v in one.records.items()} == {
        k: comparable(v) for k, v in other.records.items()
    }


def test_finished_cells_are_skipped(tmp_path: Path) -> None:
    first = run_cells(cells(), tmp_path, ONE)
    assert set(first.records) == {cell.name for cell in cells()}
    assert list(tmp_path.rglob("record.json"))
    assert not list(tmp_path.rglob("checkpoint.safetensors"))  # which are the largest of all
    rounds: list[str] = []
    done: list[str] = []
    telling = Telling(
        round=lambda cell, _: rounds.append(cell.name),
        finished=lambda cell, _: done.append(cell.name),
    )
    again = run_cells(cells(), tmp_path, ONE, telling)
    assert again == first  # times too: nothing was run anew
    assert rounds == []
    assert sorted(done) == sorted(first.records)


@pytest.mark.parametrize("engine", [ONE, TWO])
def test_a_failed_cell_stops_no_other(tmp_path: Path, engine: Engine) -> None:
    told: dict[str, str] = {}
    telling = Telling(failed=lambda cell, why: told.update({cell.name: why}))
    outcome = run_cells([failing(), *cells(2)], tmp_path / "1", engine, telling)
    assert set(outcome.records) == {"fedavg/seed-0", "fedavg/seed-1"}
    assert outcome.failures == told
    assert "1000 is more than the graph has nodes" in told["broken"]
    # In processes or not, the runs are the same.
    assert same(outcome, run_cells(cells(2), tmp_path / "2", ONE))


@pytest.mark.parametrize("engine", [ONE, TWO])
def test_stopped_cells_go_on_to_the_same(tmp_path: Path, engine: Engine) -> None:
    many = cells(3, rounds=30)
    whole = run_cells(many, tmp_path / "whole", ONE)
    telling = Telling()

    def stop(_cell: Cell, _moment: Moment) -> None:
        telling.stop_requested = True

    telling.round = stop
    with pytest.raises(Interrupted):
        run_cells(many, tmp_path / "part", engine, telling)
    unfinished = [c for c in many if not (tmp_path / "part" / c.name / "record.json").exists()]
    assert unfinished
    assert same(run_cells(many, tmp_path / "part", engine), whole)


def test_who_cannot_wait_for_the_round_is_obeyed_at_once(tmp_path: Path) -> None:
    """The second Ctrl-C raises in the middle of a cell: that is no failed cell."""
    telling = Telling()

    def twice(_cell: Cell, _moment: Moment) -> None:
        telling.stop_requested = True
        raise RuntimeError("the second signal")

    telling.round = twice
    with pytest.raises(RuntimeError, match="the second signal"):
        run_cells(cells(2), tmp_path, ONE, telling)


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    run_cells(cells(1), tmp_path, ONE)
    before = (tmp_path / "fedavg/seed-0/record.json").read_bytes()
    # The folder's cell is the last one: it is refused before the others run.
    others = [
        replace(cells(1)[0], name="other"),
        replace(cells(1)[0], source=replace(SOURCE, ratio="40/30/30")),
    ]
    for wrong in (
        [others[0], *cells(1, hidden=9)],
        others,
        [replace(cells(1)[0], seed=5)],
        [replace(cells(1)[0], evaluation="own-subgraph")],
        [replace(cells(1)[0], source=replace(SOURCE, split_seed=3))],
    ):
        with pytest.raises(SettingsError, match="seed-0 holds a run of other settings"):
            run_cells(wrong, tmp_path, ONE)
    assert [path.name for path in tmp_path.iterdir()] == ["fedavg"]
    assert (tmp_path / "fedavg/seed-0/record.json").read_bytes() == before


def test_other_words_for_the_same_silos_are_the_same_run(tmp_path: Path) -> None:
    (first,) = run_cells(cells(1), tmp_path, ONE).records.values()
    same_data = Source("csbm:classes=3,nodes=80,features=6", 3, "random", split_seed=0)
    (again,) = run_cells([replace(cells(1)[0], source=same_data)], tmp_path, ONE).records.values()
    assert again == first


def test_a_record_that_cannot_be_read_is_its_cells_failure(tmp_path: Path) -> None:
    for seed, text in enumerate(("{", "[]")):
        (tmp_path / f"fedavg/seed-{seed}").mkdir(parents=True)
        (tmp_path / f"fedavg/seed-{seed}/record.json").write_text(text)
    outcome = run_cells(cells(3), tmp_path, ONE)
    assert set(outcome.failures) == {"fedavg/seed-0", "fedavg/seed-1"}
    assert set(outcome.records) == {"fedavg/seed-2"}


def test_a_process_that_dies_is_a_failed_cell(tmp_path: Path) -> None:
    """The first cell's process is killed; the others are finished by new ones."""
    killed: list[int] = []

    def kill(_cell: Cell, moment: Moment) -> None:
        if not killed:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for child in map(int, children):
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"spawn_main" in line:
                    killed.append(child)
                    os.kill(child, signal.SIGKILL)

    many = cells(4, rounds=60)
    outcome = run_cells(many, tmp_path, TWO, Telling(round=kill))
    assert killed
    assert 1 <= len(outcome.failures) <= 2
    assert len(outcome.records) + len(outcome.failures) == 4
    assert all("its process ended with code -9" in why for why in outcome.failures.values())


def test_mistakes_are_found_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown setting 'hiden'"):
        run_cells([*cells(1), Cell("x", "fedavg", SOURCE, 0, {"hiden": 3})], tmp_path, ONE)
    with pytest.raises(UnknownNameError, match="unknown method"):
        run_cells([Cell("x", "fedag", SOURCE, 0)], tmp_path, ONE)
    with pytest.raises(SettingsError, match="two cells are called"):
        run_cells([*cells(1), *cells(1)], tmp_path, ONE)
    with pytest.raises(SettingsError, match="jobs=0"):
        run_cells(cells(1), tmp_path, Engine(jobs=0))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="file is a file: choose a folder"):
        run_cells(cells(1), tmp_path / "file", ONE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset": "coraa"}, "unknown dataset 'coraa'; did you mean 'cora'"),
        ({"dataset": "./nowhere"}, "neither a folder nor the name of a dataset"),
        ({"dataset": "csbm:nods=80"}, "has no option 'nods'"),
        ({"split": "randm"}, "unknown split 'randm'"),
        ({"split": "random:alpha=1"}, "has no options"),
        ({"split": "label-dirichlet:alpha=-1"}, "alpha: expected a number"),
        ({"split": "column"}, "needs column="),
        ({"ratio": "60/40"}, "not of the form 60/20/20"),
        ({"ratio": "60/60/60"}, "add up to at most 1"),
    ],
)
def test_sources_that_cannot_be_are_refused_at_once(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    wrong = replace(cells(1)[0], name="wrong", source=replace(SOURCE, **changed))
    with pytest.raises(SettingsError, match=said):
        run_cells([*cells(1), wrong], tmp_path, ONE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["fedavg", "majority"])
def test_an_unknown_mode_of_evaluation_is_refused_at_once(tmp_path: Path, method: str) -> None:
    cell = Cell("x", method, SOURCE, 0, evaluation="nosuch")
    with pytest.raises(UnknownNameError, match="unknown evaluation mode 'nosuch'"):
        run_cells([cell], tmp_path, ONE)


@pytest.mark.parametrize("how", ["louvain", "leiden", "random", "column:column=hospital"])
def test_sources_that_can_be_are_not(how: str) -> None:
    replace(SOURCE, split=how).check()


def test_cells_are_normal_run_folders(tmp_path: Path) -> None:
    from fedmend.runs.record import read_run

    outcome = run_cells(cells(1), tmp_path, ONE)
    saved = read_run(tmp_path / "fedavg/seed-0")
    assert saved.record == outcome.records["fedavg/seed-0"]
