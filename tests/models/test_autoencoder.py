"""The autoencoder's loss without a reconstruction equals the one with it."""

from __future__ import annotations

import pytest
import torch

from fedmend.data.sampling import whole_graph_hop
from fedmend.graph import is_sparse
from fedmend.models.autoencoder import GraphAutoencoder
from fedmend.models.features import Features
from tests.tiny import tiny_graph


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_loss_is_that_of_the_reconstruction(layers: int, sparse: bool) -> None:
    graph = tiny_graph(40, sparse=sparse)
    assert is_sparse(graph.x) == sparse
    x = graph.x.to_dense() if sparse else graph.x
    model = GraphAutoencoder(6, 3, layers, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    hop = whole_graph_hop(graph)
    loss = model.loss(Features(graph.x), hop, float((x * x).sum()))
    found = torch.autograd.grad(loss, list(model.parameters()))
    h = model.encode(Features(graph.x), hop)
    assert h.shape == (40, 3)
    for number, layer in enumerate(model.decoder):
        h = layer(torch.relu(h) if number else h, hop)
    plain = ((x - h) ** 2).mean()
    torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-5)
    expected = torch.autograd.grad(plain, list(model.parameters()))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
