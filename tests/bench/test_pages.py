"""Pages of results, their index, and the figures kept beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedmend.bench import Suite, find, parse, shipped
from fedmend.bench.pages import check_page, figures_of, page_of, update_page
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


def test_every_suite_has_a_page_and_the_index_leads_to_all(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    update_page(tmp_path, whole, outcome)
    other = BenchPlan(replace(whole.suite, name="an other", about="another"), {})
    update_page(tmp_path, other, outcome)
    page, index = page_of(tmp_path, whole.suite), tmp_path / "README.md"
    before = page.read_text(), index.read_text()
    update_page(tmp_path, whole, outcome)
    assert (page.read_text(), index.read_text()) == before
    assert "\n# mine\n" in before[0]
    assert "other" not in before[0]
    assert "2 seeds (0 to 1)" in before[0]
    assert "torch" in before[0]
    assert "- [an other](an%20other.md): another.\n- [mine](mine.md): a test.\n" in before[1]


def test_what_was_written_by_hand_stays(whole: BenchPlan, outcome: Outcome, tmp_path: Path) -> None:
    update_page(tmp_path, whole, part_of(outcome, "random-2"))
    for path in (page_of(tmp_path, whole.suite), tmp_path / "README.md"):
        path.write_text(f"Before.\n\n{path.read_text()}\nAfter.\n")
    update_page(tmp_path, whole, outcome)
    for path in (page_of(tmp_path, whole.suite), tmp_path / "README.md"):
        text = path.read_text()
        assert text.startswith("Before.\n")
        assert text.endswith("\nAfter.\n")
    assert "3 silos" in page_of(tmp_path, whole.suite).read_text()


@pytest.mark.parametrize("name", ["mine.md", "README.md"])
def test_marks_that_do_not_match_are_told_before_anything_runs(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path, name: str
) -> None:
    update_page(tmp_path, whole, outcome)
    path = tmp_path / name
    path.write_text(path.read_text().replace("<!-- end of", "<!--"))
    with pytest.raises(FileFormatError, match=rf"{name}: the marks .* do not match"):
        check_page(tmp_path, whole, whole.cells())


def test_a_suite_cannot_be_called_as_the_index_is(whole: BenchPlan, tmp_path: Path) -> None:
    named = BenchPlan(replace(whole.suite, name="readme"), {})
    with pytest.raises(SettingsError, match="is the index"):
        check_page(tmp_path, named, [])


@pytest.mark.parametrize("words", ["random-2", "local", "seed-1", "majority"])
def test_parts_that_were_run_apart_make_the_same_page(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path, words: str
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    update_page(once, whole, outcome)
    first = part_of(outcome, words)
    assert 0 < len(first.records) < len(outcome.records)
    update_page(twice, whole, first)
    rest = {name: run for name, run in outcome.records.items() if words not in name}
    one, other = (page_of(folder, whole.suite) for folder in (once, twice))
    assert other.read_text() != one.read_text()
    update_page(twice, whole, Outcome(rest))
    assert other.read_text() == one.read_text()
    kept = [figures_of(folder, whole.suite).read_bytes() for folder in (once, twice)]
    assert kept[0] == kept[1]


def test_what_has_not_been_run_is_not_on_the_page(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    update_page(tmp_path, whole, part_of(outcome, "random-3/local"))
    text = page_of(tmp_path, whole.suite).read_text()
    assert "3 silos" in text
    assert "2 silos" not in text
    assert "| local |" in text
    assert "| fedavg |" not in text


def test_when_and_where_is_of_the_runs_and_not_of_the_writing(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    runs = part_of(outcome, "fedavg").records
    days = ("2001-02-03T04:05:06+00:00", "2002-03-04T05:06:07+00:00")
    moved = {
        name: replace(run, measured=replace(run.measured, finished=day, machine="abacus"))
        for (name, run), day in zip(runs.items(), [*days, *days], strict=True)
    }
    update_page(tmp_path, whole, Outcome(moved))
    text = page_of(tmp_path, whole.suite).read_text()
    assert "2001-02-03 to 2002-03-04; abacus; fedmend" in text


def test_figures_of_other_settings_are_not_mixed_in(
    suite: Suite, whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    update_page(tmp_path, whole, outcome)
    longer = BenchPlan(suite, {"rounds": 3})
    part = BenchPlan(suite.only(silos=[2]), {"rounds": 3}).cells()
    with pytest.raises(SettingsError, match=r"figures of other settings, .*random-3/.* for one"):
        check_page(tmp_path, longer, part)
    check_page(tmp_path, longer, longer.cells())  # all of them are made anew
    check_page(tmp_path, whole, whole.cells()[:1])
    check_page(tmp_path / "new", longer, part)


def test_a_damaged_file_of_figures_is_told_before_anything_runs(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    update_page(tmp_path, whole, outcome)
    path = figures_of(tmp_path, whole.suite)
    path.write_text(path.read_text().replace('"seed":1', '"seed":-1'))
    with pytest.raises(FileFormatError, match=r"mine\.jsonl, line \d+: seed is below 0"):
        check_page(tmp_path, whole, whole.cells())


def test_what_is_kept_has_no_weights_and_no_rounds(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    update_page(tmp_path, whole, outcome)
    path = figures_of(tmp_path, whole.suite)
    assert figures.read(path).keys() == outcome.records.keys()
    runs = [json.loads(line) for line in path.read_text().splitlines() if '"name"' in line]
    assert all(len(json.dumps(run)) < 800 for run in runs)


def test_what_really_ran_is_kept_shown_and_forgotten_with_the_run(
    whole: BenchPlan, outcome: Outcome, tmp_path: Path
) -> None:
    older = {
        name: replace(run, ran="Made before rounds.") if "fedavg" in name else run
        for name, run in outcome.records.items()
    }
    update_page(tmp_path, whole, Outcome(older))
    update_page(tmp_path, whole, part_of(outcome, "local"))
    data = whole.suite.datasets[0]
    note = f"Made before rounds. So it is with fedavg: {data}, random (2, 3)."
    assert note in page_of(tmp_path, whole.suite).read_text()
    kept = figures.read(figures_of(tmp_path, whole.suite))
    assert sum(run.ran == "Made before rounds." for run in kept.values()) == 4
    update_page(tmp_path, whole, part_of(outcome, "random-2/fedavg"))
    assert f"fedavg: {data}, random (3)." in page_of(tmp_path, whole.suite).read_text()


RESULTS = Path(__file__).parent.parent.parent / "docs/results"
KEPT = sorted(path.stem for path in (RESULTS / "figures").glob("*.jsonl"))


@pytest.mark.parametrize("name", KEPT)
def test_the_project_s_kept_figures_are_of_the_suites_as_they_are(name: str) -> None:
    """Where a setting gets another name, say so in `runs.renamed`; where its default changes, the
    rows concerned are run again."""
    check_page(RESULTS, BenchPlan(find(name), {}), [])


@pytest.mark.parametrize("name", KEPT)
def test_the_project_s_older_runs_say_what_ran(name: str) -> None:
    """`self_loops` came at 10:07 on 18 November 2026; what had run before was given it by hand."""
    before = [
        run
        for run in figures.read(RESULTS / "figures" / f"{name}.jsonl").values()
        if "self_loops" in run.settings and run.measured.finished < "2026-11-18T10:06:59+00:00"
    ]
    assert [run for run in before if "before `self_loops`" not in run.ran] == []
    page = (RESULTS / f"{name}.md").read_text()
    assert all(run.ran in page for run in before)
    assert bool(before) == name.startswith(("feddep", "mending"))


def test_every_suite_of_a_paper_has_its_page() -> None:
    pages = {path.stem for path in RESULTS.glob("*.md")}
    assert {name for name, suite in shipped().items() if suite.paper} <= pages | {"quick"}
