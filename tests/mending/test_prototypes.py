"""Prototypes: means of clusters that are large enough, and the same everywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from fedmend.mending.prototypes import Prototypes, prototypes


def blobs(*sizes: int) -> Tensor:
    """Groups of points near (0, 0), (10, 0), (20, 0), ..."""
    generator = torch.Generator().manual_seed(0)
    return torch.cat(
        [
            torch.rand(size, 2, generator=generator) + torch.tensor([10.0 * number, 0.0])
            for number, size in enumerate(sizes)
        ]
    )


def same(one: Prototypes, other: Prototypes) -> bool:
    return torch.equal(one.centres, other.centres) and torch.equal(one.cluster, other.cluster)


@settings(max_examples=15)
@given(
    nodes=st.integers(1, 25),
    clusters=st.integers(1, 6),
    min_size=st.integers(1, 5),
    seed=st.integers(0, 2**63),
)
def test_are_means_of_enough_nodes(nodes: int, clusters: int, min_size: int, seed: int) -> None:
    z = torch.randn(nodes, 3, generator=torch.Generator().manual_seed(nodes))
    found = prototypes(z, clusters, min_size, seed)
    assert 1 <= len(found.centres) <= clusters
    for number, centre in enumerate(found.centres):
        members = [row for row, its in zip(z, found.cluster.tolist(), strict=True) if its == number]
        assert len(members) >= min(min_size, nodes)
        torch.testing.assert_close(centre, sum(members) / len(members))
    assert torch.equal(found.of_nodes, found.centres[found.cluster])


def test_finds_the_groups() -> None:
    found = prototypes(blobs(5, 4, 6), 3, 3, seed=1)
    assert len(found.centres) == 3
    groups = [
        sorted(set(found.cluster[part].tolist())) for part in (range(5), range(5, 9), range(9, 15))
    ]
    assert all(len(group) == 1 for group in groups)
    assert {name for group in groups for name in group} == {0, 1, 2}


def test_a_small_cluster_joins_its_nearest() -> None:
    """Two nodes at 10 are nearer to those at 0 than to those at 40."""
    z = torch.cat([blobs(4, 2), blobs(0, 0, 0, 0, 5)])
    found = prototypes(z, 3, 3, seed=1)
    assert sorted(found.cluster.bincount().tolist()) == [5, 6]
    assert found.cluster[0] == found.cluster[4] != found.cluster[6]
    assert len(prototypes(z, 3, 2, seed=1).centres) == 3


def test_fewer_nodes_than_clusters_need() -> None:
    assert len(prototypes(blobs(7), 5, 3, seed=1).centres) <= 2
    one = prototypes(blobs(1), 5, 3, seed=1)
    assert torch.equal(one.centres, blobs(1))
    assert one.cluster.tolist() == [0]
    two = prototypes(blobs(2), 5, 3, seed=1)
    torch.testing.assert_close(two.centres, blobs(2).mean(0, keepdim=True))


def test_equal_embeddings_are_one_cluster_and_no_warning() -> None:
    found = prototypes(torch.ones(12, 4), 3, 3, seed=1)
    assert torch.equal(found.centres, torch.ones(1, 4))
    assert found.cluster.tolist() == [0] * 12


def test_same_for_any_number_of_threads() -> None:
    z = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    expected = prototypes(z, 7, 3, seed=5)
    assert not same(prototypes(z, 7, 3, seed=6), expected)
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            assert same(prototypes(z, 7, 3, seed=5), expected)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: prototypes(z, 7, 3, seed=5), range(8)))
    assert all(same(each, expected) for each in found)


def test_threads_of_the_process_stay_as_they_were() -> None:
    prototypes(blobs(5, 5), 2, 3, seed=1)
    before = [each["num_threads"] for each in threadpool_info()]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: prototypes(blobs(50, 50), 2, 3, seed=seed), range(12)))
    assert [each["num_threads"] for each in threadpool_info()] == before


@pytest.mark.parametrize("seed", [0, 2**32, 2**63 - 1])
def test_any_seed(seed: int) -> None:
    assert len(prototypes(blobs(4, 4), 2, 3, seed).centres) == 2
