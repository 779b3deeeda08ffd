"""Derivatives written out: autograd's but for rounding, and only where they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.sampling import hop_to, whole_graph_hop
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features
from fedmend.models.kernels.by_hand import FullBatch
from fedmend.models.kernels.loss import Targets
from tests.tiny import tiny_graph

SHAPE = ModelShape("sage", 6, 3, hidden=8, layers=2, heads=2, dropout=0.0)
GRAPH = tiny_graph(200, sparse=True)
FEATURES = Features(GRAPH.x, reused=True)
WHOLE = whole_graph_hop(GRAPH)
NODES = torch.nonzero(GRAPH.train_mask)[:, 0]
LABELS = GRAPH.y[NODES]
TRUTH = Targets(LABELS, SHAPE.outputs)


def same(one: Tensor, other: Tensor) -> None:
    """The same but for the order in which float32 is added up."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def model_of(backbone: str) -> Backbone:
    return build(replace(SHAPE, backbone=backbone), torch.Generator().manual_seed(3))


@pytest.mark.parametrize("backbone", ["sage", "gcn"])
def test_loss_and_gradients_are_those_of_autograd(backbone: str) -> None:
    """Over several steps: what is kept from one step must not go into the next."""
    usual, by_hand = model_of(backbone), model_of(backbone)
    full_batch = FullBatch(by_hand, FEATURES, WHOLE)
    hop = hop_to(GRAPH, NODES)
    for _ in range(3):
        loss = F.cross_entropy(usual(FEATURES, [WHOLE, hop]), LABELS)
        usual.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        same(full_batch.loss_and_gradients(hop, TRUTH), loss.detach())
        for one, other in zip(usual.parameters(), by_hand.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert other.grad.is_contiguous()
            same(one.grad, other.grad)
            assert bool(other.grad.any())
            with torch.no_grad():
                one.sub_(one.grad)
                other.sub_(other.grad)


@pytest.mark.parametrize("backbone", ["sage", "gcn"])
def test_scores_are_the_models(backbone: str) -> None:
    model = model_of(backbone)
    full_batch = FullBatch(model, FEATURES, WHOLE)
    for _ in range(2):
        for nodes in (NODES, torch.tensor([5])):
            hop = hop_to(GRAPH, nodes)
            same(full_batch.scores(hop), model(FEATURES, [WHOLE, hop]).detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)


def test_what_does_not_fit_says_so() -> None:
    def fits(shape: ModelShape, features: Features = FEATURES) -> bool:
        return FullBatch.fits(build(shape, torch.Generator().manual_seed(0)), features)

    assert fits(SHAPE)
    assert fits(replace(SHAPE, backbone="gcn"))
    for other in (
        {"backbone": "gat"},
        {"layers": 1},
        {"layers": 3},
        {"dropout": 0.5},
        {"hidden": 3},
        {"joined": 4},
    ):
        assert not fits(replace(SHAPE, **other)), other
    assert not fits(SHAPE, Features(GRAPH.x.to_dense()))
    gat = build(replace(SHAPE, backbone="gat"), torch.Generator().manual_seed(0))
    with pytest.raises(TypeError, match="fits"):
        FullBatch(gat, FEATURES, WHOLE)
