"""FedSage+: what it reduces to, what it mends, and silos that are hard to mend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedmend.data.mended import mended
from fedmend.data.partition import Partition
from fedmend.engines.inprocess import Fault
from fedmend.errors import FederationError
from fedmend.federation import Nothing, Schema
from fedmend.graph import Graph
from fedmend.methods.fedsage_plus import FedSagePlusSettings, NeighGen, Silo
from fedmend.models.predictor import model_with, predict
from fedmend.runs.train import Result, train
from tests.tiny import QUICK, rebuilt, same_weights, tiny_graph, tiny_partition

PARTITION = tiny_partition()
SMALL: dict[str, Any] = {
    **QUICK,
    "dropout": 0.2,
    "neighbours": 2,
    "hide": 0.4,
    "embedding": 4,
    "generator_hidden": 5,
    "generator_width": 6,
    "generator_epochs": 2,
    "generator_rounds": 2,
    "min_batch": 1,
}
ALONE = {key: value for key, value in SMALL.items() if key not in ("generator_rounds", "min_batch")}


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def silo_of(graph: Graph, **others: Any) -> Silo:
    return Silo("silo", graph, FedSagePlusSettings(**{**SMALL, **others}), 0)


def generated(result: Result) -> float:
    return result.history["mending"][1]["generated"]


# Reductions


def test_without_neighbours_it_is_fedsage() -> None:
    plain = train("fedsage", PARTITION, **QUICK, dropout=0.2)
    found = train("fedsage+", PARTITION, **{**SMALL, "neighbours": 0})
    assert same_weights(found.weights, plain.weights)
    assert found.history == plain.history
    assert found.ledger.to_csv() == plain.ledger.to_csv()
    assert found.scores == plain.scores
    mended = train("fedsage+", PARTITION, **SMALL)
    assert generated(mended) > 0
    assert not same_weights(mended.weights, plain.weights)


def test_where_nothing_is_generated_it_is_fedsage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """All phases take place, and what they draw is none of FedSage's business."""
    monkeypatch.setattr(
        NeighGen, "rounded", lambda self, predicted, degree: torch.zeros_like(degree)
    )
    plain = train("fedsage", PARTITION, **QUICK, dropout=0.2)
    found = train("fedsage+", PARTITION, **SMALL)
    assert generated(found) == 0
    assert same_weights(found.weights, plain.weights)
    assert found.history["training"] == plain.history["training"]


def test_local_plus_without_neighbours_is_local() -> None:
    plain = train("local", PARTITION, **QUICK, dropout=0.2)
    found = train("local+", PARTITION, **{**ALONE, "neighbours": 0})
    assert found.history == plain.history
    assert all(same_weights(found.own[name], plain.own[name]) for name in PARTITION.names)
    mended = train("local+", PARTITION, **ALONE)
    assert generated(mended) > 0
    assert not all(same_weights(mended.own[name], plain.own[name]) for name in PARTITION.names)


@pytest.mark.parametrize("change", [{"alpha": 0.0}, {"generator_rounds": 0}, {"silos": 1}])
def test_no_peer_is_needed(change: dict[str, Any]) -> None:
    """Without weight, rounds or others there is no exchange: the generators learn alone."""
    partition = tiny_partition(1) if "silos" in change else PARTITION
    result = train("fedsage+", partition, **{**SMALL, **without(change, "silos")})
    assert "generator exchange" not in result.history
    assert not [e for e in result.ledger.entries if e.message == "head_exchange.Offer"]
    assert generated(result) > 0


def test_exchange_changes_what_is_generated() -> None:
    with_others, weighted, alone = (
        train("fedsage+", PARTITION, **{**SMALL, "alpha": alpha}).weights
        for alpha in (1.0, 100.0, 1e-9)
    )
    assert not same_weights(with_others, alone)
    assert not same_weights(with_others, weighted)


def test_first_half_of_both_is_the_same() -> None:
    """local+ is one silo's half of FedSage+: without exchange the mended graphs are the same."""
    plus = train("fedsage+", PARTITION, **{**SMALL, "alpha": 0.0})
    local = train("local+", PARTITION, **ALONE)
    assert plus.history["generators alone"] == local.history["generators alone"]
    assert generated(plus) == generated(local)


@pytest.mark.parametrize("method", ["fedsage+", "local+"])
def test_copies_of_nobody_are_the_plain_method(method: str) -> None:
    settings = {**(SMALL if method == "fedsage+" else ALONE), "generator": "copy"}
    plain = train("fedsage" if method == "fedsage+" else "local", PARTITION, **QUICK, dropout=0.2)
    found = train(method, PARTITION, **settings, least_degree=0)
    assert generated(found) == 0
    assert found.history["training"] == plain.history["training"]
    copies = train(method, PARTITION, **settings, least_degree=3)
    assert generated(copies) > 0
    assert copies.history["training"] != plain.history["training"]


def test_copies_cost_no_message_but_the_count() -> None:
    plain = train("fedsage", PARTITION, **QUICK, dropout=0.2).ledger
    copies = train("fedsage+", PARTITION, **{**SMALL, "generator": "copy"}).ledger
    assert {entry.message for entry in copies.entries} == {
        *(entry.message for entry in plain.entries),
        *("fedsage_plus.Mended", "federation.Nothing"),
    }
    assert {e.phase for e in copies.entries if e.message == "fedsage_plus.Mended"} == {"mending"}


# Mending


def test_a_node_that_sees_too_few_gets_copies_of_itself() -> None:
    for graph in (hard_silos()["an isolated node"], tiny_graph(24, sparse=True)):
        for least, most in ((0, 5), (1, 5), (3, 5), (3, 1)):
            silo = silo_of(graph, generator="copy", least_degree=least, neighbours=most)
            count = silo.mend(Nothing()).generated
            mended = silo.local.graph
            dense, x = (
                each.to_dense() if each.layout != torch.strided else each
                for each in (mended.x, graph.x)
            )
            expected = [min(max(least - seen, 0), most) for seen in graph.degree.tolist()]
            assert (mended.degree[:24] - graph.degree).tolist() == expected
            assert sum(expected) == count == mended.num_nodes - 24
            for new in range(24, mended.num_nodes):
                (owner,) = mended.col[mended.rowptr[new] : mended.rowptr[new + 1]].tolist()
                assert torch.equal(dense[new], x[owner])


def test_copies_are_not_learned() -> None:
    silo = silo_of(tiny_graph(24), generator="copy")
    with pytest.raises(FederationError, match="silo has no generator to learn"):
        silo.learn_alone(Nothing())
    silo.restore(silo.state())
    assert silo.generated is None


def test_who_sees_nobody_gets_a_neighbour() -> None:
    """Where the prediction is none: what is sure does not have to be learned."""
    graph = hard_silos()["no edges at all"]
    for least, expected in ((0, 0), (1, 24)):
        silo = silo_of(graph, least_degree=least, least_neighbours=0)
        silo.learn_alone(Nothing())
        with torch.no_grad():
            silo.learner.number.bias.fill_(-100.0)
        assert silo.mend(Nothing()).generated == expected


def test_neighbours_learn_to_be_like_their_node() -> None:
    """The more the node itself counts, the nearer its neighbours come to it."""
    graph, far = tiny_graph(60), []
    for weight in (0.0, 1.0, 30.0):
        silo = silo_of(graph, self_weight=weight, embedding=16, generator_width=32, noise=0.01)
        for _ in range(100):
            silo.learn_alone(Nothing())
        made = silo.learner.generate()
        far.append(float(((made.rows - graph.x[made.owner]) ** 2).sum(1).mean()))
    assert far[0] > far[1] > far[2]


def test_noise_is_as_large_as_it_is_set() -> None:
    drawn = [silo_of(tiny_graph(30), noise=noise).learner.draw_batch()[1] for noise in (1.0, 0.25)]
    assert torch.equal(drawn[0] * 0.25, drawn[1])
    assert float(drawn[0].std()) == pytest.approx(1.0, abs=0.2)


def test_a_silo_mends_its_graph_once() -> None:
    graph = tiny_graph(30)
    silo = silo_of(graph)
    silo.learn_alone(Nothing())
    before, x = silo.local.train_nodes, graph.x.clone()
    count = silo.mend(Nothing()).generated
    assert count == silo.local.graph.num_nodes - 30 > 0
    assert torch.equal(silo.local.graph.x[:30], x)
    assert torch.equal(silo.local.train_nodes, before)
    assert int(silo.local.graph.degree[30:].max()) == 1
    assert silo.local.validate()[1] == int(graph.val_mask.sum())
    assert silo.generated is not None
    assert int(torch.bincount(silo.generated.owner).max()) <= 2, "at most k"
    assert float(silo.generated.rows.abs().max()) <= 1.0, "tanh"
    with pytest.raises(FederationError, match="silo has mended its graph: its generator is gone"):
        silo.learn_alone(Nothing())


def mended_silo(**others: Any) -> Silo:
    silo = silo_of(tiny_graph(30), least_neighbours=1, **others)
    silo.learn_alone(Nothing())
    assert silo.mend(Nothing()).generated >= 30
    return silo


def test_generated_neighbours_are_drawn_anew_in_every_epoch() -> None:
    seen = []
    for rate in (0.0, 0.5, 0.5):
        silo = mended_silo(rate=rate)
        for _ in range(2):
            silo.local._epoch()
            degree = silo.local.heard.degree
            # An edge to a generated node goes both ways or is not there; the silo's own all are.
            assert int(degree.sum()) == len(silo.graph.col) + 2 * int(degree[30:].sum())
            seen.append(degree[30:])
    none, half, again = seen[0::2]
    assert int(none.sum()) == 0
    assert 0 < int(half.sum()) < len(half)
    assert torch.equal(half, again), "by the seed"
    assert not torch.equal(half, seen[3]), "another in the next epoch"
    always = mended_silo(rate=1.0)
    always.local._epoch()
    assert always.local.heard is always.local.graph


@pytest.mark.parametrize("backbone", ["sage", "gcn"])
def test_generated_neighbours_that_are_never_kept_train_nothing(backbone: str) -> None:
    """In full batches, where nothing else is drawn: a step is that of the graph as it was."""
    alike = {"batch_size": 0, "fan_out": 0, "dropout": 0.0, "backbone": backbone}
    never = mended_silo(rate=0.0, **alike)
    plain = silo_of(tiny_graph(30), **alike)
    always = mended_silo(rate=1.0, **alike)
    for silo in (never, always):
        silo.local.load(plain.local.weights())
    losses = [silo.local.train() for silo in (plain, never, always)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0] != pytest.approx(losses[2], abs=1e-6)
    for key, value in plain.local.weights().items():
        torch.testing.assert_close(never.local.weights()[key], value)


def test_silos_are_tested_on_their_mended_graphs() -> None:
    """Where each is tested on its own graph; the test nodes are the same."""
    found = train("fedsage+", PARTITION, evaluation="own-subgraph", **SMALL)
    assert found.weights is not None
    assert found.scores is not None
    assert found.predictors.keys() == PARTITION.silos.keys()
    shape = FedSagePlusSettings(**SMALL).shape(Schema(6, tiny_graph().label_names))
    right = []
    for name, graph in PARTITION.silos.items():
        made = found.predictors[name].generated
        assert made is not None
        features, owners = made
        whole, nodes = mended(graph, owners, features), torch.nonzero(graph.test_mask)[:, 0]
        assert whole.num_nodes > graph.num_nodes
        assert torch.equal(torch.nonzero(whole.test_mask)[:, 0], nodes)
        classes = predict(model_with(shape, found.weights), whole).argmax(1)
        right.append(float((classes[nodes] == graph.y[nodes]).double().mean()))
    assert found.accuracy == pytest.approx(sum(right) / len(right))


def test_a_generator_that_never_learned_mends_nothing() -> None:
    silo = silo_of(tiny_graph(30))
    assert silo.mend(Nothing()).generated == 0
    result = train(
        "fedsage+",
        PARTITION,
        faults=[
            Fault("silo-1", phase=phase) for phase in ("generators alone", "generator exchange")
        ],
        **SMALL,
    )
    assert generated(result) > 0


def test_a_silo_lost_in_mending_trains_on_what_it_has() -> None:
    everyone = generated(train("fedsage+", PARTITION, **SMALL))
    result = train("fedsage+", PARTITION, faults=[Fault("silo-1", phase="mending")], **SMALL)
    assert 0 < generated(result) < everyone


def test_noise_in_mending_is_an_option() -> None:
    made = []
    for noise in (False, False, True):
        silo = silo_of(tiny_graph(30), noise_in_mending=noise)
        silo.learn_alone(Nothing())
        made.append(silo.learner.generate())
    assert torch.equal(made[0].rows, made[1].rows)
    assert torch.equal(made[0].owner, made[2].owner)
    assert not torch.equal(made[0].rows, made[2].rows)


def test_linear_output_reaches_beyond_one() -> None:
    silo = silo_of(tiny_graph(30), generator_output="linear", generator_lr=0.05)
    for _ in range(20):
        silo.learn_alone(Nothing())
    made = silo.learner.generate().rows
    assert float(made.abs().max()) > 1.0


@pytest.mark.parametrize("batch", [0, 1, 7, 10**6])
def test_batches_of_the_generator(batch: int) -> None:
    silo = silo_of(tiny_graph(30), generator_batch=batch)
    nodes = silo.learner.impaired.graph.num_nodes
    drawn, noise = silo.learner.draw_batch()
    assert len(drawn) == len(noise) == (min(batch, nodes) if batch else nodes)
    assert len(set(drawn.tolist())) == len(drawn)
    assert silo.learner.steps_per_epoch == (-(-nodes // batch) if batch else 1)
    assert silo.learn_alone(Nothing()).loss > 0


def test_generator_learns() -> None:
    silo = silo_of(tiny_graph(60), generator_lr=0.01)
    first = silo.learn_alone(Nothing()).loss
    for _ in range(10):
        last = silo.learn_alone(Nothing()).loss
    assert last < 0.8 * first


def test_sparse_features_are_mended_as_dense_ones_are() -> None:
    graph = tiny_graph(40, sparse=True)
    dense = rebuilt(graph, x=graph.x.to_dense())
    made = []
    for each in (graph, dense):
        silo = silo_of(each)
        silo.learn_alone(Nothing())
        made.append(silo.learner.generate())
    assert torch.equal(made[0].owner, made[1].owner)
    torch.testing.assert_close(made[0].rows, made[1].rows, atol=1e-4, rtol=1e-4)


# Silos that are hard to mend


def by_hand(*graphs: Graph) -> Partition:
    return Partition({f"silo-{i}": graph for i, graph in enumerate(graphs)}, "by hand", None)


def hard_silos() -> dict[str, Graph]:
    graph = tiny_graph(24)
    alone = graph.edges[:, (graph.edges != 0).all(0)]
    roles = [torch.zeros(24, dtype=torch.bool) for _ in range(3)]
    roles[0][3] = True  # one training node: in half of the draws it is hidden
    roles[1][4] = roles[2][5] = True
    one_class = graph.y == 0
    return {
        "no edges at all": rebuilt(graph, edges=np.zeros((2, 0), dtype=np.int64)),
        "an isolated node": rebuilt(graph, edges=alone),
        "one training node": rebuilt(
            graph, **dict(zip(("train_mask", "val_mask", "test_mask"), roles, strict=True))
        ),
        "a missing class": graph.subgraph(torch.nonzero(~one_class)[:, 0]),
        "two nodes": rebuilt(
            tiny_graph(24).subgraph(torch.tensor([0, 1])),
            train_mask=torch.tensor([True, False]),
            val_mask=None,
            test_mask=None,
        ),
    }


METHODS = ["fedsage+", "local+", "feddep", "feddep-no-dgen", "feddep-no-proto"]


@pytest.mark.parametrize("what", hard_silos())
@pytest.mark.parametrize("method", METHODS)
def test_hard_silos(method: str, what: str) -> None:
    partition = by_hand(tiny_graph(24, seed=3), hard_silos()[what], tiny_graph(24, seed=4))
    settings = {**GENERATOR_OF[method]}
    for hide in (0.0, 0.9):  # nothing is hidden: nobody lost anything; and nearly everything is
        result = train(method, partition, **{**settings, "hide": hide})
        assert len(result.history["training"]) >= 3
        models = list(result.own.values()) if result.weights is None else [result.weights]
        assert models
        for weights in models:
            assert weights
            assert all(bool(torch.isfinite(each).all()) for each in weights.values())


FEDDEP = {**without(SMALL, "generator_width", "generator_rounds"), "encoder_epochs": 1}
GENERATOR_OF = {
    "fedsage+": SMALL,
    "local+": ALONE,
    "feddep": FEDDEP,
    "feddep-no-dgen": FEDDEP,
    "feddep-no-proto": FEDDEP,
}


def test_impaired_graph_without_training_nodes_still_teaches_the_generator() -> None:
    graph = hard_silos()["one training node"]
    for seed in range(20):
        silo = Silo("silo", graph, FedSagePlusSettings(**SMALL), seed)
        if not bool(silo.learner.impaired.graph.train_mask.any()):
            before = [each.clone() for each in silo.learner.head.parameters()]
            assert silo.learn_alone(Nothing()).loss > 0
            after = list(silo.learner.head.parameters())
            assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
            return
    raise AssertionError("no seed hides the training node")
