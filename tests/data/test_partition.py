from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import rebuilt, reordered, tiny_graph
from torch import Tensor

from fedmend.data.partition import Partition, split
from fedmend.errors import DataError, GraphError, SettingsError, UnknownNameError
from fedmend.graph import Graph, is_sparse

HOWS = ["louvain", "leiden", "random", "label-dirichlet", "metis"]


def random_graph(nodes: int = 50, edges: int = 120, seed: int = 0, sparse: bool = False) -> Graph:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, nodes)
    role = rng.integers(0, 4, nodes)
    x = rng.standard_normal((nodes, 6)) * (rng.random((nodes, 6)) < 0.4)
    return Graph(
        sp.csr_matrix(x) if sparse else x,
        rng.integers(0, nodes, (2, edges)),
        y,
        train_mask=role == 0,
        val_mask=role == 1,
        test_mask=role == 2,
        node_ids=rng.permutation(10 * nodes)[:nodes],
        label_names=["red", "green", "blue"],
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    nodes=st.integers(1, 40),
    edges=st.integers(0, 120),
    sparse=st.booleans(),
    how=st.sampled_from(HOWS),
    data=st.data(),
)
def test_silos_are_the_induced_subgraphs(
    seed: int, nodes: int, edges: int, sparse: bool, how: str, data: st.DataObject
) -> None:
    """Against loops over nodes and edges."""
    graph = random_graph(nodes, edges, seed, sparse)
    silos = data.draw(st.integers(1, nodes))
    partition = split(graph, silos, how, seed=seed)
    assignment = partition.assignment
    assert assignment is not None
    assert partition.whole is not None
    graph = partition.whole  # with roles, if it had none
    assert len(partition.silos) == silos

    all_edges = set(zip(*graph.edges.tolist(), strict=True))
    cross = {(a, b) for a, b in all_edges if assignment[a] != assignment[b]}
    assert set(zip(*partition.cross_edges.tolist(), strict=True)) == cross
    assert partition.cross_edges.shape == (2, len(cross))

    ids = graph.node_ids.tolist()
    seen: list[int] = []
    inside = 0
    for number, (name, silo) in enumerate(partition.silos.items()):
        members = [node for node in range(nodes) if assignment[node] == number]
        assert partition.rows(name).tolist() == members
        assert silo.node_ids.tolist() == [ids[node] for node in members]
        seen += members
        expected = {(ids[a], ids[b]) for a, b in all_edges if {a, b} <= set(members)}
        own = silo.node_ids.tolist()
        assert {(own[a], own[b]) for a, b in zip(*silo.edges.tolist(), strict=True)} == expected
        inside += silo.num_edges
        rows = torch.tensor(members)
        assert is_sparse(silo.x) == sparse
        assert torch.equal(silo.x.to_dense(), graph.x.to_dense()[rows])
        for field in ("y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(silo, field), getattr(graph, field)[rows])
        assert silo.label_names == graph.label_names
    assert sorted(seen) == list(range(nodes))
    assert inside + len(cross) == graph.num_edges


def test_five_silos_by_louvain_unless_told_otherwise() -> None:
    partition = split(random_graph())
    assert partition.names == ("silo-0", "silo-1", "silo-2", "silo-3", "silo-4")
    assert (partition.how, partition.seed) == ("louvain", 0)
    assert repr(partition) == "Partition(5 silos, louvain, seed 0)"


def test_roles_are_drawn_on_the_whole_graph_only_if_there_are_none() -> None:
    graph = random_graph()
    kept = split(graph, 3).whole
    assert kept is not None
    assert torch.equal(kept.train_mask, graph.train_mask)

    nothing = torch.zeros(50, dtype=torch.bool)
    bare = graph.with_masks(nothing, nothing, nothing)
    drawn = split(bare, 3, ratio=(0.5, 0.3, 0.2))
    roles = [
        (silo.train_nodes, silo.val_nodes, silo.test_nodes) for silo in drawn.statistics().per_silo
    ]
    assert np.sum(roles, axis=0).tolist() == [25, 15, 10]
    assert split(bare, 3, ratio=(0.5, 0.3, 0.2)).hash == drawn.hash

    unlabelled = split(Graph(np.ones((5, 1)), [[0], [1]]), 2)
    assert unlabelled.statistics().per_silo[0].train_nodes == 0


def test_names_sort_in_order() -> None:
    names = split(random_graph(), 12, "random").names
    assert names[:2] == ("silo-00", "silo-01")
    assert list(names) == sorted(names)


def test_column_names_the_silos() -> None:
    graph = random_graph(6)
    owners = ["Bank B", "Bank A", "Bank B", "Bank A", "Bank C", "Bank C"]
    partition = split(graph, how="column", column=owners)
    assert partition.names == ("Bank_A", "Bank_B", "Bank_C")
    assert partition.rows("Bank_B").tolist() == [0, 2]
    assert split(graph, 3, "column", column=owners).hash == partition.hash
    with pytest.raises(SettingsError, match="3 different owners for 4 silos"):
        split(graph, 4, "column", column=owners)


@pytest.mark.parametrize("how", HOWS)
def test_the_same_seed_gives_the_same_hash(how: str) -> None:
    graph = random_graph(100, 300)
    first = split(graph, 4, how, seed=7)
    assert split(graph, 4, how, seed=7).hash == first.hash
    assert len({split(graph, 4, how, seed=seed).hash for seed in range(5)}) > 1


def test_the_hash_sees_everything_but_the_order_of_silos() -> None:
    graph = random_graph()
    partition = split(graph, 3, "random")
    silos = partition.silos
    assert len(partition.hash) == 64
    turned = Partition(dict(reversed(silos.items())), "other", None)
    assert turned.hash == partition.hash

    name, one = next(iter(silos.items()))
    nothing = torch.zeros(one.num_nodes, dtype=torch.bool)
    changes = {
        "edges": one.edges[:, 1:],
        "y": (one.y + 1) % 3,
        "train_mask": nothing,
        "val_mask": nothing,
        "test_mask": nothing,
        "node_ids": one.node_ids + 10_000,
    }
    hashes = {partition.hash}
    for field, value in changes.items():
        changed = rebuilt(one, **{field: value})
        hashes.add(Partition({**silos, name: changed}, "x", None).hash)
    renamed = {("other" if key == name else key): silo for key, silo in silos.items()}
    hashes.add(Partition(renamed, "x", None).hash)
    assert len(hashes) == len(changes) + 2


def test_the_hash_takes_an_id_as_text() -> None:
    numbers = Graph(np.ones((2, 1)), [[0], [1]], node_ids=[7, 8])
    texts = Graph(np.ones((2, 1)), [[0], [1]], node_ids=["7", "8"])
    hashes = {Partition({"a": graph}, "x", None).hash for graph in (numbers, texts)}
    assert len(hashes) == 1


def test_statistics_are_the_papers_table() -> None:
    # Two triangles, joined by one edge.
    graph = Graph(
        np.ones((6, 2)),
        [[0, 1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 5, 3, 3]],
        [0, 0, 1, 1, 1, -1],
        train_mask=[True, False, False, True, True, False],
        test_mask=[False, True, False, False, False, False],
        label_names=["a", "b", "c"],
    )
    statistics = split(graph, how="column", column=["s", "s", "s", "t", "t", "t"]).statistics()
    assert (statistics.silos, statistics.mean_nodes, statistics.mean_edges) == (2, 3.0, 3.0)
    assert (statistics.missing_links, statistics.missing_share) == (1, 1 / 7)
    first, second = statistics.per_silo
    assert (first.name, first.nodes, first.edges, first.labels) == (
        "s",
        3,
        3,
        {"a": 2, "b": 1, "c": 0},
    )
    assert (first.train_nodes, first.val_nodes, first.test_nodes) == (1, 0, 1)
    assert (second.train_nodes, second.labels) == (2, {"a": 0, "b": 2, "c": 0})


def test_without_the_whole_graph_missing_links_are_unknown() -> None:
    partition = Partition(split(random_graph(), 2).silos, "folders", None)
    statistics = partition.statistics()
    assert (statistics.missing_links, statistics.missing_share) == (None, None)
    with pytest.raises(DataError, match="whole graph of this partition is not known"):
        _ = partition.cross_edges
    with pytest.raises(DataError, match="whole graph of this partition is not known"):
        partition.rows("silo-0")


def test_a_graph_without_edges_misses_none() -> None:
    statistics = split(random_graph(10, 0), 2).statistics()
    assert (statistics.missing_links, statistics.missing_share) == (0, 0.0)


def small(features: int = 2, ids: tuple[int, ...] = (0, 1), **options: Any) -> Graph:
    return Graph(np.ones((len(ids), features)), [[0], [1]], node_ids=ids, **options)


def test_partition_refuses_what_cannot_be_a_federation() -> None:
    def check(message: str, **silos: Graph) -> None:
        with pytest.raises(DataError, match=message):
            Partition(silos, "x", None)

    check("at least one silo")
    check(
        "silo a has 2 features and silo b has 3; all silos need the same features",
        a=small(2),
        b=small(3),
    )
    check(
        "silos a and b name different classes: u, v and u, w",
        a=small(label_names=["u", "v"]),
        b=small(label_names=["u", "w"]),
    )
    check(
        "silos b and c name their features differently",
        a=small(),
        b=small(feature_names=["age", "size"]),
        c=small(feature_names=["size", "age"]),
    )


def test_partition_checks_the_whole_graph_against_the_silos() -> None:
    partition = split(random_graph(), 2)
    whole, assignment = partition.whole, partition.assignment
    assert whole is not None
    assert assignment is not None
    with pytest.raises(DataError, match="both, the whole graph and the assignment, or neither"):
        replace(partition, assignment=None)
    with pytest.raises(DataError, match=r"assignment: \(49,\) for 50 nodes"):
        replace(partition, assignment=assignment[1:])
    with pytest.raises(DataError, match="silo numbers run from 0 to 1"):
        replace(partition, assignment=assignment + 1)
    with pytest.raises(DataError, match="silo silo-0: its node ids are not those"):
        replace(partition, assignment=1 - assignment)
    twice = {"a": small(ids=(4, 5)), "b": small(ids=(6, 5))}
    with pytest.raises(GraphError, match="silos a and b both have a node 5; every node belongs"):
        Partition(twice, "x", None, small(ids=(4, 5, 6, 7)), np.array([0, 0, 1, 1]))


@pytest.mark.parametrize("silos", [0, -3])
def test_split_needs_a_silo(silos: int) -> None:
    with pytest.raises(SettingsError, match=f"silos: at least 1 is needed, got {silos}"):
        split(random_graph(), silos)


def test_split_refuses_settings_it_does_not_know() -> None:
    graph = random_graph(4, 3)
    with pytest.raises(SettingsError, match=r"silos: 5 is more than the graph has nodes \(4\)"):
        split(graph)
    with pytest.raises(UnknownNameError, match="unknown split 'luvain'; did you mean 'louvain'"):
        split(graph, 2, "luvain")
    with pytest.raises(UnknownNameError, match=r"unknown option .*'alfa'; did you mean 'alpha'"):
        split(graph, 2, "label-dirichlet", alfa=1)
    with pytest.raises(SettingsError, match="the split 'random' has no options, got 'alpha'"):
        split(graph, 2, "random", alpha=1)
    with pytest.raises(SettingsError, match="seed: expected 0 or more, got -1"):
        split(graph, 2, seed=-1)
    with pytest.raises(SettingsError, match="needs column="):
        split(graph, how="column")
    with pytest.raises(UnknownNameError, match="unknown silo 'silo-9'"):
        split(graph, 2).rows("silo-9")


@pytest.mark.parametrize("sparse", [False, True])
def test_the_content_hash_sees_what_the_hash_of_the_cut_does_not(sparse: bool) -> None:
    def cut(x: Tensor) -> Partition:
        return split(rebuilt(tiny_graph(), x=x.to_sparse_csr() if sparse else x), 3, "random")

    ones = torch.eye(6).repeat(10, 1)
    one, same, moved, wider = (
        cut(x) for x in (ones, ones.clone(), ones.roll(1, 0), torch.cat([ones, ones], 1))
    )
    assert one.hash == same.hash == moved.hash == wider.hash
    assert one.content_hash == same.content_hash
    assert one.content_hash == reordered(one).content_hash
    # Bags of words have the same values everywhere: it is where they stand that differs.
    assert len({each.content_hash for each in (one, moved, wider)}) == 3
