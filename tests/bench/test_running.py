"""A small suite from its file to its tables."""

from __future__ import annotations

import csv
import html
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedmend.bench import Suite, parse
from fedmend.bench.running import BenchPlan, run_bench
from fedmend.evaluation.summary import Share
from fedmend.reports import bench_formats
from fedmend.reports.benches import Block
from fedmend.runs.cells import Engine, Outcome, Telling

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
label = "lo_cal & <co>"
"""

BASELINES = ["logistic*", "mlp*"]


@pytest.fixture(scope="module")
def plan() -> BenchPlan:
    return BenchPlan(parse("mine", TEXT), {})


@pytest.fixture(scope="module")
def done(plan: BenchPlan, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Block], Path]:
    out = tmp_path_factory.mktemp("bench")
    blocks, outcome = run_bench(plan, out, Engine(workers=1), Telling())
    assert outcome.failures == {}
    return blocks, out


def test_every_table_has_the_baselines_and_the_split(done: tuple[list[Block], Path]) -> None:
    blocks, _ = done
    assert [block.silos for block in blocks] == [2, 3]
    for block in blocks:
        labels = [line.label for line in block.lines]
        assert labels == ["fedavg", "lo_cal & <co>", "majority", "logistic", "mlp"]
        assert [line.baseline for line in block.lines] == [False, False, True, True, True]
        assert block.warnings == ()
        assert block.missing_share is not None
        assert "edges between silos" in block.about
        assert "label skew" in block.about
        assert len(block.hashes) == 2
        assert all(line.paired for line in block.lines[1:])
        assert len(block.pairs) == 1


def test_files_are_written_and_agree(done: tuple[list[Block], Path]) -> None:
    blocks, out = done
    saved = json.loads((out / "bench.json").read_text())
    first = blocks[0].lines[0].accuracy
    assert first is not None
    assert saved["tables"][0]["lines"][0]["accuracy"]["mean"] == first.mean
    rows = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    assert len(rows) == 10
    assert float(rows[0]["accuracy"]) == first.mean
    shown = f"{first.mean:.4f} ± {first.interval:.4f}"
    assert shown in (out / "table.md").read_text()
    assert shown.replace("±", r"$\pm$") in (out / "table.tex").read_text()
    assert r"lo\_cal \& $<$co>" in (out / "table.tex").read_text()
    page = (out / "table.html").read_text()
    assert shown in page
    assert "lo_cal &amp; &lt;co&gt;" in page
    assert "<co>" not in page
    assert "http" not in page
    HTMLParser().feed(page)


def test_the_overview_puts_blocks_side_by_side(done: tuple[list[Block], Path]) -> None:
    blocks, out = done
    (overview,) = bench_formats.overviews(blocks)
    dataset = blocks[0].dataset
    assert overview.heads == ["random", f"{dataset}, 2 silos", f"{dataset}, 3 silos"]
    assert [row[0] for row in overview.rows][1:] == ["lo_cal & <co>", "majority*", *BASELINES]
    for place, block in enumerate(blocks, 1):
        for row, line in zip(overview.rows, block.lines, strict=True):
            assert line.accuracy is not None
            assert row[place].startswith(f"{line.accuracy.mean:.4f}")
    assert " | ".join(overview.rows[0]) in (out / "table.md").read_text()
    assert f"<td>{overview.rows[0][1]}</td>" in (out / "table.html").read_text()
    assert len(bench_formats.terminal_overviews(blocks)) == 1
    assert bench_formats.overviews(blocks[:1]) == []  # one block alone is its own overview
    elsewhere = replace(blocks[1], split="louvain")
    assert bench_formats.overviews([blocks[0], elsewhere]) == []


def test_the_overview_marks_what_surely_differs_from_the_base(
    done: tuple[list[Block], Path],
) -> None:
    blocks, _ = done
    marks = []
    for difference, p in ((0.1, 0.049), (-0.1, 0.049), (0.1, 0.05), (-0.1, None)):
        base, line, *_ = blocks[0].lines
        assert line.paired is not None
        far = replace(line.paired.difference, mean=difference)
        line = replace(line, paired=replace(line.paired, difference=far, adjusted=p))
        block = replace(blocks[0], lines=(base, line))
        (overview,) = bench_formats.overviews([block, replace(block, lines=(base,))])
        marks.append(overview.rows[1][1][6:])
        assert overview.rows[1][2] == ""  # the other block has no such row
        assert overview.rows[0][1][6:] == ""
    assert marks == [" ↑", " ↓", "", ""]
    assert any("p < 0.05" in note for note in bench_formats.notes(blocks))
    assert not any("p < 0.05" in note for note in bench_formats.notes(blocks[:1]))


def test_a_second_run_finds_everything(plan: BenchPlan, done: tuple[list[Block], Path]) -> None:
    blocks, out = done
    rounds: list[str] = []
    telling = Telling(round=lambda cell, _: rounds.append(cell.name))
    again, _ = run_bench(plan, out, Engine(workers=1), telling)
    assert rounds == []
    assert [block.as_dict() for block in again] == [block.as_dict() for block in blocks]


def test_rows_tested_in_another_mode_are_warned_about(
    plan: BenchPlan, done: tuple[list[Block], Path], tmp_path: Path
) -> None:
    fedavg, local = plan.suite.rows
    mixed: Suite = replace(
        plan.suite, rows=(fedavg, replace(local, evaluation="own-subgraph")), silos=(2,)
    )
    blocks, _ = run_bench(BenchPlan(mixed, {}), tmp_path, Engine(workers=1), Telling())
    assert "evaluation differs" in blocks[0].warnings[0]
    assert blocks[0].lines[1].paired is None  # and are not compared
    assert "Warning" in (tmp_path / "table.md").read_text()
    assert html.escape(blocks[0].warnings[0]) in (tmp_path / "table.html").read_text()


def test_how_far_rows_go_between_two_others(plan: BenchPlan, tmp_path: Path) -> None:
    """A row equal to the far end goes all of the way; the ends and baselines are not asked."""
    fedavg, local = plan.suite.rows
    ends = ("majority", "top")  # far enough apart for three seeds to tell
    rows = [fedavg, *(replace(local, label=label, between=ends) for label in ("top", "same"))]
    suite: Suite = replace(plan.suite, rows=tuple(rows), silos=(3,), seeds=3)
    learned = BenchPlan(suite, {"rounds": 15, "lr": 0.02})
    blocks, _ = run_bench(learned, tmp_path, Engine(workers=1), Telling())
    lines = {line.label: line for line in blocks[0].lines}
    assert [label for label, line in lines.items() if line.recovered] == ["same"]
    share = lines["same"].recovered
    assert isinstance(share, Share)
    assert (share.value, share.low, share.high) == pytest.approx((1, 1, 1))
    assert "100% (100% to 100%)" in (tmp_path / "table.md").read_text()
    row = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))[2]
    assert row["row"] == "same"
    assert float(row["recovered"]) == pytest.approx(1.0)
    assert any("majority to top" in note for note in bench_formats.notes(blocks))
    assert [row.between for row in suite.only(rows=["fedavg", "same"]).rows] == [None, None]
    here = replace(suite, rows=(rows[0], replace(rows[1], between=("fedavg", "top"))))
    assert here.only(rows=["fedavg", "top"]).rows[1].between == ("fedavg", "top")


def test_what_failed_or_has_not_run_is_shown_as_such(plan: BenchPlan) -> None:
    place = plan.places[0]
    name = plan.cell(place, plan.rows[0], 1).name
    block = plan.block(place, Outcome({}, {name: "why"}))
    assert block.lines[0].failed == 1
    assert "failed (1)" in bench_formats.markdown([block])
    assert "nothing has finished yet" in block.about
    assert plan.place_of(name) == place
