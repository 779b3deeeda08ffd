"""The network that stops at every layer: with exact sums it is the network on the whole graph."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import FederationError
from fedmend.graph import Graph, csr_tensor
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.secret.network import LayerByLayer, neighbour_weight
from tests.tiny import tiny_graph

GRAPH = tiny_graph(40)


def adjacency(graph: Graph) -> Tensor:
    full = torch.zeros(graph.num_nodes, graph.num_nodes)
    full[graph.edge_index[0], graph.edge_index[1]] = 1.0
    return full


def scales(graph: Graph, backbone: str) -> tuple[Tensor, Tensor]:
    """What the source multiplies by, and the target."""
    if backbone == "gcn":
        scale = (graph.degree[:, None] + 1.0).rsqrt()
        return scale, scale
    heard = torch.where(graph.degree > 0, 1.0 / graph.degree.clamp_min(1), 0.0)
    return torch.ones(graph.num_nodes, 1), heard[:, None]


def made(backbone: str, layers: int, hidden: int) -> tuple[Backbone, Backbone]:
    shape = ModelShape(backbone, 6, 3, hidden=hidden, layers=layers, heads=1, dropout=0.0)
    return tuple(build(shape, torch.Generator().manual_seed(4)) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
@pytest.mark.parametrize(("layers", "hidden"), [(1, 8), (2, 8), (3, 2), (4, 8)])
@pytest.mark.parametrize("by_hearer", [False, True])
def test_hidden_and_seen_neighbours_make_the_whole(
    backbone: str, layers: int, hidden: int, by_hearer: bool
) -> None:
    """Half of the edges are in sight, the other half's sums are added by hand."""
    whole, split = made(backbone, layers, hidden)
    everything = adjacency(GRAPH)
    half = torch.rand(40, 40, generator=torch.Generator().manual_seed(1)) < 0.5
    seen = everything * (half | half.T)
    hidden_edges = everything - seen
    assert bool(seen.any())
    assert bool(hidden_edges.any())
    source, target = scales(GRAPH, backbone)
    total = everything @ (GRAPH.x * source)
    total = (total + GRAPH.x * source if backbone == "gcn" else total) * target
    network = LayerByLayer(
        split,
        SparseMatrix(csr_tensor(sp.csr_matrix(seen.numpy()))),
        source,
        torch.Generator(),
        lambda _: by_hearer,
    )
    own = Features(GRAPH.x)
    network.begin(Features(total), own, training=True)
    for _ in range(layers - 1):
        network.hear(hidden_edges @ network.say(), target)
    scores = whole(own, [whole_graph_hop(GRAPH)] * layers)
    torch.testing.assert_close(network.result, scores, atol=1e-5, rtol=1e-5)
    nodes = torch.nonzero(GRAPH.train_mask)[:, 0]
    loss = F.cross_entropy(scores[nodes], GRAPH.y[nodes], reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    assert network.loss(nodes, GRAPH.y) == pytest.approx(float(loss.detach()), rel=1e-5)
    for _ in range(layers - 1):
        network.hear_gradients(hidden_edges.T @ network.say_gradients())
    found = network.gradients()
    for key, parameter in whole.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[key], parameter.grad, atol=1e-4, rtol=1e-4)


def test_a_narrowing_layer_says_less() -> None:
    for layers, hidden, width in ((2, 8, 3), (2, 2, 2), (3, 8, 8)):
        _, model = made("gcn", layers, hidden)
        source, _ = scales(GRAPH, "gcn")
        none = SparseMatrix(csr_tensor(sp.csr_matrix((40, 40), dtype="float32")))
        network = LayerByLayer(model, none, source, torch.Generator())
        network.begin(Features(GRAPH.x), Features(GRAPH.x), training=False)
        assert network.say().shape == (40, width)
        assert network.width == width


def test_nobody_with_a_loss() -> None:
    _, model = made("gcn", 2, 4)
    source, target = scales(GRAPH, "gcn")
    none = SparseMatrix(csr_tensor(sp.csr_matrix((40, 40), dtype="float32")))
    network = LayerByLayer(model, none, source, torch.Generator())
    network.begin(Features(GRAPH.x), Features(GRAPH.x), training=True)
    network.hear(torch.zeros_like(network.say()), target)
    assert network.loss(torch.empty(0, dtype=torch.int64), GRAPH.y) == 0.0
    said = network.say_gradients()
    assert not said.any()
    network.hear_gradients(torch.ones_like(said))  # others' losses still reach its weights
    assert any(bool(each.any()) for each in network.gradients().values())


def test_attention_cannot_be_computed_so() -> None:
    shape: Any = ModelShape("gat", 6, 3, hidden=4, layers=2, heads=1, dropout=0.0)
    with pytest.raises(FederationError, match="GatLayer cannot be computed layer by layer"):
        neighbour_weight(build(shape, torch.Generator()).layers[0])
