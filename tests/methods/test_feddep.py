"""FedDEP: what it reduces to, what it sends, and what each of its parts does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.engines.inprocess import InProcess
from fedmend.errors import FederationError
from fedmend.evaluation.evaluate import evaluate
from fedmend.federation import Nothing, Schema
from fedmend.mending.deep import EncoderTraining
from fedmend.mending.generator import Generated
from fedmend.mending.prototypes import Prototypes
from fedmend.methods import fedavg, feddep
from fedmend.methods.feddep import (
    AllPrototypes,
    FedDEPSettings,
    SharedPrototypes,
    Silo,
    nearest_prototypes,
)
from fedmend.models.predictor import predict
from fedmend.privacy.account import Account, finite
from fedmend.privacy.accountants.gaussian import DELTA, gaussian_epsilon
from fedmend.runs.record import RECORD
from fedmend.runs.train import Result, train
from fedmend.training.protected import dp_sgd_account
from tests.tiny import QUICK, comparable, rebuilt, same_weights, tiny_graph, tiny_partition

PARTITION = tiny_partition()
UNEQUAL = tiny_partition(nodes=61)
SMALL: dict[str, Any] = {
    **QUICK,
    "dropout": 0.2,
    "embedding": 4,
    "encoder_epochs": 2,
    "neighbours": 2,
    "generator_hidden": 5,
    "generator_epochs": 3,
    "min_batch": 1,
}
SCHEMA = Schema(6, PARTITION.silos["silo-0"].label_names)


def settings_of(**others: Any) -> FedDEPSettings:
    return FedDEPSettings(**{**SMALL, **others})


def silo_of(name: str = "silo-0", **others: Any) -> Silo:
    return Silo(name, PARTITION.silos[name], settings_of(**others), 0)


def shared(result: Result) -> dict[str, Tensor]:
    """The weights that FedAvg of the same F has too."""
    assert result.weights is not None
    assert [key for key in result.weights if key.startswith("mended.")]
    return {k: v for k, v in result.weights.items() if not k.startswith("mended.")}


# Reductions


@pytest.mark.parametrize("change", [{"rate": 0.0}, {"neighbours": 0}])
@pytest.mark.parametrize("fused", ["sage", "paper"])
def test_where_nothing_is_kept_it_is_fedavg_of_the_same_f(
    fused: str, change: dict[str, Any]
) -> None:
    backbone = "sage" if fused == "sage" else "fused-paper"
    plain = train("fedavg", PARTITION, **QUICK, dropout=0.2, backbone=backbone)
    found = train("feddep", PARTITION, **{**SMALL, "fused": fused, **change})
    assert same_weights(shared(found), plain.weights)
    assert found.history["training"] == plain.history["training"]
    assert found.scores == plain.scores
    mended = train("feddep", PARTITION, **{**SMALL, "fused": fused})
    assert mended.history["generators"][1]["generated"] > 0
    assert not same_weights(shared(mended), plain.weights)


def isolated_nodes(partition: Partition) -> int:
    return sum(int((graph.degree == 0).sum()) for graph in partition.silos.values())


@pytest.mark.parametrize("self_loops", ["estimated", "isolated"])
def test_where_everybody_sees_somebody_nobody_self_loops(self_loops: str) -> None:
    whole = tiny_partition(1)
    assert not isolated_nodes(whole)
    assert isolated_nodes(PARTITION), "or the reductions above would not have shown it"
    for partition, same in ((whole, True), (PARTITION, False)):
        one, other = (
            train("feddep", partition, **SMALL, self_loops=who).weights
            for who in (self_loops, "none")
        )
        assert same_weights(one, other) is same


def test_f_as_printed_self_loops_anyway() -> None:
    one, other = (
        train("feddep", PARTITION, **SMALL, fused="paper", self_loops=who).weights
        for who in ("estimated", "none")
    )
    assert same_weights(one, other)


@pytest.mark.parametrize("method", ["feddep", "feddep-no-dgen", "feddep-no-proto"])
def test_one_silo_needs_no_peer(method: str) -> None:
    result = train(method, tiny_partition(1), **SMALL)
    assert not [e for e in result.ledger.entries if e.kind == "gradients"]
    made = result.history["generators"][1]["generated"]
    assert made == 0 if method == "feddep-no-dgen" else made > 0


# What is sent


def test_prototypes_are_sent_once_and_take_exactly_their_bytes() -> None:
    """C x d_z floats up and M x C x d_z down per silo; no message of the generators follows."""
    clusters, width = 2, 4
    options = {**SMALL, "clusters": clusters, "embedding": width, "min_cluster": 1}
    result = train("feddep", PARTITION, **options)
    entries = result.ledger.entries
    found = [(e.silo, e.direction, e.phase, e.bytes) for e in entries if e.kind == "prototypes"]
    one = clusters * width * 4
    assert sorted(found) == sorted(
        each
        for name in PARTITION.names
        for each in (
            (name, "up", "prototypes", one),
            (name, "down", "generators", len(PARTITION.names) * one),
        )
    )
    # Pseudo-FL: in all the generators' training a silo hears once and answers once.
    before_training = {
        (e.phase, e.direction, e.message)
        for e in entries
        if e.silo == "silo-1" and "training" not in e.phase
    }
    assert before_training == {
        ("prototypes", "down", "federation.Nothing"),
        ("prototypes", "up", "feddep.SharedPrototypes"),
        ("generators", "down", "feddep.AllPrototypes"),
        ("generators", "up", "feddep.Generated"),
    }
    after = {e.message for e in entries if "training" in e.phase}
    assert after == {"fedavg.Weights", "fedavg.Update", "fedavg.Validation"}


@pytest.mark.parametrize("generator", ["deep", "nearest"])
def test_a_silo_of_too_few_nodes_shares_no_prototype(generator: str) -> None:
    """A mean over fewer than min_cluster nodes, of one above all, is about single nodes."""
    sizes = {name: graph.num_nodes for name, graph in UNEQUAL.silos.items()}
    least = min(sizes.values()) + 1
    options = {**SMALL, "min_cluster": least, "generator": generator}
    result = train("feddep", UNEQUAL, **options)
    sent = {
        e.silo: e.bytes
        for e in result.ledger.entries
        if e.kind == "prototypes" and e.direction == "up"
    }
    small = {name for name, size in sizes.items() if size < least}
    assert small
    assert small != set(sizes)
    assert {name for name, size in sent.items() if size} == set(sizes) - small
    for name in small:
        assert any(text.startswith(f"{name} shares no prototypes") for text in result.record.said)
    nobody = train("feddep", UNEQUAL, **{**options, "min_cluster": 10**6})
    assert not any(e.bytes for e in nobody.ledger.entries if e.kind == "prototypes")


def test_the_server_says_when_there_are_fewer_prototypes() -> None:
    result = train("feddep", PARTITION, **{**SMALL, "clusters": 9, "min_cluster": 3})
    said = [text for text in result.record.said if "prototypes instead of 9" in text]
    assert {text.split()[0] for text in said} == set(PARTITION.names)
    assert all("fewer than min_cluster=3 nodes each" in text for text in said)
    enough = train("feddep", PARTITION, **{**SMALL, "clusters": 1})
    assert not [text for text in enough.record.said if "prototypes" in text]


class Lying(Silo):
    """A silo that shares something else than its prototypes."""

    instead = torch.zeros(0)

    def share_prototypes(self, _: Nothing) -> SharedPrototypes:
        super().share_prototypes(_)
        return SharedPrototypes(self.instead if self.name == "silo-1" else torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("instead", "text"),
    [
        (torch.zeros(2, 5), r"silo-1 shared prototypes as \(2, 5\).* at most \(3, 4\)"),
        (torch.zeros(4, 4), r"silo-1 shared prototypes as \(4, 4\)"),
        (torch.zeros(4), r"silo-1 shared prototypes as \(4,\)"),
        (torch.zeros(2, 4).double(), "silo-1 shared prototypes as .*float64"),
        (torch.full((2, 4), torch.nan), "silo-1 shared prototypes that are no means"),
        (torch.full((2, 4), 1e30), "silo-1 shared prototypes that are no means"),
    ],
)
def test_hostile_prototypes_go_to_nobody(instead: Tensor, text: str) -> None:
    options = FedDEPSettings(**SMALL)
    silos = [Lying(name, graph, options, 0) for name, graph in PARTITION.silos.items()]
    Lying.instead = instead
    engine: InProcess[Silo] = InProcess(silos, SCHEMA, 0, workers=1)
    with engine:
        with pytest.raises(FederationError, match=text):
            feddep.server(engine, options)
        assert not [e for e in engine.ledger.entries if e.message == "feddep.AllPrototypes"]


def test_a_silo_takes_all_sets_but_its_own() -> None:
    silo = silo_of()
    own, others = torch.rand(2, 4), [torch.rand(3, 4), torch.rand(2, 4)]
    silo.prototypes = Prototypes(own, torch.zeros(20, dtype=torch.int64))
    found = silo._of_others(AllPrototypes({"0": others[0], "1": own, "2": others[1]}))
    assert all(torch.equal(a, b) for a, b in zip(found, others, strict=True))
    twin = silo._of_others(AllPrototypes({"0": own, "1": own}))
    assert len(twin) == 1, "another silo may have the same"


def test_local_gnns_start_alike_and_end_apart() -> None:
    start = [EncoderTraining(n, g, FedDEPSettings(**SMALL), 0) for n, g in PARTITION.silos.items()]
    assert all(same_weights(each.weights(), start[0].weights()) for each in start)
    for each in start:
        each.train()
        z = each.embeddings()
        assert z.shape == (each.graph.num_nodes, 4)
        assert float(z.abs().max()) <= 1.0
    assert not same_weights(start[0].weights(), start[1].weights())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_is_that_of_the_local_gnn_alone(depth: int) -> None:
    silo = silo_of(depth=depth)
    silo.share_prototypes(Nothing())
    assert silo._gnn is not None
    assert len(silo._gnn.layers) == depth
    assert len(silo.local.model.layers) == 2
    made = silo.learn_generator(AllPrototypes({})).neighbours
    assert silo.local.neighbours is not None
    assert silo.local.neighbours.rows.shape == (made, SMALL["embedding"])
    assert silo.local.neighbours.owner.shape == (made,)


# Deep neighbours


@settings(max_examples=40)
@given(owners=st.lists(st.integers(0, 4), max_size=9), kept=st.data())
def test_mean_of_the_kept(owners: list[int], kept: st.DataObject) -> None:
    made = torch.randn(len(owners), 3, generator=torch.Generator().manual_seed(len(owners)))
    keep = kept.draw(st.lists(st.booleans(), min_size=len(owners), max_size=len(owners)))
    found = Generated(made, torch.tensor(owners, dtype=torch.int64)).mean(
        5, torch.tensor(keep, dtype=torch.bool)
    )
    for node in range(5):
        rows = [
            row for row, owner, k in zip(made, owners, keep, strict=True) if k and owner == node
        ]
        expected = sum(rows) / len(rows) if rows else torch.zeros(3)
        torch.testing.assert_close(found[node], expected)


def test_sampler_keeps_at_its_rate() -> None:
    many = Generated(torch.ones(4000, 1), torch.arange(4000))
    generator = torch.Generator().manual_seed(0)
    for rate in (0.0, 0.3, 1.0):
        kept = float(many.drawn_mean(4000, rate, generator).mean())
        assert kept == pytest.approx(rate, abs=0.03)
    one, other = (many.drawn_mean(4000, 0.5, generator) for _ in range(2))
    assert not torch.equal(one, other)


def test_a_new_draw_in_every_epoch() -> None:
    silo = silo_of(local_epochs=3)
    silo.local.neighbours = Generated(torch.ones(20, 4), torch.arange(20))
    seen = []
    draw = silo.local.sampler
    for _ in range(3):
        silo.local._epoch()
        assert silo.local._mended is not None
        seen.append(silo.local._mended)
    assert not torch.equal(seen[0], seen[1])
    assert draw is silo.local.sampler


def with_isolated_nodes(every: int = 2, **others: Any) -> Silo:
    """A silo of which every so many-th node sees nobody, when it has generated its neighbours."""
    graph = tiny_graph(40)
    both = (graph.edges % every != 0).all(0)
    silo = Silo("silo", rebuilt(graph, edges=graph.edges[:, both]), settings_of(**others), 0)
    silo.local.neighbours = Generated(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    return silo


def test_the_sampler_draws_anew_self_loops() -> None:
    seen = []
    for rate in (0.0, 0.5, 0.5, 1.0):
        silo = with_isolated_nodes(rate=rate, self_loops="isolated")
        isolated = silo.graph.degree == 0
        for _ in range(2):
            silo.local._epoch()
            more = silo.local.heard.degree - silo.graph.degree
            assert bool((more[~isolated] == 0).all())
            seen.append(more[isolated])
    none, half, again, everyone = seen[0::2]
    assert int(none.sum()) == 0
    assert bool((everyone == 1).all())
    assert 0 < int(half.sum()) < len(half)
    assert torch.equal(half, again), "by the seed"
    assert not torch.equal(half, seen[3]), "another in the next epoch"


def test_a_node_self_loops_for_what_the_cut_should_have_taken() -> None:
    """Who sees somebody misses as many as the silo's share says, two at most (k)."""
    silo = with_isolated_nodes(every=3, rate=1.0)
    degree = silo.graph.degree
    share = int((degree == 0).sum()) / int((degree > 0).sum())
    assert share != int(share), "or no rest would have to be drawn"
    missing = [min(d * share, 2) if d else 1 for d in degree.tolist()]
    assert len(set(missing)) > 2
    epochs = 400
    total = torch.zeros(len(degree))
    for _ in range(epochs):
        silo.local._epoch()
        more = silo.local.heard.degree - degree
        for found, expected in zip(more.tolist(), missing, strict=True):
            assert expected - 1 < found < expected + 1
        total += more
    torch.testing.assert_close(total / epochs, torch.tensor(missing), rtol=0, atol=0.11)
    halved = with_isolated_nodes(every=3, rate=0.5)
    kept = 0
    for _ in range(epochs):
        halved.local._epoch()
        kept += int((halved.local.heard.degree - degree).sum())
    assert kept / epochs == pytest.approx(sum(missing) / 2, rel=0.05)


def test_a_silo_that_generated_nothing_for_want_of_prototypes_hears_nobody() -> None:
    silo = with_isolated_nodes(rate=1.0)
    silo.local.neighbours = None  # it was lost
    silo.local._epoch()
    assert silo.local.heard is silo.graph


def test_the_control_self_loops_and_generates_nothing() -> None:
    """Where nothing is hidden generators learn that nobody is missed: what is won is not theirs."""
    longer = {**SMALL, "hide": 0.0, "generator_epochs": 60, "generator_lr": 0.05}
    control = train("feddep", PARTITION, **longer)
    assert control.history["generators"][1]["generated"] == 0
    plain = train("fedavg", PARTITION, **QUICK, dropout=0.2)
    assert not same_weights(shared(control), plain.weights)
    nobody = train("feddep", PARTITION, **longer, self_loops="none")
    assert same_weights(shared(nobody), plain.weights)


def test_full_batches_hear_what_small_ones_do() -> None:
    """All nodes and all neighbours in one step, prepared once per epoch or gathered."""
    found = []
    for batch in (0, 10**6):
        silo = with_isolated_nodes(rate=1.0, batch_size=batch, fan_out=0, dropout=0.0)
        silo.local.load(silo_of().local.weights())
        silo.local.train()
        found.append({key: value.clone() for key, value in silo.local.weights().items()})
    nobody = with_isolated_nodes(self_loops="none", batch_size=0, fan_out=0, dropout=0.0)
    nobody.local.load(silo_of().local.weights())
    nobody.local.train()
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key])
    assert not same_weights(found[0], nobody.local.weights())


def test_dp_sgd_clips_what_is_heard_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner products that are kept from step to step are those of today's edges."""
    found = []
    for most in (2**25, 0):
        monkeypatch.setattr("fedmend.training.dp_sgd.MOST_KEPT", most)
        silo = with_isolated_nodes(protection="dp-sgd", noise=0.0, clip=0.05, dropout=0.0)
        silo.local.load(silo_of().local.weights())
        for _ in range(3):
            silo.local.train()
        found.append(silo.local.weights())
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key])


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_nearest_prototypes_by_plain_loops(most: int) -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.rand(6, 4, generator=generator)
    others = [torch.rand(count, 4, generator=generator) for count in (2, 3, 1)]
    found = nearest_prototypes(z, others, most)
    assert len(found.owner) == 6 * min(most, 3)
    for node in range(6):
        nearest = [
            min(theirs, key=lambda c: float(((c - z[node]) ** 2).sum())) for theirs in others
        ]
        nearest.sort(key=lambda c: float(((c - z[node]) ** 2).sum()))
        got = found.rows[found.owner == node]
        assert sorted(got.tolist()) == sorted(each.tolist() for each in nearest[:most])
    assert len(nearest_prototypes(z, [], 3).owner) == 0


# Inference, joint training, the record


def finished(**others: Any) -> tuple[dict[str, Silo], dict[str, Tensor]]:
    options = FedDEPSettings(**{**SMALL, **others})
    silos = {name: Silo(name, graph, options, 0) for name, graph in PARTITION.silos.items()}
    with InProcess(silos.values(), SCHEMA, 0, workers=1) as engine:
        weights = feddep.server(engine, options)
    return silos, weights


def test_generating_at_inference_is_for_own_graphs_only() -> None:
    silos, weights = finished(generate_at_inference=True)
    predictors = {name: silo.predictor(weights) for name, silo in silos.items()}
    found = {name: each for name, each in predictors.items() if each is not None}
    mended = {name: each.rows for name, each in found.items() if each.rows is not None}
    assert len(mended) == 3
    model = found["silo-0"].model
    for name, graph in PARTITION.silos.items():
        bare, full = predict(model, graph), predict(model, graph, mended[name])
        assert torch.equal(found[name].predict(graph), full)
        changed = (bare - full).abs().amax(1) > 1e-6
        assert bool(changed[mended[name].abs().sum(1) > 0].all())
    options = {**SMALL, "generate_at_inference": True}
    bare_ones = {name: replace(each, rows=None) for name, each in found.items()}
    for mode, used in (("global-graph", bare_ones), ("own-subgraph", found)):
        expected = evaluate(used, PARTITION, mode)
        assert train("feddep", PARTITION, evaluation=mode, **options).scores == expected
    anywhere = {name: replace(each, anywhere=True) for name, each in found.items()}
    with_them = evaluate(anywhere, PARTITION, "global-graph")
    assert with_them != evaluate(found, PARTITION, "global-graph"), "or nothing shown"
    for silo in finished()[0].values():
        plain = silo.predictor(weights)
        assert plain is not None
        assert plain.rows is None


def test_validation_follows_what_prediction_does() -> None:
    silos, weights = finished(generate_at_inference=True)
    silo = silos["silo-0"]
    silo.local.load(weights)
    graph, predictor = silo.graph, silo.predictor(weights)
    assert predictor is not None
    found = predictor.predict(graph).argmax(1)
    right = int((found == graph.y)[graph.val_mask].sum())
    assert int(silo.validate(fedavg.Weights(weights)).validation[0]) == right


def test_joint_generator_learns_on_with_the_shared_classifier() -> None:
    silo = silo_of(joint=True)
    silo.share_prototypes(Nothing())
    silo.learn_generator(AllPrototypes({}))
    made, head = silo.local.neighbours, silo.learner.head.last[0].clone()
    assert made is not None
    weights = {key: value + 0.5 for key, value in silo.local.weights().items()}
    seen: list[bool] = []
    step = silo.learner.step

    def watching(*given: Any) -> float:
        seen.append(same_weights(dict(silo.learner.classifier.named_parameters()), weights))
        return step(*given)

    silo.learner.step = watching  # type: ignore[assignment, method-assign]  # looks on
    silo.train(fedavg.Weights(weights))
    assert seen == [True], "one step, for the classifier as it was received"
    assert not torch.equal(silo.learner.head.last[0], head)
    assert silo.local.neighbours is not made
    frozen = silo_of()
    frozen.share_prototypes(Nothing())
    frozen.learn_generator(AllPrototypes({}))
    with pytest.raises(FederationError, match="silo-0 has no generator"):
        frozen.learner  # noqa: B018  # its work is done


@pytest.mark.parametrize("method", ["feddep", "feddep-no-proto"])
def test_joint_training_resumes_to_the_identical_result(tmp_path: Path, method: str) -> None:
    options: dict[str, Any] = {**SMALL, "joint": True}
    watch = Watch()

    def on_round(moment: Moment) -> None:
        watch.stop_requested = moment.phase == "training" and moment.round == 2

    watch.on_round = on_round
    with pytest.raises(Interrupted):
        train(method, PARTITION, out=tmp_path, watch=watch, **options)
    resumed = train(method, PARTITION, out=tmp_path, resume=True, **options)
    whole = train(method, PARTITION, **options)
    assert same_weights(resumed.weights, whole.weights)
    assert comparable(resumed.record) == comparable(whole.record)
    assert not same_weights(whole.weights, train(method, PARTITION, **SMALL).weights)


def test_record_has_both_columns_of_the_account(tmp_path: Path) -> None:
    result = train("feddep", PARTITION, **SMALL)
    result.save(tmp_path / "run")
    saved = json.loads((tmp_path / "run" / RECORD).read_text())
    (account,) = result.record.privacy
    assert {"published", "recomputed"} <= set(account.details)
    assert account.sentence == account.details["sentence"]
    assert finite(account.epsilon) == account.details["recomputed"]["sampled"]["epsilon"]
    assert len(account.sentence) > 20
    assert saved["privacy"] == [account.to_dict()]


def test_hearing_all_neighbours_protects_nothing_and_says_so() -> None:
    (account,) = train("feddep", PARTITION, **{**SMALL, "fan_out": 0}).record.privacy
    assert account.epsilon is None
    assert account.sentence == "All neighbours are heard: NFDP protects nothing here."


# Silos that are hard to learn from


def test_a_silo_smaller_than_c() -> None:
    graph = tiny_graph(24).subgraph(torch.arange(5))
    some = torch.tensor([True, True, True, False, False])
    small = graph.with_masks(some, ~some, torch.zeros(5, dtype=torch.bool))
    silos = Partition({"large": tiny_graph(24, seed=3), "small": small}, "by hand", None)
    result = train("feddep", silos, **{**SMALL, "clusters": 8})
    assert [t for t in result.record.said if t.startswith("small shares 1 prototypes instead")]
    assert result.weights is not None
    assert all(bool(torch.isfinite(each).all()) for each in result.weights.values())


def test_prototypes_that_are_missing_generate_nothing() -> None:
    silo = silo_of()
    assert silo.learn_generator(AllPrototypes({})).neighbours == 0
    assert silo.use_nearest(AllPrototypes({})).neighbours == 0
    assert silo.finish_exchange(Nothing()).neighbours == 0
    with pytest.raises(FederationError, match="silo-0 has no embeddings to compare with"):
        silo.candidates()


# What DP-SGD is worth


def test_dp_sgd_counts_every_epoch_whatever_the_silos_size() -> None:
    """A term is in one batch of every shuffled epoch; sampling would need luck on top."""
    few = FedDEPSettings(protection="dp-sgd", noise=2.0)

    def worth(*sizes: int) -> Account:
        facts = {str(size): {"training_nodes": float(size), "uses": 7.0} for size in sizes}
        return dp_sgd_account(few, facts)

    account = worth(325, 64)
    assert account.uses == 7
    assert account.epsilon == gaussian_epsilon(2.0, 7, DELTA) == worth(1000).epsilon
    # The silo with the fewest nodes is not always the worst: 65 make two batches an epoch.
    sampled = [worth(*sizes).details["epsilon_if_sampled"] for sizes in [(64,), (65,), (64, 65)]]
    assert sampled[2] == max(sampled) == sampled[1]


@pytest.mark.parametrize("batch_size", [0, 5])
def test_dp_sgd_accounts_for_what_was_done(batch_size: int) -> None:
    more = {**SMALL, "batch_size": batch_size, "local_epochs": 2}
    (account,) = train("feddep-no-nfdp", PARTITION, **more).record.privacy
    done = SMALL["encoder_epochs"] + SMALL["rounds"] * 2
    assert account.uses == done
    assert account.drawn
    assert account.epsilon == gaussian_epsilon(2.0, done, DELTA)
    (silent,) = train("feddep-no-nfdp", PARTITION, noise=0.0, **more).record.privacy
    assert (silent.epsilon, silent.uses, silent.drawn) == (None, done, False)
    assert "no noise, no protection" in silent.sentence


def test_a_loss_that_noise_hides_is_not_told() -> None:
    told = train("feddep", PARTITION, **SMALL)
    hidden = train("feddep-no-nfdp", PARTITION, **SMALL)
    assert all("training_loss" in notes for notes in list(told.history["training"].values())[1:])
    assert not any("training_loss" in notes for notes in hidden.history["training"].values())
