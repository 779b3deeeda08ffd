"""Older runs' settings by today's names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedmend import methods
from fedmend.config import make
from fedmend.files import read_json, write_json
from fedmend.runs.cells import Cell, Engine, Telling, run_cells
from fedmend.runs.plan import Source
from fedmend.runs.renamed import RENAMED, of_today


def test_every_new_name_and_value_is_one_that_a_method_has() -> None:
    known = [methods.find(name).settings_type for name in methods.METHODS]
    for now, values in RENAMED.values():
        takers = [kind for kind in known if now in kind.__dataclass_fields__]
        assert takers
        for kind in takers:
            for value in values.values():
                assert getattr(make(kind, {now: value}), now) == value
    assert not any(old in kind.__dataclass_fields__ for kind in known for old in RENAMED)


def test_whatever_stands_as_a_value_is_no_error() -> None:
    assert of_today({"hears_itself": ["lonely"]}, ()) == {"self_loops": ["lonely"]}


def test_what_a_method_no_longer_takes_is_left_out_where_it_had_no_effect() -> None:
    older = {"rounds": 5, "heads": 4, "unheard_of": 1}
    assert of_today(older, {"rounds", "heads"}) == older
    assert of_today(older, {"rounds"}) == {"rounds": 5, "unheard_of": 1}


def test_what_is_gone_is_left_out_where_it_was_what_is_always_done_now() -> None:
    assert of_today({"encoder_lr": 1e-3, "encoder_layers": 3}, ()) == {"encoder_layers": 3}


def test_a_run_from_before_a_rename_is_taken_over(tmp_path: Path) -> None:
    source = Source("csbm:nodes=80,classes=3,features=6", 3, "random")
    settings = {
        **{"rounds": 1, "hidden": 4, "generator_epochs": 1, "encoder_epochs": 1},
        "self_loops": "isolated",
    }
    cell = Cell("there", "feddep", source, 0, settings)
    ran: list[str] = []
    telling = Telling(round=lambda cell, _: ran.append(cell.name))
    assert not run_cells([cell], tmp_path / "a", Engine(workers=1), telling).failures
    assert "there" in ran
    record = read_json(tmp_path / "a/there/record.json")
    before = {**record["settings"], "hears_itself": "lonely"}
    del before["self_loops"]
    write_json(tmp_path / "a/there/record.json", {**record, "settings": before})
    engine = Engine(workers=1, reuse=(tmp_path / "a",))
    assert not run_cells([replace(cell, name="b")], tmp_path / "b", engine, telling).failures
    assert "b" not in ran
    other = replace(cell, name="c", settings={**settings, "self_loops": "none"})
    assert not run_cells([other], tmp_path / "c", engine, telling).failures
    assert "c" in ran
