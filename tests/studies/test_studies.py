"""The registry of studies, and the cells and lines they become."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedmend.errors import SettingsError, UnknownNameError
from fedmend.evaluation.summary import summarise
from fedmend.methods import METHODS
from fedmend.reports import studies as reports
from fedmend.runs.cells import Engine, Outcome, Telling, known_settings, run_cells
from fedmend.runs.plan import Source
from fedmend.runs.train import configure
from fedmend.studies import (
    ALL,
    STUDIES,
    Point,
    Study,
    choose_points,
    find,
    over,
    over_silos,
    separate,
)
from fedmend.studies.running import StudyPlan, gather, run_study
from tests.tiny import QUICK

SOURCE = Source("csbm:nodes=80,classes=3,features=6", 3, "random")
ONE = Engine(workers=1)
WIDTH = Study("w", "width", "none", "hidden", over("hidden", 4, 8), ("fedavg", "local"))


def plan(study: Study, seeds: tuple[int, ...] = (0, 1), **settings: object) -> StudyPlan:
    quick = {key: value for key, value in QUICK.items() if key != "hidden"}
    return StudyPlan(study, SOURCE, seeds, study.points, study.methods, {**quick, **settings})


PENDING_METHODS: set[str] = set()
"""Methods that studies name before they are here: none today."""


def test_studies_wait_for_known_methods_only() -> None:
    for study in ALL.values():
        stand_ins = {to for point in study.points for to in point.instead.values()}
        named = {*study.methods, *study.needs, *stand_ins}
        assert named - set(METHODS) <= PENDING_METHODS, study.name
        assert stand_ins <= {*study.needs, *METHODS}, study.name
    assert {"layers", "width", "silos", "local-epochs"} <= set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_names_methods_and_settings_that_exist(name: str) -> None:
    study = STUDIES[name]
    assert study.name == name
    assert study.points
    assert study.repeats
    made = StudyPlan(study, Source("cora"), (0,), study.points, study.methods, {})
    for cell in made.cells():
        configure(cell.method, cell.settings)  # knows every setting and allows every value
    for point in study.points:
        for key in (*study.settings, *point.settings):
            assert any(key in known_settings(each) for each in made.ran), key


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_varies_something_for_each_point(name: str) -> None:
    study = STUDIES[name]
    made = StudyPlan(study, Source("cora"), (0,), study.points, study.methods, {})
    at = [{made.cell(point, each, 0).name for each in study.methods} for point in study.points]
    assert all(one != other for i, one in enumerate(at) for other in at[:i])


def test_a_study_of_a_setting_runs_and_pairs(tmp_path: Path) -> None:
    made = plan(WIDTH)
    entries, failures = run_study(made, tmp_path, ONE, Telling())
    assert failures == {}
    assert [(each.value, each.method) for each in entries] == [
        ("4", "fedavg"),
        ("4", "local"),
        ("8", "fedavg"),
        ("8", "local"),
    ]
    record = json.loads((tmp_path / "local/8/seed-1/record.json").read_text())
    assert record["settings"]["hidden"] == 8
    # The paired difference, by hand from the run folders.
    by_hand = [
        json.loads((tmp_path / f"local/8/seed-{seed}/record.json").read_text())["result"][
            "accuracy"
        ]
        - json.loads((tmp_path / f"fedavg/8/seed-{seed}/record.json").read_text())["result"][
            "accuracy"
        ]
        for seed in (0, 1)
    ]
    assert entries[3].difference == summarise(by_hand)
    assert entries[0].difference is None
    saved = json.loads((tmp_path / "study.json").read_text())
    assert saved["entries"][3]["difference"]["mean"] == pytest.approx(sum(by_hand) / 2)
    lines = (tmp_path / "study.csv").read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("hidden,method,ran,seeds,accuracy")


def test_a_method_without_the_setting_runs_once(tmp_path: Path) -> None:
    study = Study("mu", "pull", "none", "mu", over("mu", 0.0, 1.0), ("fedavg", "fedprox"))
    made = plan(study, (0,))
    assert [cell.name for cell in made.cells()] == [
        "fedavg/any/seed-0",
        "fedprox/0.0/seed-0",
        "fedprox/1.0/seed-0",
    ]
    entries, _ = run_study(made, tmp_path, ONE, Telling())
    fedavg, prox_at_0, again, _ = entries
    assert fedavg.accuracy == again.accuracy
    assert prox_at_0.difference is not None
    assert prox_at_0.difference.mean == 0.0  # FedProx at mu=0 is FedAvg


def test_another_method_may_take_a_place() -> None:
    points = (Point("0", instead={"fedprox": "fedavg"}), *over("mu", 1.0))
    study = Study("mu", "pull", "none", "mu", points, ("local", "fedprox"))
    made = plan(study, (0,))
    assert [(cell.name, cell.method) for cell in made.cells()] == [
        ("local/any/seed-0", "local"),
        ("fedavg/0/seed-0", "fedavg"),
        ("fedprox/1.0/seed-0", "fedprox"),
    ]
    assert "mu" not in made.cells()[1].settings


def test_the_number_of_silos_and_bundles_vary_too() -> None:
    points = (*over_silos(2, 4), Point("few, wide", {"hidden": 64}, silos=2))
    made = plan(Study("s", "silos", "none", "silos", points, ("fedavg",)), (0,))
    assert [cell.source.silos for cell in made.cells()] == [2, 4, 2]
    assert made.cells()[2].name == "fedavg/few--wide/seed-0"
    assert made.cells()[2].settings["hidden"] == 64


def test_what_a_name_implies_goes_before_the_studys_settings() -> None:
    study = Study(
        "w", "", "", "hidden", over("hidden", 4), ("fedsage", "fedavg"), {"backbone": "gcn"}
    )
    sage, avg = plan(study, (0,)).cells()
    assert "backbone" not in sage.settings
    assert avg.settings["backbone"] == "gcn"


def test_values_of_ones_own() -> None:
    assert [p.settings for p in choose_points(find("layers"), ["2", "3"])] == [
        {"layers": 2},
        {"layers": "3"},
    ]
    assert [p.silos for p in choose_points(find("silos"), ["7"])] == [7]
    bundles = Study("b", "", "", "b", (Point("a", {"hidden": 4, "layers": 1}),), ("fedavg",))
    with pytest.raises(SettingsError, match="unknown point of study b: 'z'"):
        choose_points(bundles, ["z"])
    for wrong in (["0"], ["x"], []):
        with pytest.raises(SettingsError):
            choose_points(find("silos"), wrong)
    with pytest.raises(SettingsError, match="twice"):
        choose_points(find("layers"), ["2", "2"])


def test_a_label_may_hold_the_separator_of_values() -> None:
    privacy = find("privacy")
    one, two, three = (point.label for point in privacy.points)
    assert separate(privacy, f"{three},{one}") == [three, one]
    assert separate(privacy, "5 silos,sigma 2.1") == [two]
    assert separate(privacy, "3 silos, sigma 9") == ["3 silos", "sigma 9"]
    assert separate(find("layers"), "1, 2,,3") == ["1", "2", "3"]
    for label in (one, two, three):
        assert choose_points(privacy, separate(privacy, label))[0].label == label
    with pytest.raises(SettingsError, match=r"known: 3 silos, sigma 4\.2; 5 silos, sigma 2\.1; 10"):
        choose_points(privacy, separate(privacy, "3 silos"))


def test_where_all_fails_earlier_files_stay(tmp_path: Path) -> None:
    run_study(plan(WIDTH, (0,)), tmp_path, ONE, Telling())
    before = {name: (tmp_path / name).read_bytes() for name in ("study.json", "study.csv")}
    too_many = replace(plan(WIDTH, (1,)), source=replace(SOURCE, silos=1000))
    _, failures = run_study(too_many, tmp_path, ONE, Telling())
    assert len(failures) == 4
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_plans_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown setting 'hiden'"):
        plan(WIDTH, hiden=3)
    with pytest.raises(SettingsError, match="use --values"):
        plan(WIDTH, hidden=3)
    with pytest.raises(SettingsError, match="varies mu, which none of fedavg has"):
        plan(Study("m", "", "", "mu", over("mu", 1.0), ("fedavg",)))
    with pytest.raises(SettingsError, match="each once"):
        StudyPlan(WIDTH, SOURCE, (0,), WIDTH.points, ("fedavg", "fedavg"), {})


def test_lines_of_what_is_not_finished(tmp_path: Path) -> None:
    made = plan(WIDTH)
    names = [cell for cell in made.cells() if cell.name.startswith("fedavg/4/")]
    entries = gather(made, run_cells(names, tmp_path, ONE))
    assert [bool(each.seeds) for each in entries] == [True, False, False, False]
    assert gather(made, Outcome())[0].accuracy is None
    assert reports.plot("t", "hidden", entries, tmp_path) == [
        tmp_path / "study.svg",
        tmp_path / "study.png",
    ]
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "study.svg").read_bytes()
