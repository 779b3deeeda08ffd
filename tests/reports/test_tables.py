"""Tables for the terminal: whatever its width, no name and no figure is cut short."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fedmend.data.partition import PartitionStatistics, SiloStatistics
from fedmend.reports import tables

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


def run(seed: int = 0, silos: int = 3, accuracy: float = 0.25) -> dict[str, Any]:
    left = {f"silo-{i:02d}": dict.fromkeys(KINDS, 1000 * i + 11) for i in range(silos)}
    return {
        "method": "feddep",
        "seed": seed,
        "dataset": "csbm:nodes=200,classes=3,features=8",
        "evaluation": "global-graph",
        "split": {"how": "louvain", "seed": seed, "hash": f"{seed}"},
        "content_hash": "",
        "data": {"silos": silos, "missing_share": 0.2},
        "pooled": False,
        "result": {"accuracy": accuracy + seed / 100, "macro_f1": 0.125},
        "bytes": {"up": 235_100_000, "down": 5, "left_by_silo": left},
        "measured": {"seconds": 13.25},
    }


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
    assert "All raw data was pooled" in str(tables.what_left({**run(), "pooled": True}))


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
