"""A silo's own training: batches, optimiser, validation, saving."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import DataError, FederationError, SettingsError
from fedmend.federation import Schema
from fedmend.graph import Graph
from fedmend.models.features import Features
from fedmend.training.local import LocalTraining
from fedmend.training.settings import TrainingSettings
from fedmend.training.streams import stream, stream_seed
from tests.tiny import same_weights, tiny_graph

GRAPH = tiny_graph(60)


def training(
    graph: Graph = GRAPH, name: str = "silo", seed: int = 0, **changes: Any
) -> LocalTraining:
    settings = TrainingSettings(
        **{"hidden": 8, "batch_size": 8, "fan_out": 2, "lr": 0.01, **changes}
    )
    shape = settings.shape(Schema(graph.num_features, graph.label_names))
    return LocalTraining(name, graph, shape, settings, seed)


def kept(local: LocalTraining) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in local.weights().items()}


@pytest.mark.parametrize("size", [1, 7, 35, 36, 37, 0])
def test_an_epoch_visits_every_training_node_once(size: int) -> None:
    local = training(batch_size=size)
    nodes = torch.nonzero(GRAPH.train_mask)[:, 0]
    assert len(nodes) == 36
    batches = local._epoch()
    assert sorted(torch.cat(list(batches)).tolist()) == nodes.tolist()
    assert {len(batch) for batch in batches[:-1]} <= {size}
    again = local._epoch()
    if 0 < size < 36:
        assert torch.cat(list(again)).tolist() != torch.cat(list(batches)).tolist()


@pytest.mark.parametrize("backbone", ["sage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_full_batch_loss_is_that_of_the_whole_graph(backbone: str, sparse: bool) -> None:
    graph = tiny_graph(60, sparse=sparse)
    local = training(graph, backbone=backbone, batch_size=0, fan_out=0)
    hops = [whole_graph_hop(graph)] * 2
    with torch.no_grad():
        scores = local.model(Features(graph.x), hops)
    expected = F.cross_entropy(scores[graph.train_mask], graph.y[graph.train_mask])
    assert local.train() == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("backbone", ["sage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("batch", [2, 30], ids=["few rows", "all rows"])
def test_batches_with_all_neighbours_score_as_the_whole_graph(
    backbone: str, batch: int, sparse: bool
) -> None:
    """The ways of computing a batch (gathered, picked from everybody, all rows, alone) agree."""
    graph = tiny_graph(200, sparse=sparse)
    local = training(graph, backbone=backbone, batch_size=batch, fan_out=0)
    nodes = local._epoch()[0]
    with torch.no_grad():
        scores = local.model(Features(graph.x), [whole_graph_hop(graph)] * 2)
        found = local.scores(nodes)
    torch.testing.assert_close(found, scores[nodes], atol=1e-5, rtol=1e-5)


def test_loss_is_the_mean_over_nodes_not_over_batches() -> None:
    """36 nodes in batches of 35 and 1, with steps so small that the model stands still."""
    local = training(batch_size=35, fan_out=0, lr=0.0, backbone="mlp")
    with torch.no_grad():
        scores = local.scores(local.train_nodes)
    expected = float(F.cross_entropy(scores, GRAPH.y[local.train_nodes]))
    assert local.train() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("backbone", ["sage", "gcn", "gat", "mlp"])
def test_validation_changes_nothing_in_training(
    backbone: str, layers: int, dropout: float, sparse: bool
) -> None:
    """A full batch shares what validation computed, but never of other weights, and to the bit."""
    graph = tiny_graph(60, sparse=sparse)
    settings: dict[str, Any] = {"batch_size": 0, "fan_out": 0, "layers": layers, "dropout": dropout}
    alone, checked = (training(graph, backbone=backbone, **settings) for _ in range(2))
    checked.validate()
    checked.validate()
    assert checked.train() == alone.train()
    checked.validate()
    halved = {key: value / 2 for key, value in kept(alone).items()}
    for local in (alone, checked):
        local.load(halved)
    assert checked.train() == alone.train()
    with torch.no_grad():  # keeps nothing that a backward pass could go through
        checked.validate()
    assert checked.train() == alone.train()
    assert same_weights(alone.weights(), checked.weights())
    counted = training(graph, backbone=backbone, **settings)
    counted.load(alone.weights())
    assert torch.equal(checked.validate(), counted.validate())


@pytest.mark.parametrize("backbone", ["sage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_validation_counts_right_nodes(backbone: str, layers: int) -> None:
    local = training(backbone=backbone, layers=layers)
    local.train()
    with torch.no_grad():
        scores = local.model(Features(GRAPH.x), [whole_graph_hop(GRAPH)] * layers)
    found, true = scores.argmax(1).tolist(), GRAPH.y.tolist()
    nodes = torch.nonzero(GRAPH.val_mask)[:, 0].tolist()
    assert local.validate().tolist() == [sum(found[n] == true[n] for n in nodes), len(nodes)]


def test_validation_draws_nothing_and_changes_nothing() -> None:
    one, other = training(dropout=0.5), training(dropout=0.5)
    for _ in range(3):
        one.validate()
    one.train()
    other.train()
    assert same_weights(one.weights(), other.weights())


def test_without_validation_nodes() -> None:
    nobody = torch.zeros(60, dtype=torch.bool)
    local = training(GRAPH.with_masks(GRAPH.train_mask, nobody, GRAPH.test_mask))
    assert local.validate().tolist() == [0, 0]


def test_optimiser_remembers_or_forgets() -> None:
    runs = {}
    for keep in (True, False):
        local = training(keep_optimizer=keep, batch_size=0, fan_out=0)
        local.train()
        runs[keep] = [kept(local)]
        local.train()
        runs[keep].append(kept(local))
    assert same_weights(runs[True][0], runs[False][0])
    assert not same_weights(runs[True][1], runs[False][1])


def test_local_epochs_are_passes() -> None:
    once, twice = training(), training(local_epochs=2)
    once.train()
    once.train()
    twice.train()
    assert same_weights(once.weights(), twice.weights())


def test_weight_decay_and_sgd_by_hand() -> None:
    """One full-batch step of SGD is w - lr (gradient + decay w)."""
    local = training(optimizer="sgd", lr=0.5, weight_decay=0.1, batch_size=0, fan_out=0)
    before = kept(local)
    scores = local.model(Features(GRAPH.x), [whole_graph_hop(GRAPH)] * 2)
    loss = F.cross_entropy(scores[GRAPH.train_mask], GRAPH.y[GRAPH.train_mask])
    gradients = torch.autograd.grad(loss, list(local.model.parameters()))
    local.train()
    for (key, old), gradient in zip(before.items(), gradients, strict=True):
        expected = old - 0.5 * (gradient + 0.1 * old)
        torch.testing.assert_close(local.weights()[key], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_state_goes_on_exactly_as_before(optimizer: str) -> None:
    whole = training(optimizer=optimizer, dropout=0.3)
    whole.train()
    state = {key: value.clone() for key, value in whole.state().items()}
    whole.train()
    resumed = training(optimizer=optimizer, dropout=0.3)
    resumed.restore(state)
    resumed.train()
    assert same_weights(resumed.weights(), whole.weights())
    assert same_weights(resumed.state(), whole.state())


def test_load_takes_over_some_weights_or_all() -> None:
    local = training()
    before = kept(local)
    local.load({"layers.0.bias": torch.ones(8), "unknown": torch.ones(1)})
    assert torch.equal(local.weights()["layers.0.bias"], torch.ones(8))
    assert torch.equal(local.weights()["layers.1.own"], before["layers.1.own"])


def test_silos_and_seeds_draw_differently() -> None:
    def order(name: str, seed: int) -> list[int]:
        listed: list[int] = torch.cat(list(training(name=name, seed=seed)._epoch())).tolist()
        return listed

    assert order("a", 0) == order("a", 0)
    assert order("a", 0) != order("b", 0)
    assert order("a", 0) != order("a", 1)


def test_streams_do_not_collide() -> None:
    assert stream_seed(1, "a", "b") == stream_seed(1, "a", "b")
    seeds = [
        stream_seed(1, "a"),
        stream_seed(1, "b"),
        stream_seed(2, "a"),
        stream_seed(1, "a", "a"),
        stream_seed(11, "a"),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    first = torch.rand(2, generator=stream(0, "x"))
    assert torch.equal(first, torch.rand(2, generator=stream(0, "x")))


def test_nobody_to_train_on() -> None:
    nobody = torch.zeros(60, dtype=torch.bool)
    with pytest.raises(DataError, match="clinic has no training nodes: give some"):
        training(GRAPH.with_masks(nobody, nobody, nobody), name="clinic")


def test_diverged_training_names_the_silo_and_the_remedy() -> None:
    local = training(name="clinic", optimizer="sgd", lr=1e30, local_epochs=5)
    with pytest.raises(FederationError, match=r"clinic: training diverged.*try a smaller lr"):
        local.train()


@pytest.mark.parametrize("device", ["cuda:99", "nowhere", "meta:x"])
def test_device_that_is_not_here(device: str) -> None:
    with pytest.raises(SettingsError, match=f"device '{device}' cannot be used here") as caught:
        training(device=device)
    assert "\n" not in str(caught.value)


def test_two_models_of_a_silo_draw_from_streams_of_their_own() -> None:
    settings = TrainingSettings(hidden=8, batch_size=8, fan_out=2)
    shape = settings.shape(Schema(GRAPH.num_features, GRAPH.label_names))
    one, same, other = (
        LocalTraining("silo", GRAPH, shape, settings, 0, purpose) for purpose in ("", "", "deep ")
    )
    first, again, different = (
        torch.cat(list(each._epoch())).tolist() for each in (one, same, other)
    )
    assert first == again != different
    for key, stream_of_one in one._streams().items():
        assert not torch.equal(stream_of_one.get_state(), other._streams()[key].get_state())
