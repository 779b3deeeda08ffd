"""The contextual stochastic block model: exact counts, uniform pairs, features with a signal."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.csbm import _distinct, _draw_between, _draw_within, csbm
from fedmend.data.datasets import load
from fedmend.errors import SettingsError


@pytest.mark.parametrize(
    ("nodes", "edges", "classes", "homophily"),
    [(1000, 5000, 4, 0.8), (101, 700, 7, 0.25), (50, 0, 3, 0.5), (40, 180, 4, 1.0), (9, 27, 3, 0)],
)
def test_counts_are_exact(nodes: int, edges: int, classes: int, homophily: float) -> None:
    graph = csbm(nodes, edges=edges, classes=classes, features=5, homophily=homophily)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, edges, 5)
    ends = graph.y[graph.edges]
    assert int((ends[0] == ends[1]).sum()) == round(homophily * edges)
    sizes = torch.bincount(graph.y, minlength=classes)
    assert int(sizes.max() - sizes.min()) <= 1
    assert not (graph.train_mask | graph.val_mask | graph.test_mask).any()


def test_degree_is_the_mean_degree() -> None:
    assert csbm(200, degree=7.0).degree.float().mean() == 7
    assert csbm(200).degree.float().mean() == 10


def test_a_complete_graph() -> None:
    assert csbm(20, edges=190, classes=2, homophily=90 / 190).num_edges == 190


def test_the_seed_decides() -> None:
    one, same, other = csbm(seed=3), csbm(seed=3), csbm(seed=4)
    assert torch.equal(one.x, same.x)
    assert torch.equal(one.edge_index, same.edge_index)
    assert torch.equal(one.y, same.y)
    assert not torch.equal(one.x, other.x)
    assert not torch.equal(one.edge_index, other.edge_index)


def test_features_are_class_means_and_unit_noise() -> None:
    graph = csbm(nodes=20_000, degree=1, classes=2, features=8, signal=3.0)
    assert graph.x.dtype == torch.float32
    for label in (0, 1):
        rows = graph.x[graph.y == label]
        assert float(rows.mean(0).norm()) == pytest.approx(3.0, abs=0.1)
        assert float(rows.std(0).mean()) == pytest.approx(1.0, abs=0.02)
    silent = csbm(nodes=20_000, degree=1, classes=2, features=8, signal=0)
    assert float(silent.x.mean(0).norm()) < 0.05


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2**32))
def test_pairs_are_numbered_without_gap_or_repeat(sizes: list[int], seed: int) -> None:
    """Drawing all pairs there are must give each of them once."""
    size = np.array(sizes)
    label = np.repeat(np.arange(len(size)), size)
    every = list(itertools.combinations(range(len(label)), 2))
    for draw, alike in ((_draw_within, True), (_draw_between, False)):
        expected = {(a, b) for a, b in every if (label[a] == label[b]) == alike}
        out = np.empty((2, len(expected)), dtype=np.int64)
        draw(np.random.default_rng(seed), size, len(expected), out)
        assert {(min(a, b), max(a, b)) for a, b in out.T.tolist()} == expected


def test_the_triangle_is_decoded_right_where_floats_round() -> None:
    """One class of 10**8 nodes: ranks up to 5 * 10**15 need the correction after the root."""
    size = np.array([100_000_000])
    out = np.empty((2, 50_000), dtype=np.int64)
    _draw_within(np.random.default_rng(0), size, 50_000, out)
    assert (out[1] >= 0).all()
    assert (out[0] > out[1]).all()
    assert (out[0] < size[0]).all()


@given(st.integers(0, 300), st.data())
def test_distinct_numbers(population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    drawn = _distinct(np.random.default_rng(0), population, count)
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert all(0 <= number < population for number in drawn)


def test_distinct_numbers_are_uniform() -> None:
    """All 10 pairs out of 5 numbers equally often, and all their complements."""
    rng = np.random.default_rng(1)
    for count in (2, 3):
        seen = Counter(tuple(_distinct(rng, 5, count).tolist()) for _ in range(5000))
        assert len(seen) == 10
        # 500 expected each; a binomial of 5000 draws strays by more than 5 sigma once in a million.
        assert all(abs(times - 500) < 5 * math.sqrt(450) for times in seen.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "nodes must be a whole number from 1, got 0"),
        ({"nodes": 10.5}, "nodes must be a whole number from 1, got 10.5"),
        ({"nodes": 10**9}, "nodes must be at most 100000000"),
        ({"classes": 5, "nodes": 4}, "5 classes need at least 5 nodes, got 4"),
        ({"edges": -1}, "edges must be a whole number from 0, got -1"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"features": True}, "features must be a whole number from 1"),
        ({"degree": float("nan")}, "degree must be a number from 0"),
        ({"degree": 3, "edges": 5}, "give degree or edges, not both"),
        ({"homophily": 1.2}, "homophily must be from 0 to 1, got 1.2"),
        ({"signal": "x"}, "signal must be a number from 0, got 'x'"),
        (
            {"nodes": 8, "classes": 4, "edges": 10, "homophily": 0.5},
            "5 edges inside classes are wanted, but 8 nodes in 4 classes have only 4",
        ),
        (
            {"nodes": 5, "classes": 1, "edges": 10, "homophily": 0.9},
            "1 edges between classes are wanted, but 5 nodes in 1 classes have only 0",
        ),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load("csbm", **options)
