"""Dense products by oneDNN beside MKL's, and whole runs with the one and the other in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import (
    Measured,
    Options,
    Row,
    available,
    medians_in_turns,
    root_for,
    say,
    working_on,
)
from fedmend.data.datasets import load
from fedmend.data.partition import split
from fedmend.models.kernels import dense
from fedmend.runs.train import train

SHAPES = {
    "a mini-batch's first layer, PubMed": (300, 500, 128),
    "a mini-batch's first layer, Cora": (300, 1433, 128),
    "embeddings of a silo, PubMed": (3943, 128, 128),
    "generated features, CiteSeer": (333, 256, 3703),
}
"""Rows x inner x columns."""

RUNS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedavg", "pubmed"): {"rounds": 5},
    ("feddep", "pubmed"): {"rounds": 3, "encoder_epochs": 2, "generator_epochs": 10},
    ("fedsage+", "cora"): {"rounds": 2, "generator_epochs": 20, "generator_rounds": 2},
    ("fedsage+", "citeseer"): {"rounds": 2, "generator_epochs": 10, "generator_rounds": 1},
}
"""Short ones: what a run does most, a few times each."""


def dense_products(options: Options) -> Measured:
    """Products and whole runs, one thread; both libraries take turns."""
    repeats = 2 if options.quick else 9
    if not dense.mkl_holds_back():
        say("on this processor fedmend multiplies by MKL: what is measured here is not used")
    rows = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with working_on("dense products"):
            rows += [_product(what, shape, repeats) for what, shape in SHAPES.items()]
        for (method, dataset), settings in RUNS.items():
            if options.quick and dataset != "cora":
                continue
            if available(dataset, options.data_root):
                with working_on(f"{method} on {dataset}"):
                    rows.append(_run(method, dataset, settings, repeats, options))
    finally:
        torch.set_num_threads(before)
    return Measured(rows, {"repeats": repeats})


@contextmanager
def _by_onednn(chosen: bool) -> Iterator[None]:
    asked = dense.mkl_holds_back
    dense.mkl_holds_back = lambda: chosen  # type: ignore[assignment]  # put back below
    try:
        yield
    finally:
        dense.mkl_holds_back = asked


def _in_turns(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds by oneDNN and by MKL."""

    def with_choice(chosen: bool) -> None:
        with _by_onednn(chosen):
            work()

    with_choice(True)  # kernels are compiled when they are first asked for
    onednn, mkl = medians_in_turns(repeats, lambda: with_choice(True), lambda: with_choice(False))
    return onednn, mkl


def _product(what: str, shape: tuple[int, int, int], repeats: int) -> Row:
    rows, inner, columns = shape
    drawn = torch.Generator().manual_seed(0)
    left, right, told = (
        torch.randn(size, generator=drawn)
        for size in ((rows, inner), (inner, columns), (rows, columns))
    )

    def often(one: Tensor, other: Tensor) -> Callable[[], object]:
        return lambda: [dense.multiply(one, other) for _ in range(20)]

    return {
        "what": what,
        "shape": list(shape),
        "forward": _in_turns(often(left, right), repeats),
        "weights": _in_turns(often(left.t(), told), repeats),
        "billions": 20 * 2 * rows * inner * columns / 1e9,
    }


def _run(
    method: str, dataset: str, settings: dict[str, Any], repeats: int, options: Options
) -> Row:
    graph = load(dataset, data_root=root_for(dataset, options.data_root), download=False)
    silos = split(graph, silos=5, how="louvain", seed=0)
    seconds = _in_turns(
        lambda: train(method, silos, seed=0, workers=1, **settings), max(2, repeats // 2)
    )
    return {"method": method, "dataset": dataset, "settings": settings, "run": seconds}
