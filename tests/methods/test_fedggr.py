"""FedGGR: split learning is end-to-end learning, what is lost, what leaves, and who is new."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.data.sampling import whole_graph_hop
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.engines.inprocess import Fault, InProcess
from fedmend.errors import FederationError, FileFormatError, UnknownNameError
from fedmend.federation import Schema
from fedmend.graph import Graph
from fedmend.mending.learned_graph import GlobalModule, GraphMemory, initial_module, inserted
from fedmend.mending.pretraining import AutoencoderWeights, NodeEmbeddings, pretrain
from fedmend.methods import fedavg, fedggr
from fedmend.methods.fedggr import (
    FedGGRSettings,
    GlobalRows,
    Silo,
    SplitUpdate,
)
from fedmend.models.backbones import build
from fedmend.models.features import Features
from fedmend.models.learned_graph import LearnedGraph, Pairs
from fedmend.models.neighbour_search import nearest_neighbours
from fedmend.models.predictor import predict
from fedmend.privacy.noise import PublicNoise
from fedmend.runs import node_memory
from fedmend.runs.predict import predictor_of
from fedmend.runs.record import read_run
from fedmend.runs.train import Result, train
from fedmend.training.autoencoder import AutoencoderTraining
from tests.tiny import rebuilt, same_weights, tiny_graph, tiny_partition

SMALL: dict[str, Any] = {
    "rounds": 3,
    "hidden": 8,
    "local_width": 5,
    "global_width": 4,
    "global_hidden": 6,
    "embedding": 4,
    "neighbours": 4,
    "autoencoder_epochs": 5,
    "autoencoder_rounds": 0,
    "dropout": 0.0,
    "patience": 0,
}
PARTITION = tiny_partition()
NONE = torch.zeros(0, 4)


def federation(
    settings: FedGGRSettings,
    partition: Partition = PARTITION,
    faults: Iterable[Fault] = (),
    kind: type[Silo] = Silo,
) -> InProcess[Silo]:
    some = next(iter(partition.silos.values()))
    built = [
        kind(name, graph, settings, 0, noise=PublicNoise(0, name))
        for name, graph in sorted(partition.silos.items())
    ]
    schema = Schema(some.num_features, some.label_names)
    return InProcess(built, schema, 0, workers=1, faults=faults)


def learned(
    partition: Partition = PARTITION,
    faults: Iterable[Fault] = (),
    kind: type[Silo] = Silo,
    **changed: Any,
) -> GraphMemory:
    settings = FedGGRSettings(**{**SMALL, **changed})
    with federation(settings, partition, faults, kind) as engine:
        return fedggr.learn(engine, settings)


def run(**changed: Any) -> Result:
    return train("fedggr", PARTITION, **{**SMALL, **changed})


# Reductions


@pytest.mark.parametrize("batches", [{}, {"batch_size": 8, "fan_out": 2}])
def test_without_the_global_module_it_is_fedavg(batches: dict[str, int]) -> None:
    shared: dict[str, Any] = {
        "rounds": 4,
        "hidden": 8,
        "dropout": 0.3,
        "backbone": "gcn",
        "lr": 0.02,
    }
    whole: dict[str, Any] = {"batch_size": 0, "fan_out": 0, **batches}
    without = train(
        "fedggr", PARTITION, global_width=0, weighting="nodes", patience=0, **shared, **whole
    )
    plain = train("fedavg", PARTITION, evaluation="own-subgraph", **shared, **whole)
    assert same_weights(without.weights, plain.weights)
    assert without.history == plain.history
    assert without.scores == plain.scores
    assert without.record.privacy == ()
    # ... and with it, it is not.
    assert not same_weights(run().weights, plain.weights)


def test_fedprox_without_a_pull_is_fedavg() -> None:
    assert same_weights(run(aggregation="fedprox", mu=0.0).weights, run().weights)
    pulled = run(aggregation="fedprox", mu=5.0, local_epochs=2)
    assert not same_weights(pulled.weights, run(local_epochs=2).weights)


def test_fedper_keeps_the_last_linear_layer_at_home() -> None:
    settings = FedGGRSettings(**SMALL, aggregation="fedper")
    with federation(settings) as engine:
        memory = fedggr.learn(engine, settings)
        own = {name: silo.own_weights() for name, silo in engine.silos.items()}
    assert {key.split(".")[0] for key in memory.weights} == {"layers"}
    heads = [each["joint.weight"] for each in own.values() if each is not None]
    assert len(heads) == 3
    assert not torch.equal(heads[0], heads[1])
    result = run(aggregation="fedper")
    assert result.weights is None
    assert sorted(result.own) == list(PARTITION.names)
    assert all("joint.weight" in weights for weights in result.own.values())


# Split learning is end-to-end learning


def end_to_end(
    partition: Partition, settings: FedGGRSettings, start: GraphMemory, silos: list[str]
) -> dict[str, Tensor]:
    """The server's module after one SGD step on the whole composed model, by plain autograd."""
    module = LearnedGraph(
        settings.embedding,
        settings.global_hidden,
        settings.global_width,
        torch.Generator(),
        background=settings.background,
    )
    module.load_state_dict({key: value.clone() for key, value in start.best_module.items()})
    embeddings = torch.cat(list(start.embeddings.values()))
    pairs = Pairs(nearest_neighbours(module.points(embeddings), settings.neighbours))
    rows = torch.split(module(embeddings, pairs), [len(e) for e in start.embeddings.values()])
    total = torch.zeros(())
    for name, own in zip(start.embeddings, rows, strict=True):
        if name not in silos:
            continue
        graph = partition.silos[name]
        model = build(
            settings.shape(Schema(graph.num_features, graph.label_names)), torch.Generator()
        )
        model.load_state_dict(start.best)
        scores = model(Features(graph.x), [whole_graph_hop(graph)] * 2, None, own)
        loss = F.cross_entropy(scores[graph.train_mask], graph.y[graph.train_mask])
        total = total + graph.num_nodes / len(embeddings) * loss
    total.backward()  # type: ignore[no-untyped-call]  # torch's
    with torch.no_grad():
        return {
            key: value - settings.lr * value.grad
            for key, value in module.named_parameters()
            if value.grad is not None
        }


@pytest.mark.parametrize(
    ("backbone", "background", "lost"),
    [
        ("gcn", True, None),
        ("gcn", False, None),
        ("gcn", True, "silo-1"),
        ("gat", True, None),
        ("gpr", True, None),
        ("sage", True, None),
    ],
)
def test_one_round_is_a_step_of_end_to_end_learning(
    backbone: str, background: bool, lost: str | None
) -> None:
    """Q=1: the server's step is autograd's on the composed model; a lost silo gives no gradient."""
    options = {
        **SMALL,
        "rounds": 1,
        "optimizer": "sgd",
        "lr": 0.5,
        "backbone": backbone,
        "background": background,
    }
    settings = FedGGRSettings(**options)
    faults = [Fault(lost, first=1, phase="training")] if lost else []
    with federation(settings, faults=faults) as engine:
        start = GraphMemory(fedavg.initial_weights(engine, settings))
        start.module = initial_module(engine, settings)
        start.best, start.best_module = start.weights, start.module
        pretrain(engine, settings, start)
        engine.history.clear()
    memory = learned(faults=faults, **options)
    present = [name for name in PARTITION.names if name != lost]
    expected = end_to_end(PARTITION, settings, start, present)
    assert set(memory.module) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(memory.module[key].detach(), value, rtol=1e-4, atol=1e-6)
        assert not torch.equal(value, start.module[key]), "it has learned"


def one_silo(settings: FedGGRSettings) -> tuple[Silo, GlobalRows]:
    silo = Silo("silo-0", PARTITION.silos["silo-0"], settings, 0)
    schema = Schema(silo.graph.num_features, silo.graph.label_names)
    model = build(settings.shape(schema), torch.Generator().manual_seed(1))
    rows = torch.randn(silo.graph.num_nodes, 4, generator=torch.Generator().manual_seed(2))
    return silo, GlobalRows({k: v.detach() for k, v in model.named_parameters()}, rows, rows[:0])


def test_the_last_local_epochs_gradient_is_returned() -> None:
    first, start = one_silo(FedGGRSettings(**SMALL))
    after_one = first.train_split(start)
    again, _ = one_silo(FedGGRSettings(**SMALL))
    two = one_silo(FedGGRSettings(**{**SMALL, "local_epochs": 2}))[0].train_split(start)
    assert torch.equal(again.train_split(start).gradient, after_one.gradient)
    # From where one epoch led, without its optimiser's memory: that does not touch gradients.
    fresh, _ = one_silo(FedGGRSettings(**SMALL))
    second = fresh.train_split(GlobalRows(after_one.weights, start.rows, NONE))
    torch.testing.assert_close(two.gradient, second.gradient)
    assert not torch.allclose(two.gradient, after_one.gradient)


def test_mini_batches_return_the_mean_gradient_of_the_epoch() -> None:
    """With a step size of nothing, batches see the same weights: their mean is the full batch's."""
    still: dict[str, Any] = {**SMALL, "optimizer": "sgd", "lr": 0.0}
    silo, start = one_silo(FedGGRSettings(**still))
    whole = silo.train_split(start).gradient
    for size in (1, 5, 8):
        batched, _ = one_silo(FedGGRSettings(**{**still, "batch_size": size}))
        torch.testing.assert_close(batched.train_split(start).gradient, whole)


def test_gradients_tell_who_is_trained_on_and_what_its_label_is() -> None:
    """As the documentation says: a server that knows the linear layer reads labels off them."""
    silo, start = one_silo(FedGGRSettings(**SMALL))
    gradient = silo.train_split(start).gradient
    trained = gradient.abs().sum(1) > 0
    assert torch.equal(trained, silo.graph.train_mask)
    # gradient = (probabilities - label) W^T / n: the label is the one negative coefficient.
    onto_rows = start.weights["joint.weight"][SMALL["local_width"] :]
    coefficients = torch.linalg.lstsq(onto_rows, gradient[trained].T).solution.T
    assert torch.equal(coefficients.argmin(1), silo.graph.y[trained])


# Silos that are hard to learn from


def test_more_neighbours_than_nodes() -> None:
    memory = learned(neighbours=500)
    assert memory.neighbours.shape == (60, 60)
    assert all(bool(torch.isfinite(value).all()) for value in memory.module.values())


def with_features(x: Tensor) -> Partition:
    same = rebuilt(tiny_graph(60), x=x)
    assignment = np.arange(60) % 3
    silos = {
        f"silo-{number}": same.subgraph(torch.from_numpy(np.flatnonzero(assignment == number)))
        for number in range(3)
    }
    return Partition(silos, "by hand", None, same, assignment)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_nodes_that_are_all_alike(value: float) -> None:
    result = train("fedggr", with_features(torch.full((60, 6), value)), **SMALL)
    assert 0.0 <= result.accuracy <= 1.0
    assert result.weights is not None
    assert all(bool(torch.isfinite(each).all()) for each in result.weights.values())


def test_a_silo_of_one_node() -> None:
    graph = tiny_graph(40)
    alone = int(torch.nonzero(graph.train_mask)[0])
    assignment = np.zeros(40, dtype=np.int64)
    assignment[alone] = 1
    silos = {
        name: graph.subgraph(torch.from_numpy(np.flatnonzero(assignment == number)))
        for number, name in enumerate(("many", "one"))
    }
    partition = Partition(silos, "by hand", None, graph, assignment)
    result = train("fedggr", partition, **SMALL)
    assert result.weights is not None
    assert all(bool(torch.isfinite(each).all()) for each in result.weights.values())
    memory = learned(partition)
    assert [len(each) for each in memory.embeddings.values()] == [39, 1]


# Who was lost


def test_a_silo_without_embeddings_trains_without_rows_and_is_asked_again() -> None:
    faults = [Fault("silo-1", phase="embeddings"), Fault("silo-1", first=1, last=1)]
    settings = FedGGRSettings(**SMALL)
    with federation(settings, faults=faults) as engine:
        memory = fedggr.learn(engine, settings)
        asked = engine.ledger.by("silo", "phase", "round", "message")
    assert ("silo-1", "training", 1, "fedggr.NodeEmbeddings") not in asked
    assert ("silo-1", "training", 2, "fedggr.NodeEmbeddings") in asked
    assert ("silo-1", "training", 3, "fedggr.NodeEmbeddings") not in asked, "they are here"
    assert list(memory.embeddings) == list(PARTITION.names)
    assert len(memory.neighbours) == 60
    # A silo whose embeddings never come still trains.
    silo, start = one_silo(settings)
    update = silo.train_split(GlobalRows(start.weights, NONE, NONE))
    assert update.gradient.shape == (0, 4)
    zeros = one_silo(settings)[0].train_split(
        GlobalRows(start.weights, torch.zeros(silo.graph.num_nodes, 4), NONE)
    )
    assert update.loss == pytest.approx(zeros.loss)


# What is refused


class Liar(Silo):
    """As silo-0 it sends these instead of the truth."""

    embeddings: Tensor | None = None
    gradient: Tensor | None = None

    def share_embeddings(self, received: AutoencoderWeights) -> NodeEmbeddings:
        true = super().share_embeddings(received)
        if self.embeddings is None or self.name != "silo-0":
            return true
        return NodeEmbeddings(self.embeddings, 0.0)

    def train_split(self, received: GlobalRows) -> SplitUpdate:
        true = super().train_split(received)
        if self.gradient is None or self.name != "silo-0":
            return true
        fields = {key: getattr(true, key) for key in SplitUpdate.__dataclass_fields__}
        return SplitUpdate(**{**fields, "gradient": self.gradient})


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (torch.zeros(20, 5), r"silo-0 sent embeddings as \(20, 5\) of torch.float32, expected"),
        (torch.zeros(20), r"silo-0 sent embeddings as \(20,\)"),
        (torch.zeros(20, 4, dtype=torch.float64), "of torch.float64"),
        (torch.full((20, 4), math.nan), "silo-0 sent embeddings that are NaN or infinite"),
    ],
)
def test_embeddings_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, sent: Tensor, why: str
) -> None:
    monkeypatch.setattr(Liar, "embeddings", sent)
    with pytest.raises(FederationError, match=why):
        learned(kind=Liar)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            torch.zeros(3, 4),
            r"silo-0 sent gradients as \(3, 4\) of torch.float32, expected \(20, 4",
        ),
        (torch.full((20, 4), math.inf), "silo-0 sent gradients that are NaN or infinite"),
    ],
)
def test_gradients_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, sent: Tensor, why: str) -> None:
    monkeypatch.setattr(Liar, "gradient", sent)
    with pytest.raises(FederationError, match=why):
        learned(kind=Liar)


def test_rows_that_do_not_fit() -> None:
    silo, start = one_silo(FedGGRSettings(**SMALL))
    with pytest.raises(FederationError, match=r"silo-0 got rows of \(7, 4\) from the server"):
        silo.train_split(GlobalRows(start.weights, start.rows[:7], NONE))


# The learned graph of a run


def test_neighbours_are_searched_when_it_is_due() -> None:
    every = run(rounds=5).history["training"]
    third = run(rounds=5, refresh=3).history["training"]
    assert [n for n, noted in every.items() if "crossing_edges" in noted] == list(range(6))
    assert [n for n, noted in third.items() if "crossing_edges" in noted] == [0, 3]
    assert not torch.equal(learned(rounds=5).neighbours, learned(rounds=5, refresh=9).neighbours)


def test_share_of_edges_that_cross_silos() -> None:
    memory = GraphMemory({})
    memory.embeddings = {"a": torch.zeros(2, 4), "b": torch.zeros(1, 4)}
    memory.module, memory.dropping = learned().module, torch.Generator().get_state()
    memory.neighbours = torch.tensor([[0, 1], [1, 2], [2, 0]])
    module = GlobalModule(FedGGRSettings(**SMALL), memory)
    assert module.crossing() == pytest.approx(2 / 3)
    chance = run().history["embeddings"][1]["crossing_by_chance"]
    assert chance == pytest.approx(2 / 3)  # three silos of twenty nodes


def test_both_evaluation_modes_use_the_rows() -> None:
    own, whole = run(), run(evaluation="global-graph")
    assert own.scores is not None
    assert own.scores.mode == "own-subgraph", "the default, as in the paper"
    assert whole.scores is not None
    assert whole.scores.mode == "global-graph"
    settings = FedGGRSettings(**SMALL)
    with federation(settings) as engine:
        memory = fedggr.learn(engine, settings)
        brought = rows_of(engine, memory.best)
    assert PARTITION.whole is not None
    rows = torch.zeros(60, 4)
    for name, each in brought.items():
        assert each is not None
        assert torch.equal(each, memory.best_rows[name])
        rows[torch.from_numpy(PARTITION.rows(name))] = each
    # Every test node once on the whole graph: for one shared model that is the same.
    crossing = run(evaluation="cross-edges")
    assert crossing.scores is not None
    assert crossing.scores.accuracy == pytest.approx(whole.scores.accuracy)
    graph = PARTITION.whole
    scores = whole.model(Features(graph.x), [whole_graph_hop(graph)] * 2, None, rows)
    right = (scores.argmax(1) == graph.y)[graph.test_mask]
    assert whole.scores.accuracy == pytest.approx(float(right.float().mean()))


def test_autoencoders_averaged_or_alone_start_alike() -> None:
    settings = FedGGRSettings(**{**SMALL, "autoencoder_epochs": 0})
    graphs = PARTITION.silos
    silos = [Silo(name, graph, settings, 0) for name, graph in graphs.items()]
    first = [silo._autoencoder().weights() for silo in silos]
    assert all(same_weights(first[0], other) for other in first[1:])
    averaged = learned(autoencoder_rounds=2)
    assert averaged.autoencoder
    assert not torch.equal(averaged.embeddings["silo-0"], learned().embeddings["silo-0"])


def test_the_servers_dropout_is_for_training_alone() -> None:
    settings = FedGGRSettings(**{**SMALL, "global_dropout": 0.5})
    with federation(settings) as engine:
        memory = fedggr.learn(engine, settings)
        module = GlobalModule(settings, memory)
        first, again = module.rows(), module.rows()
        drawn, other = module.training_rows(), module.training_rows()
    assert torch.equal(first["silo-0"], again["silo-0"])
    assert not torch.equal(drawn["silo-0"], other["silo-0"])
    assert not torch.equal(first["silo-0"], drawn["silo-0"])
    assert not GlobalModule(FedGGRSettings(**SMALL), memory).training_rows()
    # A silo validates with the first and trains with the second.
    silo, start = one_silo(FedGGRSettings(**SMALL))
    both = GlobalRows(start.weights, start.rows, torch.zeros_like(start.rows))
    plain = one_silo(FedGGRSettings(**SMALL))[0].train_split(start)
    zero = GlobalRows(start.weights, torch.zeros_like(start.rows), NONE)
    without = one_silo(FedGGRSettings(**SMALL))[0].train_split(zero)
    update = silo.train_split(both)
    assert torch.equal(update.validation, plain.validation)
    assert update.loss == without.loss != plain.loss


# Stopping early


def stop_after(number: int) -> Watch:
    watch = Watch()

    def on_round(moment: Moment) -> None:
        watch.stop_requested = moment.phase == "training" and moment.round >= number

    watch.on_round = on_round
    return watch


@pytest.mark.parametrize("method", ["fedggr", "fedavg"])
def test_training_ends_when_validation_does_not_become_better(tmp_path: Path, method: str) -> None:
    options: dict[str, Any] = {"rounds": 60, "patience": 4, "hidden": 8, "batch_size": 0}
    options.update({"evaluation": "own-subgraph", "lr": 0.05})
    if method == "fedggr":
        options = {**SMALL, **options}
    result = train(method, PARTITION, **options)
    rounds = result.history["training"]
    last = max(rounds)
    (kept,) = (number for number, noted in rounds.items() if "selected" in noted)
    assert last < 60
    # The last round's own result is validated too, and may be the best after all.
    assert last - kept in (0, 5)
    # Interrupted and resumed, or resumed when it was over, it ends in the same way.
    with pytest.raises(Interrupted):
        train(method, PARTITION, out=tmp_path, watch=stop_after(3), **options)
    for _ in range(2):
        again = train(method, PARTITION, out=tmp_path, resume=True, **options)
        assert same_weights(again.weights, result.weights)
        assert again.history == result.history
        assert again.scores == result.scores


# Noise


def test_noise_and_what_it_is_worth() -> None:
    plain, noisy = learned(), learned(embedding_noise=2.0, gradient_noise=3.0)
    assert not torch.allclose(plain.embeddings["silo-0"], noisy.embeddings["silo-0"])
    without = run().record.privacy
    assert [each.epsilon for each in without] == [None, None, None]
    assert [each.uses for each in without] == [1, 3, 4]
    assert "an embedding of each of the 60 nodes (width 4)" in without[0].sentence
    assert "reveals training labels" in without[1].sentence
    assert all("no noise, no protection" in each.sentence for each in without)
    result = run(embedding_noise=4.0, gradient_noise=40.0)
    embeddings, gradients, both = (each.epsilon or 0.0 for each in result.record.privacy)
    # A Gaussian of sigma/2 per unit: mu = 2/4, and mu = sqrt(3) * 2/40; they compose in squares.
    assert 1.0 < embeddings < 3.0
    assert 0.0 < gradients < embeddings < both
    more = run(embedding_noise=8.0, gradient_noise=40.0).record.privacy[0]
    assert 0.0 < (more.epsilon or 0.0) < embeddings
    half = run(embedding_noise=4.0).record.privacy
    assert [each.epsilon for each in half] == [embeddings, None, None]


# New nodes


def grown(graph: Graph, new: int) -> Graph:
    """The graph with new nodes behind it, each joined to an old one."""
    x = torch.randn(new, graph.num_features, generator=torch.Generator().manual_seed(5))
    edges = [(graph.num_nodes + number, number) for number in range(new)]
    ends = np.concatenate([np.asarray(graph.edges), np.array(edges).T], axis=1)
    ids = np.concatenate([graph.node_ids, 1000 + np.arange(new)])
    return Graph(torch.cat([graph.x, x]), ends, node_ids=ids, label_names=graph.label_names)


def rows_of(engine: InProcess[Silo], weights: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """What each silo's nodes bring along in the end."""
    found = {name: silo.predictor(weights) for name, silo in engine.silos.items()}
    return {name: None if each is None else each.rows for name, each in found.items()}


@pytest.mark.parametrize(
    "changed", [{}, {"autoencoder_rounds": 2}, {"aggregation": "fedper"}, {"embedding_noise": 0.1}]
)
def test_new_nodes_are_embedded_inserted_and_predicted(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    settings = FedGGRSettings(**{**SMALL, **changed})
    with federation(settings) as engine:
        memory = fedggr.learn(engine, settings)
        silo = engine.silos["silo-1"]
        known = rows_of(engine, memory.best)["silo-1"]
    assert known is not None
    result = train("fedggr", PARTITION, out=tmp_path, **{**SMALL, **changed})
    graph = grown(silo.graph, 3)
    now = result.predict(graph, "silo-1").probabilities
    noisy = "embedding_noise" in changed  # every upload draws its own
    # The same written out: rows of the learned graph with the new nodes in it.
    encoder = AutoencoderTraining("silo-1", graph, settings, 0)
    assert silo.autoencoder is not None
    encoder.load(silo.autoencoder.weights())
    if settings.autoencoder_rounds:
        encoder.load(memory.autoencoder)
    everyone = torch.cat([*memory.embeddings.values(), encoder.encode()[-3:]])
    module = LearnedGraph(4, 6, 4, torch.Generator())
    module.load_state_dict(memory.best_module)
    points = module.points(everyone).detach()
    similar = (points @ points.T).fill_diagonal_(-math.inf)
    own = torch.arange(60, 63)[:, None]
    theirs = torch.cat([own, similar[60:].topk(4, dim=1).indices], dim=1)
    pairs = Pairs(torch.cat([memory.best_neighbours, theirs]))
    rows = torch.cat([known, module(everyone, pairs)[60:].detach()])
    expected = predict(result.model_of("silo-1"), graph, rows)
    if not noisy:
        torch.testing.assert_close(now, expected)
    old = torch.cat([known, torch.zeros(3, 4)])
    bare = predict(result.model_of("silo-1"), graph, old)
    # From the folder, with the nodes in another order: ids tell who is who.
    saved = read_run(tmp_path)
    predictor = predictor_of(saved, "silo-1")
    order = torch.randperm(23, generator=torch.Generator().manual_seed(3))
    moved = predictor.predict(graph.subgraph(order))
    same = order < 20 if noisy else order < 23
    torch.testing.assert_close(moved[same], now[order][same])
    with pytest.raises(UnknownNameError, match="did you mean 'silo-1'"):
        predictor_of(saved, "silo1")
    # Without the server's part new nodes bring nothing along, as at a deployed silo.
    assert predictor.can_insert()
    alone = replace(
        predictor, known={k: v for k, v in predictor.known.items() if not k.startswith("server/")}
    )
    assert not alone.can_insert()
    torch.testing.assert_close(alone.predict(graph), bare)
    less = {k: v for k, v in predictor.known.items() if k == "server/embeddings"}
    with pytest.raises(FileFormatError, match="does not fit its settings"):
        replace(predictor, known=less).predict(graph)
    # Another run in the same folder takes it away with it.
    train("fedggr", PARTITION, out=tmp_path, **{**SMALL, "global_width": 0})
    assert node_memory.read(tmp_path) is None


def test_inserting_where_there_were_few_nodes() -> None:
    points = F.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)))
    found = inserted(points, nearest_neighbours(points[:3], 4), 4)
    assert found.shape == (5, 5)
    assert found[:3, 3:].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert torch.equal(found[3:].sort(1).values, torch.arange(5).expand(2, -1))
