"""The layers against PyG's own, forward and backward, on dense and on sparse input."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    # torch warns that torch.jit.script is deprecated, which PyG calls when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from fedmend.data.csbm import csbm
from fedmend.data.sampling import whole_graph_hop
from fedmend.graph import Graph
from fedmend.models import layers
from fedmend.models.features import Features
from fedmend.models.layers import DenseLayer, GatLayer, GcnLayer, SageLayer
from tests.tiny import plain_graph

INPUTS, OUTPUTS, HEADS = 12, 8, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_isolated_nodes() -> Graph:
    """Forty linked nodes and four that know nobody, the first and the last node among them."""
    linked = csbm(nodes=40, degree=5, features=1, seed=3)
    x = torch.relu(torch.randn(44, INPUTS, generator=seeded(1)) - 0.5)
    return Graph(x, linked.edges + 1)


Pair = tuple[nn.Module, nn.Module, dict[str, str]]
"""Our layer, PyG's with the same weights, and PyG's name for each of our parameters."""


def sage() -> Pair:
    names = {"own": "lin_r.weight", "neighbours": "lin_l.weight", "bias": "lin_l.bias"}
    return pair(SageLayer(INPUTS, OUTPUTS, seeded()), SAGEConv(INPUTS, OUTPUTS), names)


def gcn() -> Pair:
    names = {"weight": "lin.weight", "bias": "bias"}
    return pair(GcnLayer(INPUTS, OUTPUTS, seeded()), GCNConv(INPUTS, OUTPUTS), names)


def gat() -> Pair:
    theirs = GATConv(INPUTS, OUTPUTS // HEADS, heads=HEADS)
    names = {"weight": "lin.weight", "as_target": "att_dst", "as_source": "att_src", "bias": "bias"}
    return pair(GatLayer(INPUTS, OUTPUTS, HEADS, seeded()), theirs, names)


def pair(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> Pair:
    """PyG's layer gets our weights, and both a bias that is not zero."""
    with torch.no_grad():
        ours.get_parameter("bias").normal_(generator=seeded(7))
        for our_name, their_name in names.items():
            target = theirs.get_parameter(their_name)
            target.copy_(as_theirs(ours.get_parameter(our_name), target.shape, our_name))
    return ours, theirs, names


def as_theirs(value: Tensor, shape: torch.Size, name: str) -> Tensor:
    """Our matrices are applied from the right, PyG's are kept transposed."""
    return value.view(shape) if name in ("as_target", "as_source", "bias") else value.t()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("reused", [False, True], ids=["once", "reused"])
@pytest.mark.parametrize("make", [sage, gcn, gat])
def test_layer_is_pygs_layer(make: Any, reused: bool, sparse: bool) -> None:
    graph = with_isolated_nodes()
    ours, theirs, names = make()
    features = Features(graph.x.to_sparse_csr() if sparse else graph.x, reused=reused)
    out = ours(features, whole_graph_hop(graph))
    expected = theirs(graph.x, graph.edge_index)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)

    gradient = torch.randn(out.shape, generator=seeded(5))
    out.backward(gradient)
    expected.backward(gradient)
    for our_name, their_name in names.items():
        found = ours.get_parameter(our_name).grad
        wanted = theirs.get_parameter(their_name).grad
        assert found is not None
        assert wanted is not None
        assert float(found.abs().max()) > 0
        torch.testing.assert_close(
            as_theirs(found, wanted.shape, our_name), wanted, atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("make", [sage, gcn, gat])
def test_deeper_layer_passes_the_gradient_on(make: Any) -> None:
    """As a second layer, its input is no constant: the gradient of the input must be PyG's too."""
    graph = with_isolated_nodes()
    ours, theirs, _ = make()
    h, same = (graph.x.clone().requires_grad_() for _ in range(2))
    gradient = torch.randn(44, OUTPUTS, generator=seeded(5))
    ours(h, whole_graph_hop(graph)).backward(gradient)
    theirs(same, graph.edge_index).backward(gradient)
    torch.testing.assert_close(h.grad, same.grad, atol=1e-5, rtol=1e-5)


def test_isolated_node_hears_only_itself() -> None:
    graph = plain_graph(3, [(0, 1)])
    hop = whole_graph_hop(graph)
    alone = graph.x[2]
    layers = SageLayer(3, 2, seeded()), GcnLayer(3, 2, seeded()), GatLayer(3, 2, 1, seeded())
    for layer, weight in zip(layers, ("own", "weight", "weight"), strict=True):
        out = layer(Features(graph.x), hop)
        assert torch.isfinite(out).all()
        torch.testing.assert_close(out[2], alone @ layer.get_parameter(weight))


@pytest.mark.parametrize("make", [SageLayer, GcnLayer, DenseLayer])
def test_graph_without_any_edge(make: Any) -> None:
    graph = plain_graph(4, [])
    layer = make(3, 2, seeded())
    layer(Features(graph.x), whole_graph_hop(graph)).sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


def test_dense_layer_hears_nobody() -> None:
    graph = with_isolated_nodes()
    layer = DenseLayer(INPUTS, OUTPUTS, seeded())
    out = layer(Features(graph.x), whole_graph_hop(graph))
    torch.testing.assert_close(out, graph.x @ layer.weight + layer.bias)


def test_weights_are_drawn_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (GatLayer(5, 4, 2, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


def test_attention_of_large_scores_is_finite() -> None:
    """exp of the scores themselves would overflow; only their differences may count."""
    graph = plain_graph(4, [(0, 1), (0, 2), (2, 3)])
    layer = GatLayer(3, 2, 1, seeded())
    out = layer(Features(graph.x * 1e4), whole_graph_hop(graph))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("block", [1, 40, 2**26])
def test_attention_by_blocks_is_attention(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = csbm(nodes=50, degree=6, features=5, seed=3)
    layer = GatLayer(5, 8, 2, torch.Generator().manual_seed(0))
    at_once = layer(Features(graph.x), whole_graph_hop(graph)).detach()
    monkeypatch.setattr(layers, "BLOCK", block)
    with torch.no_grad():
        by_blocks = layer(Features(graph.x), whole_graph_hop(graph))
    torch.testing.assert_close(by_blocks, at_once)
