"""Subgraph-level privacy leakage against a plain count, and against HiFGL's appendix A.1."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.data.datasets import load
from fedmend.data.partition import split
from fedmend.evaluation.leakage import subgraph_leakage
from tests.tiny import tiny_partition


def test_against_a_plain_count() -> None:
    partition = tiny_partition(4)
    assert partition.assignment is not None
    seen: dict[str, set[int]] = {name: set() for name in partition.names}
    for one, other in partition.cross_edges.T.tolist():
        for node in (one, other):
            seen[partition.names[partition.assignment[node]]].add(node)
    found = subgraph_leakage(partition)
    assert found.nodes == {name: len(nodes) for name, nodes in seen.items()}
    shares = [len(nodes) / partition.silos[name].num_nodes for name, nodes in seen.items()]
    assert found.share == pytest.approx(sum(shares) / 4)


def test_one_silo_has_nobody_to_see_it() -> None:
    assert subgraph_leakage(tiny_partition(1)).share == 0.0


@pytest.mark.parametrize(
    ("dataset", "published"), [("cora", 0.9516), ("citeseer", 0.8870), ("pubmed", 0.9031)]
)
def test_published_figures(dataset: str, published: float, planetoid_root: Path) -> None:
    partition = split(load(dataset, data_root=planetoid_root), 5, "random", seed=0)
    assert subgraph_leakage(partition).share == pytest.approx(published, abs=0.015)
