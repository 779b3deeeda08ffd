"""Tables for the terminal: whatever its width, no name and no figure is cut short."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fedmend.data.partition import PartitionStatistics, SiloStatistics
from fedmend.evaluation.summary import Share, Summary
from fedmend.reports import bench_formats, studies, tables
from fedmend.reports.benches import Block, Line
from fedmend.reports.comparing import AgainstPublished, Paired
from fedmend.runs.record import Figures
from tests.tiny import some_figures

KINDS = ("control", "counts", "framing", "gradients", "metrics", "pseudonyms", "sealed", "shares")
METHODS = ("feddep-no-dgen", "feddep-no-proto")
WIDTHS = (40, 60, 80, 120, 200)


def drawn(shown: RenderableType, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(shown)
    text = file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    return text


def run(seed: int = 0, silos: int = 3, accuracy: float = 0.25, **changes: Any) -> Figures:
    left = {f"silo-{i:02d}": dict.fromkeys(KINDS, 1000 * i + 11) for i in range(silos)}
    return some_figures(
        method="feddep",
        seed=seed,
        dataset="csbm:nodes=200,classes=3,features=8",
        split={"how": "louvain", "seed": seed, "hash": f"{seed}"},
        data={"silos": silos, "missing_share": 0.2},
        result={
            "mode": "global-graph",
            "accuracy": accuracy + seed / 100,
            "macro_f1": 0.125,
            "test_nodes": 1,
        },
        bytes={"up": 235_100_000, "down": 5, "left_by_silo": left},
        measured={"seconds": 13.25},
        **changes,
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("silos", [1, 3, 12, 30])
def test_what_left_names_every_kind_and_silo(width: int, silos: int) -> None:
    shown = tables.what_left(run(silos=silos))
    text = drawn(shown, width)
    for kind in KINDS:
        assert kind in text
    assert "silo-00" in text
    assert "total" in text
    assert "11 B" in text
    assert (f"all {silos}" in text) == (silos > 1)
    assert ("of 30 silos" in " ".join(text.split())) == (silos == 30)


def test_what_left_of_a_pooled_run_is_everything() -> None:
    assert "All raw data was pooled" in str(tables.what_left(run(pooled=True)))


def test_the_layout_is_the_widest_that_fits() -> None:
    shown = tables.what_left(run())
    heads = [drawn(shown, width).splitlines()[2] for width in (120, 80)]
    assert "silo " in heads[0]
    assert "gradients" in heads[0]
    assert "silo-00" in heads[1]  # turned: the kinds are rows
    assert len(drawn(shown, 40).splitlines()) > 30  # one below the other


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_comparison_names_every_method_and_figure(width: int, seeds: int) -> None:
    found = {
        name: [run(seed, accuracy=0.25 + i / 2) for seed in range(seeds)]
        for i, name in enumerate(METHODS)
    }
    text = drawn(tables.comparison(found), width)
    figures = ["0.2550", "0.7550"] if seeds == 2 else ["0.2500", "0.7500"]
    for wanted in (*METHODS, *figures, "0.1250", "+0.5000", "13.2", "235.1 MB", "against"):
        assert wanted in text
    assert ("±" in text) == (seeds == 2)


def test_one_method_is_against_none() -> None:
    assert "against" not in drawn(tables.comparison({"fedavg": [run()]}), 80)


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("count", [2, 13])
def test_silos_of_a_cut_graph(width: int, count: int) -> None:
    silo = SiloStatistics("hospital-of-the-north", 1234, 56789, 741, 247, 246, {"a": 3, "b": 0})
    statistics = PartitionStatistics(count, 1234.0, 56789.0, None, None, (silo,) * count)
    text = drawn(tables.partition_table(statistics), width)
    assert text.count("hospital-of-the-north") == min(count, tables.MOST_SILOS)
    assert "56789" in text
    assert "1 of 2" in text
    assert ("..." in text) == (count > tables.MOST_SILOS)


def line(name: str, base: str) -> Line:
    accuracy = Summary(0.8765, 0.01, 0.0123, 5)
    return Line(
        label=name,
        method=name,
        baseline=False,
        seeds=(0, 1, 2, 3, 4),
        failed=0,
        accuracy=accuracy,
        macro_f1=accuracy,
        published=AgainstPublished(0.8543, 0.0045, 0.0222, 0.0067, "above"),
        paired=None if name == base else Paired(name, base, accuracy, 0.03, 0.0321),
        seconds=153.25,
        sent="235.1 MB",
        recovered=None if name == base else Share(0.64, 0.29, 1.31),
        between=None,
    )


def block(silos: int) -> Block:
    base = METHODS[0]
    lines = tuple(line(name, base) for name in METHODS)
    about = ("pubmed", "louvain", silos, base, "global-graph", "60/20/20", 0.2, 0.3, {0: "x"})
    return Block(*about, lines, (), ("rows differ",))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_suite_names_every_row_and_figure(width: int) -> None:
    text = drawn(bench_formats.terminal(block(3)), width)
    figures = ("0.8765", "± 0.0123", "0.8543", "± 0.0045", "▲ +0.0222", "p 0.032", "64%", "131%)")
    for wanted in (*METHODS, *figures, "153.2 s", "235.1 MB", "against", "published"):
        assert wanted in text


@pytest.mark.parametrize("width", WIDTHS)
def test_suites_side_by_side(width: int) -> None:
    (overview,) = bench_formats.terminal_overviews([block(silos) for silos in (3, 5, 10)])
    text = drawn(overview, width)
    assert text.count("0.8765 ↑") == 3  # the base row has no mark
    for wanted in METHODS:
        assert wanted in text
    heads = " ".join(text.split())
    assert "pubmed, 3 silos" in heads or "pubmed, pubmed, pubmed, 3 5 10 louvain silos" in heads


@pytest.mark.parametrize("width", WIDTHS)
def test_a_study_of_many_methods(width: int) -> None:
    accuracy = Summary(0.8765, 0.01, 0.0123, 5)
    names = ("fedavg", "fedsage+", "feddep", *METHODS, "feddep-no-nfdp")
    entries = [
        studies.Entry(
            *(value, float(value), name, name, (0, 1), accuracy, accuracy),
            *(None if name == names[0] else accuracy, 1.0, 2.0, 3.0, 0.2),
        )
        for value in ("0.25", "0.75")
        for name in names
    ]
    text = drawn(studies.table("How much is hidden", "hide", entries), width)
    for figure in ("0.8765", "0.0123"):  # everywhere but in the base's differences
        assert text.count(figure) == 2 * (2 * len(names) - 1)
    for wanted in (*names, "0.25", "0.75"):
        assert wanted in text
