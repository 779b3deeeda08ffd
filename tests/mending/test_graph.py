"""Mended graphs: generated neighbours are real, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmend.data.datasets import load
from fedmend.data.mended import mended
from fedmend.data.partition import split
from fedmend.data.sampling import Adjacency, whole_graph_hop
from fedmend.graph import Graph, is_sparse
from fedmend.mending.graph import (
    copies_of_isolated,
    estimated_missing,
    mended_hops,
    with_self_loops,
    without_nodes,
)
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features, MendedFeatures
from tests.tiny import plain_graph, tiny_graph

OWNERS = torch.tensor([5, 0, 5, 19])  # node 5 gets two; the order is not theirs
BACKBONES = ["sage", "gcn", "gat", "fused-sage", "fused-paper"]
HEARING = pytest.mark.parametrize("backbone", BACKBONES)
SPARSE = pytest.mark.parametrize("sparse", [False, True])


def generated(seed: int = 0) -> Tensor:
    return torch.randn(len(OWNERS), 6, generator=torch.Generator().manual_seed(seed))


def model_of(backbone: str, layers: int = 2) -> Backbone:
    shape = ModelShape(backbone, 6, 3, hidden=8, layers=layers, heads=2, dropout=0.0)
    return build(shape, torch.Generator().manual_seed(3))


def scores(model: Backbone, graph: Graph) -> Tensor:
    out: Tensor = model(Features(graph.x), [whole_graph_hop(graph)] * len(model.layers))
    return out


def dense(x: Tensor) -> Tensor:
    return x.to_dense() if is_sparse(x) else x


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    source = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    return set(zip(source.tolist(), graph.col.tolist(), strict=True))


@SPARSE
def test_original_nodes_stay_as_they_are(sparse: bool) -> None:
    graph = tiny_graph(20, sparse=sparse)
    before = dense(graph.x).clone(), edge_set(graph)
    found = mended(graph, OWNERS, generated())
    assert torch.equal(dense(found.x)[:20], before[0])
    assert torch.equal(dense(found.x)[20:], generated())
    inside = {(a, b) for a, b in edge_set(found) if a < 20 and b < 20}
    assert inside == before[1]
    assert edge_set(graph) == before[1], "the graph itself is untouched"
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(found, name)[:20], getattr(graph, name))
    assert found.label_names == graph.label_names


def test_sparse_features_stay_sparse_where_that_is_smaller() -> None:
    few = torch.zeros(30, 6)
    few[:, 0] = 1.0
    graph = Graph(few.to_sparse_csr(), tiny_graph(30).edges)
    one, many = torch.tensor([3]), torch.arange(30)
    assert is_sparse(mended(graph, one, torch.ones(1, 6)).x)
    assert not is_sparse(mended(graph, many, torch.ones(30, 6)).x)


@SPARSE
def test_generated_nodes_have_one_undirected_edge_and_no_role(sparse: bool) -> None:
    found = mended(tiny_graph(20, sparse=sparse), OWNERS, generated())
    assert found.num_nodes == 24
    for number, owner in enumerate(OWNERS.tolist()):
        new = 20 + number
        assert found.col[found.rowptr[new] : found.rowptr[new + 1]].tolist() == [owner]
        assert (owner, new) in edge_set(found)
    assert found.y[20:].tolist() == [-1] * 4
    roles = found.train_mask | found.val_mask | found.test_mask
    assert not bool(roles[20:].any())


def test_nothing_generated_is_the_same_graph() -> None:
    graph = tiny_graph(20)
    assert mended(graph, OWNERS[:0], generated()[:0]) is graph


@HEARING
def test_a_generated_neighbour_changes_its_nodes_logits(backbone: str) -> None:
    """In two public ports of FedSage+ it does not: their mended edges run one way."""
    graph, model = tiny_graph(20), model_of(backbone, layers=1)
    before, after = scores(model, graph), scores(model, mended(graph, OWNERS, generated()))[:20]
    changed = (before - after).abs().amax(1) > 1e-4
    near = set(OWNERS.tolist())
    if backbone == "gcn":  # a node's weight in its neighbours' sums has to do with its degree
        near |= {b for a, b in edge_set(graph) if a in near}
    if backbone == "fused-paper":  # which has one dense layer before: still one hop
        assert model.input is not None
    assert set(torch.nonzero(changed)[:, 0].tolist()) == near


@SPARSE
@HEARING
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_hops_without_a_graph_are_the_mended_graphs(
    backbone: str, layers: int, sparse: bool
) -> None:
    graph, model = tiny_graph(20, sparse=sparse), model_of(backbone, layers)
    nodes = torch.tensor([19, 5, 0, 7, 7])
    expected = scores(model, mended(graph, OWNERS, generated()))[nodes]
    features = MendedFeatures(Features(graph.x, reused=True), generated())
    found = model(features, mended_hops(graph, OWNERS, nodes, layers))
    torch.testing.assert_close(found, expected)


@HEARING
def test_generated_rows_that_are_not_joined_are_as_if_they_were_not_there(backbone: str) -> None:
    graph, model = tiny_graph(20), model_of(backbone)
    joined = torch.tensor([True, False, True, False])
    nodes = torch.arange(20)
    expected = scores(model, mended(graph, OWNERS[joined], generated()[joined]))[:20]
    features = MendedFeatures(Features(graph.x, reused=True), generated())
    found = model(features, mended_hops(graph, OWNERS, nodes, 2, joined))
    torch.testing.assert_close(found, expected)


@SPARSE
@HEARING
def test_gradient_of_generated_rows_is_autograds(backbone: str, sparse: bool) -> None:
    """Against the same network on one dense matrix that asks for its gradient."""
    graph, model = tiny_graph(20, sparse=sparse), model_of(backbone)
    nodes, made = torch.arange(20), generated().requires_grad_()
    features = MendedFeatures(Features(graph.x, reused=True), made)
    model(features, mended_hops(graph, OWNERS, nodes, 2)).square().sum().backward()
    got = {key: each.grad for key, each in model.named_parameters()}
    model.zero_grad()
    whole = mended(graph, OWNERS, generated())
    everything = dense(whole.x).clone().requires_grad_()
    hop = whole_graph_hop(whole)
    out: Any = model(Features(everything), [hop, hop])
    out[:20].square().sum().backward()
    assert made.grad is not None
    assert everything.grad is not None
    assert float(made.grad.abs().sum()) > 0
    torch.testing.assert_close(made.grad, everything.grad[20:])
    for key, each in model.named_parameters():
        torch.testing.assert_close(got[key], each.grad)


def test_nothing_is_kept_from_one_step_to_the_next() -> None:
    """Other generated neighbours in the next step: the first layer must hear them."""
    graph, model = tiny_graph(20), model_of("sage")
    own, nodes = Features(graph.x, reused=True), torch.arange(20)
    for seed in (0, 1):
        found = model(MendedFeatures(own, generated(seed)), mended_hops(graph, OWNERS, nodes, 2))
        expected = scores(model, mended(graph, OWNERS, generated(seed)))[:20]
        torch.testing.assert_close(found, expected)


# Edges that are there in some epochs only


def heard_by(edges: Adjacency | Graph) -> list[list[int]]:
    ends = edges.rowptr.tolist()
    col = edges.col.tolist()
    return [col[ends[i] : ends[i + 1]] for i in range(edges.num_nodes)]


@given(kept=st.lists(st.booleans(), min_size=24, max_size=24))
def test_edges_between_kept_nodes_by_plain_loops(kept: list[bool]) -> None:
    graph = mended(tiny_graph(20), OWNERS, generated())
    found = without_nodes(graph, torch.tensor(kept))
    expected = [
        [other for other in others if kept[node] and kept[other]]
        for node, others in enumerate(heard_by(graph))
    ]
    assert heard_by(found) == expected
    assert found.num_nodes == graph.num_nodes
    assert found.degree.tolist() == [len(each) for each in expected]


ISOLATED = plain_graph(7, [(1, 2), (2, 5)])  # 0, 3, 4 and 6 see nobody


@given(times=st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_hearing_oneself_by_plain_loops(times: list[int]) -> None:
    found = with_self_loops(ISOLATED, torch.tensor(times))
    expected = [others + [node] * times[node] for node, others in enumerate(heard_by(ISOLATED))]
    assert heard_by(found) == expected
    assert ISOLATED.degree.tolist() == [0, 1, 2, 0, 0, 1, 0], "the graph itself is untouched"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_to_hear_oneself_is_to_hear_a_copy(layers: int) -> None:
    """The copy has its node as its only neighbour: both are the same in every layer."""
    shape = ModelShape("sage", 3, 3, hidden=8, layers=layers, heads=1, dropout=0.0)
    model = build(shape, torch.Generator().manual_seed(3))
    copies, owner = copies_of_isolated(ISOLATED, 1, 1)
    with_copies = scores(model, mended(ISOLATED, owner, copies))[:7]
    itself = whole_graph_hop(with_self_loops(ISOLATED, (ISOLATED.degree == 0).long()))
    found: Tensor = model(Features(ISOLATED.x), [itself] * layers)
    torch.testing.assert_close(found, with_copies)
    alone = scores(model, ISOLATED)
    assert not torch.allclose(found[owner], alone[owner])
    torch.testing.assert_close(found[[1, 2, 5]], alone[[1, 2, 5]])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25), st.integers(0, 4))
def test_what_a_node_misses_by_plain_loops(pairs: list[tuple[int, int]], most: int) -> None:
    edges = sorted({(min(p), max(p)) for p in pairs if p[0] != p[1]})
    degree = [sum(node in edge for edge in edges) for node in range(10)]
    graph = plain_graph(10, edges)
    alone = degree.count(0)
    expected = [min(d * alone / (10 - alone) if d else 1.0, float(most)) for d in degree]
    torch.testing.assert_close(estimated_missing(graph, most), torch.tensor(expected))


@pytest.mark.parametrize("silos", [3, 10])
def test_less_is_estimated_than_a_random_cut_takes(silos: int) -> None:
    """And something: of Cora, where nobody is alone before the cut."""
    whole = load("cora")
    assert int(whole.degree.min()) == 1
    cut = split(whole, silos=silos, how="random", seed=0)
    estimated = sum(
        float(estimated_missing(graph, 10**6)[graph.degree > 0].sum())
        for graph in cut.silos.values()
    )
    assert cut.assignment is not None
    missing = 0
    for name, place in zip(cut.names, range(silos), strict=True):
        seen = cut.silos[name].degree
        missing += int((whole.degree[cut.assignment == place] - seen)[seen > 0].sum())
    assert 0.2 * missing < estimated < missing
