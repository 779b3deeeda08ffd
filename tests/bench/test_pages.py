"""A page of results and the figures kept beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedmend.bench import Suite, parse
from fedmend.bench.pages import check_page, figures_of, update_page
from fedmend.bench.running import BenchPlan
from fedmend.errors import FileFormatError, SettingsError
from fedmend.reports import figures
from fedmend.runs.cells import Engine, Outcome, run_cells

TEXT = """
about = "a test"
datasets = ["csbm:nodes=90,classes=3,features=6"]
splits = ["random"]
silos = [2, 3]
seeds = 2
base = "fedavg"
[settings]
rounds = 2
batch_size = 8
[[rows]]
method = "fedavg"
[[rows]]
method = "local"
"""


@pytest.fixture(scope="module")
def suite() -> Suite:
    return parse("mine", TEXT)


@pytest.fixture(scope="module")
def whole(suite: Suite) -> BenchPlan:
    return BenchPlan(suite, {})


@pytest.fixture(scope="module")
def outcome(whole: BenchPlan, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    found = run_cells(whole.cells(), tmp_path_factory.mktemp("bench"), Engine(workers=1))
    assert found.failures == {}
    return found


def part_of(outcome: Outcome, words: str) -> Outcome:
    return Outcome({name: run for name, run in outcome.records.items() if words in name})


def test_several_suites_write_one_page(whole: BenchPlan, outcome: Outcome, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    update_page(page, whole, outcome)
    other = BenchPlan(replace(whole.suite, name="other", about="another"), {})
    update_page(page, other, outcome)
    before = page.read_text()
    update_page(page, whole, outcome)
    assert page.read_text() == before
    assert before.startswith("# Results")
    assert before.count("## mine") == before.count("## other") == 1
    assert "2 seeds (0 to 1)" in before
    assert "torch" in before
    page.write_text(before.replace("<!-- end of mine -->", ""))
    with pytest.raises(FileFormatError, match="marks of suite mine"):
        update_page(page, whole, outcome)


@pytest.mark.parametrize("words", ["random-2", "local", "seed-1", "majority"])
def test_parts_that_were_run_apart_make_the_same_page(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path, words: str
) -> None:
    once, twice = tmp_path / "once.md", tmp_path / "twice.md"
    update_page(once, whole, outcome)
    first = part_of(outcome, words)
    assert 0 < len(first.records) < len(outcome.records)
    update_page(twice, whole, first)
    rest = {name: run for name, run in outcome.records.items() if words not in name}
    assert twice.read_text() != once.read_text()
    update_page(twice, whole, Outcome(rest))
    assert twice.read_text() == once.read_text()
    kept = [figures_of(page, whole.suite).read_bytes() for page in (once, twice)]
    assert kept[0] == kept[1]


def test_what_has_not_been_run_is_not_on_the_page(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    page = tmp_path / "results.md"
    update_page(page, whole, part_of(outcome, "random-3/local"))
    text = page.read_text()
    assert "3 silos" in text
    assert "2 silos" not in text
    assert "| local |" in text
    assert "| fedavg |" not in text


def test_when_and_where_is_of_the_runs_and_not_of_the_writing(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    page = tmp_path / "results.md"
    runs = part_of(outcome, "fedavg").records
    days = ("2001-02-03T04:05:06+00:00", "2002-03-04T05:06:07+00:00")
    moved = {
        name: replace(run, measured=replace(run.measured, finished=day, machine="abacus"))
        for (name, run), day in zip(runs.items(), [*days, *days], strict=True)
    }
    update_page(page, whole, Outcome(moved))
    assert "2001-02-03 to 2002-03-04; abacus; fedmend" in page.read_text()


def test_figures_of_other_settings_are_not_mixed_in(
    suite: Suite, whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    page = tmp_path / "results.md"
    update_page(page, whole, outcome)
    longer = BenchPlan(suite, {"rounds": 3})
    part = BenchPlan(suite.only(silos=[2]), {"rounds": 3}).cells()
    with pytest.raises(SettingsError, match=r"figures of other settings, .*random-3/.* for one"):
        check_page(page, longer, part)
    check_page(page, longer, longer.cells())  # all of them are made anew
    check_page(page, whole, whole.cells()[:1])
    check_page(tmp_path / "new.md", longer, part)


def test_a_damaged_file_of_figures_is_told_before_anything_runs(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    page = tmp_path / "results.md"
    update_page(page, whole, outcome)
    path = figures_of(page, whole.suite)
    path.write_text(path.read_text().replace('"seed":1', '"seed":-1'))
    with pytest.raises(FileFormatError, match=r"mine\.jsonl, line \d+: seed is below 0"):
        check_page(page, whole, whole.cells())


def test_what_is_kept_has_no_weights_and_no_rounds(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    page = tmp_path / "results.md"
    update_page(page, whole, outcome)
    path = figures_of(page, whole.suite)
    assert figures.read(path).keys() == outcome.records.keys()
    runs = [json.loads(line) for line in path.read_text().splitlines() if '"name"' in line]
    assert all(len(json.dumps(run)) < 800 for run in runs)
