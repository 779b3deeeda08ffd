"""Hiding nodes: who stays, and who lost whom, against plain loops."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.graph import Graph
from fedmend.mending.hiding import hide
from tests.tiny import plain_graph, tiny_graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any small graph: without edges too, and with nodes that know nobody."""
    nodes = draw(st.integers(1, 9))
    node = st.integers(0, nodes - 1)
    return plain_graph(nodes, draw(st.lists(st.tuples(node, node), max_size=14)))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(graph=graphs(), share=st.sampled_from([0.0, 0.15, 0.5, 0.9]), seed=st.integers(0, 99))
def test_hides_and_remembers(graph: Graph, share: float, seed: int) -> None:
    found = hide(graph, share, seeded(seed))
    kept = found.kept.tolist()
    hidden = sorted(set(range(graph.num_nodes)) - set(kept))
    assert kept == sorted(set(kept))
    assert len(hidden) == min(round(share * graph.num_nodes), graph.num_nodes - 1)
    neighbours = {v: graph.col[graph.rowptr[v] : graph.rowptr[v + 1]].tolist() for v in kept}
    for place, node in enumerate(kept):
        lost = [other for other in neighbours[node] if other in hidden]
        assert found.lost[found.rowptr[place] : found.rowptr[place + 1]].tolist() == lost
        assert int(found.missing[place]) == len(lost)
        left = found.graph.col[found.graph.rowptr[place] : found.graph.rowptr[place + 1]]
        assert [kept[i] for i in left.tolist()] == [u for u in neighbours[node] if u in kept]
    assert torch.equal(found.graph.x, graph.x[found.kept])


def test_the_kept_keep_labels_and_roles() -> None:
    graph = tiny_graph(20)
    found = hide(graph, 0.5, seeded(1))
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(found.graph, name), getattr(graph, name)[found.kept])


def test_nothing_hidden_is_the_graph_itself() -> None:
    graph = tiny_graph(20)
    found = hide(graph, 0.0, seeded(1))
    assert found.kept.tolist() == list(range(20))
    assert int(found.missing.sum()) == 0
    assert torch.equal(found.graph.col, graph.col)


def test_all_nodes_can_be_hidden() -> None:
    graph = tiny_graph(20)
    seen: set[int] = set()
    for seed in range(20):
        seen |= set(range(20)) - set(hide(graph, 0.5, seeded(seed)).kept.tolist())
    assert seen == set(range(20))
    assert hide(graph, 0.5, seeded(1)).kept.tolist() == hide(graph, 0.5, seeded(1)).kept.tolist()
