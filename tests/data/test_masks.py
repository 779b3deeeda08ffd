"""Roles drawn at random: exact numbers, labelled nodes only, uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from fedmend.data.csbm import csbm
from fedmend.data.masks import random_masks
from fedmend.data.partition import split
from fedmend.errors import GraphError, SettingsError
from fedmend.graph import Graph

NO_EDGES = np.zeros((2, 0), dtype=np.int64)


def graph_of(labels: list[int]) -> Graph:
    return Graph(np.zeros((len(labels), 1)), NO_EDGES, labels)


@given(
    st.lists(st.integers(-1, 2), min_size=1, max_size=60).filter(lambda y: max(y) >= 0),
    st.sampled_from([(0.6, 0.2, 0.2), (0.1, 0.1, 0.8), (0.3, 0.1, 0.2), (1 / 3, 1 / 3, 1 / 3)]),
)
def test_numbers_are_exact(labels: list[int], ratio: tuple[float, float, float]) -> None:
    graph = random_masks(graph_of(labels), ratio)
    masks = [graph.train_mask, graph.val_mask, graph.test_mask]
    known = sum(label >= 0 for label in labels)
    for mask, share in zip(masks, ratio, strict=True):
        assert abs(int(mask.sum()) - share * known) <= 1
    if sum(ratio) == 1:
        assert torch.equal(masks[0] | masks[1] | masks[2], graph.y >= 0)
    assert int(masks[0].int().add(masks[1].int()).add(masks[2].int()).max()) <= 1


def test_hundred_nodes() -> None:
    graph = random_masks(graph_of([0] * 100))
    assert [int(m.sum()) for m in (graph.train_mask, graph.val_mask, graph.test_mask)] == [
        60,
        20,
        20,
    ]


def test_the_seed_decides_and_the_graph_is_left_alone() -> None:
    plain = graph_of([0, 1] * 50)
    one, same, other = (random_masks(plain, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.train_mask, same.train_mask)
    assert not torch.equal(one.train_mask, other.train_mask)
    assert not plain.train_mask.any()


def test_every_node_is_as_likely_as_any_other() -> None:
    plain = graph_of([0] * 10)
    times = sum(random_masks(plain, seed=seed).train_mask.int() for seed in range(600))
    # 360 of 600 expected; five standard deviations of that binomial are 60.
    assert isinstance(times, torch.Tensor)
    assert int((times - 360).abs().max()) < 60


@pytest.mark.parametrize(
    "ratio",
    [(0.6, 0.2), (0.6, 0.2, 0.3), (0.5, 0.5, 0), (-0.1, 0.5, 0.5), (float("nan"), 0.1, 0.1)],
)
def test_bad_ratio(ratio: Any) -> None:
    with pytest.raises(SettingsError, match="ratio must"):
        random_masks(graph_of([0, 1]), ratio)


def test_bad_seed_and_no_labels() -> None:
    with pytest.raises(SettingsError, match="seed must be a whole number from 0, got -1"):
        random_masks(graph_of([0, 1]), seed=-1)
    with pytest.raises(GraphError, match="no node has a label"):
        random_masks(graph_of([-1, -1]))


@pytest.mark.parametrize("seed", range(5))
def test_roles_classes_and_silos_have_nothing_to_do_with_each_other(seed: int) -> None:
    """One seed serves graph, roles and cut; each must draw as if it were alone."""
    graph = random_masks(csbm(nodes=4000, classes=4, seed=seed), seed=seed)
    assignment = split(graph, 4, "random", seed=seed).assignment
    assert assignment is not None
    role = graph.train_mask.long() + 2 * graph.val_mask.long()
    for one, other in ((role, graph.y), (role, assignment), (graph.y, assignment)):
        table = np.zeros((4, 4))
        np.add.at(table, (np.asarray(one), np.asarray(other)), 1)
        found = chi2_contingency(table[table.sum(1) > 0])
        assert found.pvalue > 1e-4
