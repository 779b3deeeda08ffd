"""DP-SGD: per-node norms against autograd node by node, the clipped sum, and the noise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.sampling import whole_graph_hop
from fedmend.graph import Graph, select_rows
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.encoder import Encoder
from fedmend.models.features import Features
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.mechanism import GaussianSum
from fedmend.privacy.noise import PublicNoise
from fedmend.training import dp_sgd as private_training
from fedmend.training.dp_sgd import (
    MOST_KEPT,
    InputProducts,
    forest,
    private_gradients,
)
from tests.tiny import plain_graph, tiny_graph

MODELS = ("fused-sage", "fused-paper", "encoder", "sage")
EMBEDDING = 5


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_of(kind: str, layers: int = 2) -> Backbone:
    embedding = EMBEDDING if kind.startswith("fused") else 0
    backbone = "sage" if kind == "encoder" else kind
    shape = ModelShape(backbone, 6, 3, 8, layers, 1, 0.0, embedding)
    return Encoder(shape, EMBEDDING, seeded()) if kind == "encoder" else build(shape, seeded())


def mended_for(kind: str, graph: Graph) -> Tensor | None:
    if not kind.startswith("fused"):
        return None
    return torch.randn(graph.num_nodes, EMBEDDING, generator=seeded(2))


def term_gradients(model: Backbone, graph: Graph, batch: Tensor, mended: Tensor | None) -> Tensor:
    """Every node's own gradient, one autograd call each: a row per node."""
    hops = [whole_graph_hop(graph)] * len(model.layers)
    scores = model(Features(graph.x), hops, None, mended)[batch]
    rows = []
    for place, node in enumerate(batch.tolist()):
        loss = F.cross_entropy(scores[place : place + 1], graph.y[node : node + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows)


def step(
    model: Backbone,
    graph: Graph,
    batch: Tensor,
    mended: Tensor | None,
    clip: float,
    noise: float,
    *,
    own_inputs: bool = True,
    products: InputProducts | None = None,
) -> Tensor:
    around = forest(graph, batch, len(model.layers), own_inputs=own_inputs)
    model.zero_grad()
    everybody = torch.arange(graph.num_nodes)
    nodes = everybody if around.nodes is None else around.nodes
    private_gradients(
        model,
        Features(select_rows(graph.x, nodes), reused=around.nodes is None),
        around,
        graph.y[batch],
        mechanism=GaussianSum(clip, noise, GaussianAccountant(graph.num_nodes), PublicNoise(3)),
        mended=None if mended is None else mended[nodes],
        products=products,
    )
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_clipped_sum_equals_clipping_node_by_node(kind: str, sparse: bool, layers: int) -> None:
    graph = tiny_graph(40, sparse=sparse)
    model = model_of(kind, layers)
    mended = mended_for(kind, graph)
    batch = torch.nonzero(graph.train_mask)[:9, 0]
    each = term_gradients(model, graph, batch, mended)
    norms = each.norm(dim=1)
    clip = float(norms.median())  # some are clipped, some are not
    expected = (each * (clip / norms).clamp(max=1.0)[:, None]).mean(0)
    found = step(model, graph, batch, mended, clip, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    if model.input is None:  # otherwise each term needs input rows of its own
        found = step(model, graph, batch, mended, clip, 0.0, own_inputs=False)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("most", [MOST_KEPT, 60, 0])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_kept_inner_products_serve_other_batches(
    monkeypatch: pytest.MonkeyPatch, most: int, sparse: bool, layers: int
) -> None:
    """Batches of the same nodes, put together anew; with and without room for all of them."""
    monkeypatch.setattr(private_training, "MOST_KEPT", most)
    graph, model = tiny_graph(40, sparse=sparse), model_of("sage", layers)
    products = InputProducts(graph.num_nodes)
    nodes = torch.nonzero(graph.train_mask)[:12, 0]
    for seed in range(4):
        order = torch.randperm(len(nodes), generator=seeded(seed))
        for batch in torch.split(nodes[order], 5):
            usual = step(model, graph, batch, None, 0.01, 0.0, own_inputs=False)
            found = step(model, graph, batch, None, 0.01, 0.0, own_inputs=False, products=products)
            torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-8)


def test_without_clipping_or_noise_it_is_the_plain_gradient() -> None:
    graph, model = tiny_graph(40), model_of("sage")
    batch = torch.nonzero(graph.train_mask)[:9, 0]
    plain = term_gradients(model, graph, batch, None).mean(0)
    found = step(model, graph, batch, None, 1e6, 0.0)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)


def test_noise_has_the_promised_size_and_reaches_every_weight() -> None:
    graph = tiny_graph(40)
    shape = ModelShape("sage", 6, 3, 4000, 2, 1, 0.0)
    batch = torch.nonzero(graph.train_mask)[:8, 0]
    quiet = step(build(shape, seeded()), graph, batch, None, 0.5, 0.0)
    noisy = step(build(shape, seeded()), graph, batch, None, 0.5, 3.0)
    noise = (noisy - quiet) * len(batch)
    assert bool((noise != 0).all())
    assert float(noise.std()) == pytest.approx(3.0 * 0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.05


def test_one_term_changes_a_step_by_no_more_than_the_norm() -> None:
    """The sensitivity that the noise is measured by: adding a term of any size."""
    graph, model = tiny_graph(40), model_of("sage")
    batch = torch.nonzero(graph.train_mask)[:9, 0]
    clip = 0.01
    with_it = step(model, graph, batch, None, clip, 0.0) * len(batch)
    without = step(model, graph, batch[:-1], None, clip, 0.0) * (len(batch) - 1)
    assert float((with_it - without).norm()) <= clip * (1 + 1e-4)


def test_a_forest_shares_nothing_and_hears_everybody() -> None:
    graph = plain_graph(5, [(0, 1), (0, 2), (1, 2), (3, 0)], features=6)
    around = forest(graph, torch.tensor([0, 2, 4]), 2, own_inputs=True)
    assert around.nodes is not None
    assert around.nodes[:3].tolist() == [0, 2, 4]
    for hop in around.hops:
        assert len(set(hop.col.tolist())) == len(hop.col)  # every row is heard by one row only
    # Node 4 is isolated: its tree is itself alone.
    assert int((around.tree == 2).sum()) == 1
    # Node 0 has three neighbours, which have 2 + 2 + 1 of their own, itself among them.
    assert int((around.tree == 0).sum()) == 1 + 3 + 3 + (2 + 2 + 1)
