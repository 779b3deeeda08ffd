"""Backbones: any number of layers, dropout from its own stream, shapes that cannot be."""

from __future__ import annotations

import pytest
import torch

from fedmend.data.sampling import hop_to, whole_graph_hop
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.models.backbones import BACKBONES, Backbone, ModelShape, build
from fedmend.models.encoder import Encoder
from fedmend.models.features import Features
from tests.tiny import tiny_graph

GRAPH = tiny_graph(30)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_of(backbone: str, layers: int = 2, dropout: float = 0.0, seed: int = 0) -> Backbone:
    shape = ModelShape(backbone, 6, 3, hidden=8, layers=layers, heads=2, dropout=dropout)
    return build(shape, seeded(seed))


def scores(
    model: Backbone, generator: torch.Generator | None = None, mended: torch.Tensor | None = None
) -> torch.Tensor:
    hops = [whole_graph_hop(GRAPH)] * len(model.layers)
    out = model(Features(GRAPH.x), hops, generator, mended)
    assert isinstance(out, torch.Tensor)
    return out


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_any_number_of_layers(backbone: str, layers: int) -> None:
    model = model_of(backbone, layers)
    assert len(model.layers) == layers
    out = scores(model)
    assert out.shape == (30, 3)
    out.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    for name, parameter in model.named_parameters():
        before = {"fused-paper": ("input.",), "gpr": ("mlp.", "own.")}.get(backbone, ())
        assert name.startswith(("layers.", *before))
        assert parameter.grad is not None, name


def test_network_is_its_layers_with_relu_between() -> None:
    model = model_of("mlp", layers=3)
    h = GRAPH.x
    for number, layer in enumerate(model.layers):
        h = (torch.relu(h) if number else h) @ layer.get_parameter("weight")
    torch.testing.assert_close(scores(model), h)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_only_mlp_is_deaf(backbone: str) -> None:
    model = model_of(backbone)
    alone = GRAPH.subgraph(torch.arange(1))
    hops = [whole_graph_hop(alone)] * 2
    same = torch.allclose(model(Features(alone.x), hops)[0], scores(model)[0], atol=1e-6)
    assert int(GRAPH.degree[0]) > 0
    assert same == (backbone == "mlp")
    assert model.uses_edges == (backbone != "mlp")


@pytest.mark.parametrize("backbone", BACKBONES)
def test_dropout_draws_from_the_given_stream_alone(backbone: str) -> None:
    model = model_of(backbone, dropout=0.5)
    before = torch.get_rng_state()
    first, again, other = (scores(model, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_dropout_is_off_in_evaluation_and_draws_nothing() -> None:
    model = model_of("sage", dropout=0.5).eval()
    generator = seeded(1)
    before = generator.get_state()
    assert torch.equal(scores(model, generator), scores(model_of("sage")))
    assert torch.equal(generator.get_state(), before)


def test_dropout_keeps_the_mean() -> None:
    """What is kept is scaled up by 1 / (1 - rate), so the expected value stays."""
    shape = ModelShape("mlp", 4, 1, hidden=2000, layers=2, heads=1, dropout=0.75)
    model = build(shape, seeded())
    with torch.no_grad():
        model.layers[0].get_parameter("weight").fill_(1.0)
        model.layers[1].get_parameter("weight").fill_(1.0 / 2000)
    out = float(model(Features(torch.ones(1, 4)), [whole_graph_hop(GRAPH)] * 2, seeded()).detach())
    # 2000 kept-or-not values of 16 or 0: standard error 4 * sqrt(3 / 2000) = 0.15
    assert out == pytest.approx(4.0, abs=0.6)
    assert out != 4.0


def test_same_seed_same_weights() -> None:
    one, same, other = (model_of("gat", seed=seed) for seed in (1, 1, 2))
    pairs = zip(one.parameters(), same.parameters(), other.parameters(), strict=True)
    for first, again, different in pairs:
        assert torch.equal(first, again)
        if first.dim() > 1:
            assert not torch.equal(first, different)


def test_shapes_that_cannot_be() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sage'"):
        build(ModelShape("sagee", 3, 2, 8, 2, 4, 0.0), seeded())
    with pytest.raises(SettingsError, match="hidden=10 cannot be shared by heads=4"):
        build(ModelShape("gat", 3, 2, 10, 2, 4, 0.0), seeded())


# Embedding-fused convolution (FedDEP)

BROUGHT = torch.rand(30, 5, generator=seeded(7)) - 0.5
FUSED = pytest.mark.parametrize("backbone", ["fused-sage", "fused-paper"])


def fused_of(backbone: str, layers: int = 2, dropout: float = 0.0) -> Backbone:
    shape = ModelShape(
        backbone, 6, 3, hidden=8, layers=layers, heads=2, dropout=dropout, embedding=5
    )
    return build(shape, seeded())


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_without_mended_embeddings_it_is_graphsage(layers: int) -> None:
    """To the bit, from the same seed: weights for what is mended are drawn last."""
    plain, fused = model_of("sage", layers), fused_of("fused-sage", layers)
    weights = dict(fused.named_parameters())
    assert all(torch.equal(value, weights[key]) for key, value in plain.named_parameters())
    assert torch.equal(scores(fused), scores(plain))
    assert torch.equal(scores(fused, mended=torch.zeros(30, 5)), scores(plain))
    assert not torch.equal(scores(fused, mended=BROUGHT), scores(plain))
    assert torch.equal(scores(plain, mended=BROUGHT), scores(plain)), "it has no place for them"


@FUSED
def test_without_mended_embeddings_dropout_draws_the_same(backbone: str) -> None:
    fused = fused_of(backbone, 3, dropout=0.5)
    bare, zeros = scores(fused, seeded(1)), scores(fused, seeded(1), torch.zeros(30, 5))
    assert torch.equal(bare, zeros)


@pytest.mark.parametrize("layers", [1, 2, 3])
@FUSED
def test_every_layer_has_weights_of_its_own_for_what_is_mended(backbone: str, layers: int) -> None:
    model = fused_of(backbone, layers)
    before = scores(model, mended=BROUGHT).detach()
    names = [name for name, _ in model.named_parameters() if name.startswith("mended.")]
    assert len(names) == layers + (backbone == "fused-paper")
    for name in names:
        parameter = model.get_parameter(name)
        with torch.no_grad():
            parameter.add_(0.3)
        assert not torch.allclose(scores(model, mended=BROUGHT), before), name
        with torch.no_grad():
            parameter.sub_(0.3)
    scores(model, mended=BROUGHT).square().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize("layers", [1, 2, 3])
@FUSED
def test_fused_layers_by_plain_loops(backbone: str, layers: int) -> None:
    """Node by node; `fused-paper`: K + 1 matrices, means over the closed neighbourhood."""
    model = fused_of(backbone, layers)
    w = {name: each.detach() for name, each in model.named_parameters()}
    heard = {v: GRAPH.col[GRAPH.rowptr[v] : GRAPH.rowptr[v + 1]].tolist() for v in range(30)}
    h = {v: GRAPH.x[v] for v in range(30)}
    first = 0
    if backbone == "fused-paper":
        first = 1
        h = {
            v: torch.relu(
                row @ w["input.weight"] + w["input.bias"] + BROUGHT[v] @ w["mended.0.weight"]
            )
            for v, row in h.items()
        }
    for layer in range(layers):
        out = {}
        for v in range(30):
            if backbone == "fused-paper":
                closed = [h[u] for u in (v, *heard[v])]
                row = torch.stack(closed).mean(0) @ w[f"layers.{layer}.weight"]
            else:
                mean = sum((h[u] for u in heard[v]), torch.zeros_like(h[v])) / max(len(heard[v]), 1)
                row = h[v] @ w[f"layers.{layer}.own"] + mean @ w[f"layers.{layer}.neighbours"]
            out[v] = row + w[f"layers.{layer}.bias"]
            out[v] = out[v] + BROUGHT[v] @ w[f"mended.{layer + first}.weight"]
        h = out if layer == layers - 1 else {v: torch.relu(row) for v, row in out.items()}
    torch.testing.assert_close(scores(model, mended=BROUGHT), torch.stack(list(h.values())))


@FUSED
def test_mended_embeddings_follow_the_rows_of_a_hop(backbone: str) -> None:
    """The last hop computes some nodes only, and finds their embeddings."""
    model, nodes = fused_of(backbone), torch.tensor([17, 3, 3])
    hops = [whole_graph_hop(GRAPH), hop_to(GRAPH, nodes)]
    found = model(Features(GRAPH.x), hops, None, BROUGHT)
    torch.testing.assert_close(found, scores(model, mended=BROUGHT)[nodes])


def test_encoder_gives_embeddings_and_learns_by_its_head() -> None:
    shape = ModelShape("sage", 6, 3, hidden=8, layers=2, heads=1, dropout=0.0)
    encoder = Encoder(shape, 5, seeded())
    hops = [whole_graph_hop(GRAPH)] * 2
    z = encoder.embed(Features(GRAPH.x), hops)
    assert z.shape == (30, 5)
    assert float(z.detach().abs().max()) <= 1.0
    plain = build(ModelShape("sage", 6, 5, hidden=8, layers=2, heads=1, dropout=0.0), seeded())
    assert torch.equal(z, torch.tanh(scores(plain)))
    out = encoder(Features(GRAPH.x), hops)
    torch.testing.assert_close(out, z @ encoder.head.weight + encoder.head.bias)
    out.sum().backward()
    assert all(each.grad is not None for each in encoder.parameters())


def test_number_of_hops_must_be_that_of_layers() -> None:
    with pytest.raises(ValueError, match="zip"):
        model_of("sage")(Features(GRAPH.x), [whole_graph_hop(GRAPH)])


# GPR-GNN


def gcn_matrix() -> torch.Tensor:
    """D^-1/2 (A + I) D^-1/2, written out node by node."""
    matrix = torch.zeros(GRAPH.num_nodes, GRAPH.num_nodes)
    for v in range(GRAPH.num_nodes):
        around = GRAPH.col[GRAPH.rowptr[v] : GRAPH.rowptr[v + 1]].tolist()
        for u in [*around, v]:
            matrix[v, u] = 1.0 / float((GRAPH.degree[v] + 1) * (GRAPH.degree[u] + 1)) ** 0.5
    return matrix


@pytest.mark.parametrize("hops", [1, 3])
def test_gpr_gnn_is_a_weighted_sum_of_hops(hops: int) -> None:
    model = model_of("gpr", hops)
    named = dict(model.named_parameters())
    gammas = [named["own.gamma"], *(named[f"layers.{hop}.gamma"] for hop in range(hops))]
    started = [0.1 * 0.9**hop for hop in range(hops)] + [0.9**hops]
    torch.testing.assert_close(torch.cat(tuple(gammas)), torch.tensor(started))
    with torch.no_grad():
        for gamma in gammas:
            gamma.add_(torch.rand(1, generator=seeded(3)))
    h = torch.relu(GRAPH.x @ named["mlp.0.weight"] + named["mlp.0.bias"])
    h = h @ named["mlp.1.weight"] + named["mlp.1.bias"]
    matrix, total = gcn_matrix(), torch.zeros_like(h)
    for gamma in gammas:
        total, h = total + gamma * h, matrix @ h
    torch.testing.assert_close(scores(model), total)
    # The same for some nodes only.
    some = torch.tensor([3, 17])
    last = [whole_graph_hop(GRAPH)] * (hops - 1) + [hop_to(GRAPH, some)]
    torch.testing.assert_close(model(Features(GRAPH.x), last), total[some])


# Joined with rows from elsewhere


@pytest.mark.parametrize("backbone", ["sage", "gcn", "gat", "gpr", "mlp"])
def test_joined_scores_are_a_linear_layer_on_both(backbone: str) -> None:
    shape = ModelShape(backbone, 6, 3, 8, 2, 2, 0.0, embedding=5, joined=4)
    model = build(shape, seeded())
    plain = build(ModelShape(backbone, 6, 4, 8, 2, 2, 0.0), seeded())
    own, brought = scores(plain), torch.rand(30, 5, generator=seeded(1))
    joint = dict(model.named_parameters())
    expected = torch.cat([own, brought], 1) @ joint["joint.weight"] + joint["joint.bias"]
    everyone = whole_graph_hop(GRAPH)
    torch.testing.assert_close(model(Features(GRAPH.x), [everyone] * 2, None, brought), expected)
    some = torch.tensor([20, 4])
    hops = [everyone, hop_to(GRAPH, some)]
    torch.testing.assert_close(model(Features(GRAPH.x), hops, None, brought), expected[some])
    without = torch.cat([own, torch.zeros(30, 5)], 1) @ joint["joint.weight"] + joint["joint.bias"]
    torch.testing.assert_close(scores(model), without)


def test_dropout_acts_on_what_is_brought_along() -> None:
    shape = ModelShape("mlp", 6, 3, 8, 1, 1, 0.5, embedding=400, joined=4)
    model = build(shape, seeded())
    brought = torch.ones(30, 400)
    hops = [whole_graph_hop(GRAPH)]
    first, again = (model(Features(GRAPH.x), hops, seeded(1), brought) for _ in range(2))
    plain = model.eval()(Features(GRAPH.x), hops, None, brought)
    assert torch.equal(first, again)
    assert not torch.allclose(first, plain)
    # What is kept is scaled up: on average nothing changes.
    assert float((first - plain).detach().mean().abs()) < 0.3
