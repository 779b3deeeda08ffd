"""What every method must keep: it is in the registry, so it is tested here, without exception."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmend.config import describe
from fedmend.data.partition import Partition
from fedmend.engines import wire
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.engines.inprocess import Fault
from fedmend.errors import DataError, SettingsError, TooFewSilosError, UnknownNameError
from fedmend.federation import MESSAGES, field_rules
from fedmend.graph import Graph
from fedmend.methods import METHODS, find
from fedmend.methods.fedper import FedPerSettings
from fedmend.models.backbones import BACKBONES
from fedmend.models.predictor import model_with, predict
from fedmend.runs.predict import predictor_of
from fedmend.runs.record import read_run
from fedmend.runs.train import Result, own_or_shared, predict_with, train
from tests.tiny import (
    QUICK,
    accepted,
    comparable,
    rebuilt,
    reordered,
    same_weights,
    tiny_graph,
    tiny_partition,
)

PARTITION = tiny_partition()
SETTINGS: dict[str, Any] = {**QUICK, "dropout": 0.2}
every_method = pytest.mark.parametrize("method", METHODS)
FEDERATED = [n for n, m in METHODS.items() if not m.pooled]
federated = pytest.mark.parametrize("method", FEDERATED)

GENERATOR: dict[str, Any] = {
    "neighbours": 2,
    "hide": 0.4,
    "embedding": 4,
    "generator_hidden": 5,
    "generator_epochs": 2,
}
NEIGHGEN: dict[str, Any] = {**GENERATOR, "generator_width": 6}
FEDDEP: dict[str, Any] = {**GENERATOR, "encoder_epochs": 1, "min_batch": 1}
FEDGGR: dict[str, Any] = {
    "neighbours": 4,
    "embedding": 4,
    "local_width": 5,
    "global_width": 3,
    "global_hidden": 6,
    "global_dropout": 0.3,
    "autoencoder_epochs": 2,
    "autoencoder_rounds": 2,
}
MORE_SETTINGS: dict[str, dict[str, Any]] = {
    "fedsage+": {**NEIGHGEN, "generator_rounds": 2, "min_batch": 1},
    "local+": NEIGHGEN,
    "feddep": FEDDEP,
    "feddep-no-dgen": FEDDEP,
    "feddep-no-proto": FEDDEP,
    "feddep-no-nfdp": FEDDEP,
    "fedggr": FEDGGR,
}
"""What keeps a method's other phases as small as the training, and lets all of them happen."""

PHASES: dict[str, dict[str, int]] = {
    "fedsage+": {"generators alone": 1, "generator exchange": 2, "mending": 1},
    "local+": {"generators alone": 1, "mending": 1},
    "feddep": {"prototypes": 1, "generators": 1},
    "feddep-no-dgen": {"prototypes": 1, "generators": 1},
    "feddep-no-proto": {"local GNNs": 1, "generator exchange": 2, "generators": 1},
    "feddep-no-nfdp": {"prototypes": 1, "generators": 1},
    "fedggr": {"autoencoders": 2, "embeddings": 1},
}
"""A method's phases before training, and the rounds they take with these settings."""

FROM_OUTSIDE = ("fedmedian", "fedmedian-plain", "fedavg-plain")
"""Methods of the plugin in tests/plugin: here where it is installed (tests/plugins)."""

SILENT_PHASES = {"prototypes", "local GNNs"}  # they note no figures
LOOKS_BEYOND = [n for n, m in METHODS.items() if m.sees_beyond]


def settings_of(method: str, **others: Any) -> dict[str, Any]:
    return {**accepted(method, SETTINGS), **MORE_SETTINGS.get(method, {}), **others}


@cache
def plain_run(method: str) -> Result:
    return train(method, PARTITION, **settings_of(method))


def same_result(one: Result, other: Result) -> None:
    assert same_weights(one.weights, other.weights)
    assert one.own.keys() == other.own.keys()
    assert all(same_weights(one.own[name], other.own[name]) for name in one.own)
    assert one.history == other.history
    assert one.ledger.to_csv() == other.ledger.to_csv()
    assert one.scores == other.scores


@every_method
def test_same_seed_same_record(method: str) -> None:
    again = train(method, PARTITION, **settings_of(method))
    same_result(again, plain_run(method))
    assert comparable(again.record) == comparable(plain_run(method).record)


@every_method
def test_another_seed_another_result(method: str) -> None:
    other = train(method, PARTITION, seed=1, **settings_of(method))
    assert other.history != plain_run(method).history


@every_method
def test_order_of_silos_does_not_matter(method: str) -> None:
    same_result(train(method, reordered(PARTITION), **settings_of(method)), plain_run(method))


@every_method
def test_global_random_state_is_neither_used_nor_changed(method: str) -> None:
    torch.manual_seed(123)
    np.random.seed(123)
    before, numpy_before = torch.get_rng_state(), repr(np.random.get_state())
    same_result(train(method, PARTITION, **settings_of(method)), plain_run(method))
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(np.random.get_state()) == numpy_before


NO_MORE_THAN_LOCAL = {"local", "oracle", "fedavg", "fedsage", "fedper"}
"""Methods that have nothing to give to a silo that is alone, and take nothing from it."""


@every_method
def test_one_silo(method: str) -> None:
    alone = tiny_partition(1)
    result = train(method, alone, **settings_of(method))
    graph = alone.silos["silo-0"]
    found = result.predict(graph, "silo-0").labels
    tested = torch.nonzero(graph.test_mask)[:, 0].tolist()
    right = [node for node in tested if found[node] == graph.label_names[int(graph.y[node])]]
    assert result.accuracy == pytest.approx(len(right) / len(tested))
    local = train("local", alone, **settings_of("local")).own["silo-0"]
    same = same_weights(result.weights or result.own["silo-0"], local)
    assert same == (method in NO_MORE_THAN_LOCAL)


@every_method
def test_silos_that_do_not_come_with_a_whole_graph(method: str) -> None:
    alone = Partition(PARTITION.silos, "by hand", None)
    if METHODS[method].needs_border:
        with pytest.raises(DataError, match="needs the silos' borders"):
            train(method, alone, **settings_of(method))
        alone = Partition(PARTITION.silos, "by hand", None, given_borders=PARTITION.borders)
    if METHODS[method].pooled or METHODS[method].sees_beyond:
        with pytest.raises(DataError, match="needs the whole graph"):
            train(method, alone, **settings_of(method))
        return
    result = train(method, alone, **settings_of(method))
    assert result.scores is not None
    assert result.scores.mode == "own-subgraph"
    with pytest.raises(DataError, match="needs the whole graph"):
        train(method, alone, evaluation="global-graph", **settings_of(method))


@every_method
def test_history_has_every_round(method: str) -> None:
    history = plain_run(method).history
    before = {name: n for name, n in PHASES.get(method, {}).items() if name not in SILENT_PHASES}
    assert set(history) == {"training", *before}
    for phase, count in before.items():
        assert sorted(history[phase]) == list(range(1, count + 1))
        figures = set().union(*history[phase].values())
        assert figures
        assert figures <= {
            "generator_loss",
            "generated",
            "reconstruction_loss",
            "crossing_by_chance",
        }
    rounds = history["training"]
    # Weights are validated by whoever receives them, so a shared model is also known at round 0.
    first = 1 if METHODS[method].settings in ("LocalSettings", "LocalPlusSettings") else 0
    assert sorted(rounds) == list(range(first, 4))
    for number in range(1, 4):
        own = {"selected", "crossing_edges"} if method == "fedggr" else {"selected"}
        told = {"validation_accuracy"}
        if method != "feddep-no-nfdp":  # where noise hides what the loss would tell
            told.add("training_loss")
            assert rounds[number]["training_loss"] > 0
        assert set(rounds[number]) - own == told
    # The kept round is one of the best in validation, the latest of them; where every silo keeps
    # a model of its own, no round is kept for all.
    best = max(metrics["validation_accuracy"] for metrics in rounds.values())
    kept = [number for number, metrics in rounds.items() if "selected" in metrics]
    latest = max(n for n, metrics in rounds.items() if metrics["validation_accuracy"] == best)
    assert kept == ([] if METHODS[method].model == "own" else [latest])


@every_method
def test_training_lowers_the_loss(method: str) -> None:
    # (DP-SGD's noise is left out here: it needs more than fifteen rounds to average out.)
    still = {"noise": 0.0} if method == "feddep-no-nfdp" else {}
    whole: dict[str, Any] = {"rounds": 15, "batch_size": 0, "fan_out": 0, "dropout": 0.0}
    result = train(method, PARTITION, **settings_of(method, **accepted(method, whole), **still))
    losses = [result.history["training"][number]["training_loss"] for number in (1, 15)]
    assert losses[1] < 0.9 * losses[0]


# What crosses

WHAT_LEAVES = {
    "global": set(),  # nothing travels where everything is in one place
    "local": {"metrics", "framing"},
    "fedavg": {"weights", "counts", "metrics", "framing"},
    "fedsage": {"weights", "counts", "metrics", "framing"},
    "fedprox": {"weights", "counts", "metrics", "framing"},
    "fedper": {"weights", "counts", "metrics", "framing"},
    "oracle": {"weights", "counts", "metrics", "framing"},
    "local+": {"counts", "metrics", "framing"},
    "fedsage+": {"weights", "embeddings", "gradients", "counts", "metrics", "framing"},
    "feddep": {"weights", "prototypes", "counts", "metrics", "framing"},
    "feddep-no-dgen": {"weights", "prototypes", "counts", "metrics", "framing"},
    "feddep-no-proto": {"weights", "embeddings", "gradients", "counts", "metrics", "framing"},
    "feddep-no-nfdp": {"weights", "prototypes", "counts", "metrics", "framing"},
    "hifgl": {
        *("gradients", "shares", "sealed", "pseudonyms", "counts", "metrics", "control"),
        "framing",
    },
    "fedggr": {"weights", "embeddings", "gradients", "counts", "metrics", "framing"},
}
WHAT_COMES = {
    "global": set(),
    "local": {"framing"},
    "fedavg": {"weights", "framing"},
    "fedsage": {"weights", "framing"},
    "fedprox": {"weights", "framing"},
    "fedper": {"weights", "framing"},
    "oracle": {"weights", "raw", "framing"},  # no federation: it says so itself
    "local+": {"framing"},
    # Whoever is asked for a gradient gets another silo's head and its inputs.
    "fedsage+": {"weights", "embeddings", "gradients", "counts", "framing"},
    "feddep": {"weights", "prototypes", "framing"},
    "feddep-no-dgen": {"weights", "prototypes", "framing"},
    "feddep-no-proto": {"weights", "embeddings", "gradients", "counts", "framing"},
    "feddep-no-nfdp": {"weights", "prototypes", "framing"},
    "hifgl": {"weights", "shares", "sealed", "pseudonyms", "counts", "control", "framing"},
    "fedggr": {"weights", "embeddings", "framing"},
}
FEDAVG_MESSAGES = {"fedavg.Weights", "fedavg.Update", "fedavg.Validation"}
EXCHANGE_MESSAGES = {
    "federation.Nothing",
    "head_exchange.Offer",
    "head_exchange.HeadGradient",
    "head_exchange.Progress",
}
PROTOTYPE_MESSAGES = {
    "federation.Nothing",
    "feddep.SharedPrototypes",
    "feddep.AllPrototypes",
    "feddep.Generated",
}
MESSAGES_OF = {
    "global": set(),
    "local": {"federation.Nothing", "local.Progress"},
    "fedavg": FEDAVG_MESSAGES,
    "fedsage": FEDAVG_MESSAGES,
    "fedprox": FEDAVG_MESSAGES,
    "fedper": FEDAVG_MESSAGES,
    "oracle": {*FEDAVG_MESSAGES, "oracle.Surroundings"},
    "local+": {
        "federation.Nothing",
        "local.Progress",
        "head_exchange.Progress",
        "fedsage_plus.Mended",
    },
    "fedsage+": {*FEDAVG_MESSAGES, *EXCHANGE_MESSAGES, "fedsage_plus.Mended"},
    "feddep": {*FEDAVG_MESSAGES, *PROTOTYPE_MESSAGES},
    "feddep-no-dgen": {*FEDAVG_MESSAGES, *PROTOTYPE_MESSAGES},
    "feddep-no-proto": {*FEDAVG_MESSAGES, *EXCHANGE_MESSAGES, "feddep.Generated"},
    "feddep-no-nfdp": {*FEDAVG_MESSAGES, *PROTOTYPE_MESSAGES},
    "hifgl": {
        "federation.Nothing",
        *(f"secret_message_passing.{name}" for name in ("Keys", "Letters", "Outgoing", "Incoming")),
        *(f"hifgl.{name}" for name in ("Shared", "Greeting", "Agreed", "Columns", "Gradients")),
        "hifgl.Validation",
    },
    "fedggr": {
        "federation.Nothing",
        "fedavg.Validation",
        "fedggr.AutoencoderWeights",
        "fedggr.AutoencoderUpdate",
        "fedggr.NodeEmbeddings",
        "fedggr.GlobalRows",
        "fedggr.SplitUpdate",
    },
}


WHAT_LEAVES |= {
    **{method: {"weights", "metrics", "framing"} for method in FROM_OUTSIDE},
    "fedavg-plain": {"weights", "metrics", "counts", "framing"},
}
WHAT_COMES |= {method: {"weights", "framing"} for method in FROM_OUTSIDE}
MESSAGES_OF |= {
    **{
        method: {"fedavg.Weights", "fedavg.Validation", "fedmend_example.Moved"}
        for method in FROM_OUTSIDE
    },
    "fedavg-plain": FEDAVG_MESSAGES,
}


@every_method
def test_ledger_has_the_declared_kinds_and_no_other(method: str) -> None:
    ledger = plain_run(method).ledger
    by_direction: dict[str, set[str]] = {"up": set(), "down": set()}
    for entry in ledger.entries:
        by_direction[entry.direction].add(entry.kind)
        declared = {rule.kind for rule in field_rules(MESSAGES[entry.message]).values()}
        assert entry.kind in {*declared, "framing"}
        assert entry.bytes > 0
    assert by_direction == {"up": WHAT_LEAVES[method], "down": WHAT_COMES[method]}
    assert {entry.message for entry in ledger.entries} == MESSAGES_OF[method]


@federated
def test_ledger_covers_every_silo_and_round(method: str) -> None:
    asked = plain_run(method).ledger.by("silo", "round", "direction", "phase")
    for silo in PARTITION.names:
        for number in range(1, 4):
            for direction in ("up", "down"):
                assert asked[silo, number, direction, "training"] > 0
        for phase, count in PHASES.get(method, {}).items():
            for number in range(1, count + 1):
                for direction in ("up", "down"):
                    assert asked[silo, number, direction, phase] > 0


@pytest.fixture
def transcript(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes of every message that is encoded while the test runs; nothing else is changed."""
    seen: list[bytes] = []
    encode = wire.encode

    def recording(message: Any) -> wire.Encoded:
        encoded = encode(message)
        seen.append(encoded.data)
        return encoded

    monkeypatch.setattr(wire, "encode", recording)
    return seen


def conspicuous() -> Partition:
    """Silos whose features, ids and class names are unlike anything else, and easy to search."""
    graph = tiny_graph(45)
    x = graph.x.clone()
    x[:, 0] = torch.arange(45) * 1.0e7 + 12345.678
    named = rebuilt(
        graph,
        x=x,
        node_ids=[f"patient-{number:05d}" for number in range(45)],
        label_names=["diagnosis-a", "diagnosis-b", "diagnosis-c"],
        feature_names=[f"lab-value-{number}" for number in range(6)],
    )
    assignment = np.arange(45) % 3
    silos = {
        f"hospital-{silo}": named.subgraph(torch.from_numpy(np.flatnonzero(assignment == silo)))
        for silo in range(3)
    }
    return Partition(silos, "by hand", None, named, assignment)


def test_only_oracle_looks_beyond_its_silo() -> None:
    """It is exempt from the search below, because it shows raw data on purpose, and says so."""
    assert LOOKS_BEYOND == ["oracle"]
    raw = [entry for entry in plain_run("oracle").ledger.entries if entry.kind == "raw"]
    assert {entry.silo for entry in raw} == set(PARTITION.names)
    for method in METHODS:
        if method not in LOOKS_BEYOND:
            assert not [e for e in plain_run(method).ledger.entries if e.kind == "raw"]


@pytest.mark.parametrize("method", [name for name in FEDERATED if name not in LOOKS_BEYOND])
def test_no_message_holds_raw_data(method: str, transcript: list[bytes]) -> None:
    partition = conspicuous()
    train(method, partition, **settings_of(method, lr=1e-4))
    assert transcript
    everything = b"\n".join(transcript)
    texts = [b"patient-", b"diagnosis-", b"lab-value-", b"hospital-"]
    assert not [text for text in texts if text in everything]
    for silo in partition.silos.values():
        for value in silo.x[:, 0].tolist():
            for form in ("<f", "<d", ">f"):
                assert struct.pack(form, value) not in everything
            assert str(value).encode() not in everything
        for row in silo.x:
            assert row.numpy().tobytes() not in everything
        for indices in (silo.col, silo.rowptr, silo.y):
            assert indices.numpy().tobytes() not in everything


def test_that_search_would_find_a_leak(transcript: list[bytes]) -> None:
    """The search above proves nothing if it cannot find features that do leave."""
    from fedmend.methods.fedavg import Weights

    row = conspicuous().silos["hospital-0"].x[3]
    wire.encode(Weights({"patient-00009": row}))
    assert row.numpy().tobytes() in transcript[0]
    assert struct.pack("<f", float(row[0])) in transcript[0]
    assert b"patient-" in transcript[0]


def test_fedper_never_sends_its_personal_layers(transcript: list[bytes]) -> None:
    for personal in (0, 1, 2):
        transcript.clear()
        settings = FedPerSettings(layers=3, personal_layers=personal)
        train("fedper", PARTITION, layers=3, personal_layers=personal, **SETTINGS)
        sent = [wire.decode(data) for data in transcript]
        keys = {key for each in sent if hasattr(each, "weights") for key in each.weights}
        assert {int(key.split(".")[1]) for key in keys} == set(range(3 - personal))
        assert all(settings.shared(key) for key in keys)


# Losing, interrupting, saving


def stopping_after(number: int) -> Watch:
    watch = Watch()

    def on_round(moment: Moment) -> None:
        watch.stop_requested = moment.round >= number

    watch.on_round = on_round
    return watch


@pytest.mark.parametrize(("every", "optimizer"), [(1, "adam"), (3, "sgd")])
@every_method
def test_resumes_to_the_identical_result(
    tmp_path: Path, method: str, every: int, optimizer: str
) -> None:
    options = settings_of(method, rounds=5, optimizer=optimizer, lr=0.05)
    with pytest.raises(Interrupted):
        train(
            method,
            PARTITION,
            out=tmp_path,
            checkpoint_every=every,
            watch=stopping_after(2),
            **options,
        )
    resumed = train(method, PARTITION, out=tmp_path, resume=True, checkpoint_every=every, **options)
    whole = train(method, PARTITION, **options)
    same_result(resumed, whole)
    assert comparable(resumed.record) == comparable(whole.record)


@pytest.mark.parametrize("method", PHASES)
def test_resumes_after_any_round_of_any_phase(tmp_path: Path, method: str) -> None:
    """A stop after each round there is, the last of a phase too, and on to the same result."""
    rounds = sum(PHASES[method].values()) + SETTINGS["rounds"]
    for last in range(1, rounds):
        watch, seen = Watch(), 0

        def on_round(moment: Moment, watch: Watch = watch, last: int = last) -> None:
            nonlocal seen
            seen += 1
            watch.stop_requested = seen >= last

        watch.on_round = on_round
        out = tmp_path / str(last)
        options: dict[str, Any] = {"out": out, "checkpoint_every": 1, **settings_of(method)}
        with pytest.raises(Interrupted):
            train(method, PARTITION, watch=watch, **options)
        assert seen == last, "it stops at once"
        resumed = train(method, PARTITION, resume=True, **options)
        same_result(resumed, plain_run(method))
        assert comparable(resumed.record) == comparable(plain_run(method).record)


@pytest.mark.parametrize(
    ("method", "phase"), [(method, phase) for method in PHASES for phase in PHASES[method]]
)
def test_goes_on_without_a_silo_lost_before_training(method: str, phase: str) -> None:
    """It is said, nothing of the silo arrives in that phase, and it comes back afterwards."""
    faults = [Fault("silo-1", phase=phase)]
    result = train(method, PARTITION, faults=faults, **settings_of(method))
    lost = f"silo-1 was lost in round 1 of {phase}: it does not answer"
    assert lost in result.record.said
    up = result.ledger.by("silo", "phase", "direction")
    assert ("silo-1", phase, "up") not in up
    assert ("silo-0", phase, "up") in up
    assert ("silo-1", "training", "up") in up
    if phase == "local GNNs":  # that needs nobody else: the silo makes up for it
        assert same_weights(result.weights, plain_run(method).weights)
    else:
        assert result.history != plain_run(method).history
    assert sorted(result.history["training"]) == sorted(plain_run(method).history["training"])


def without_one(method: str) -> Partition:
    """A federation that can go on without one silo: with secret messages it takes three."""
    return tiny_partition(4) if METHODS[method].needs_border else PARTITION


@federated
def test_goes_on_without_a_lost_silo(method: str) -> None:
    faults = [Fault("silo-1", first=2, last=2, phase="training")]
    result = train(method, without_one(method), faults=faults, **settings_of(method))
    lost = "silo-1 was lost in round 2 of training: it does not answer"
    assert result.record.said == (*plain_run(method).record.said, lost)
    up = result.ledger.by("silo", "phase", "round", "direction")
    assert ("silo-1", "training", 2, "up") not in up
    assert ("silo-0", "training", 2, "up") in up
    assert ("silo-1", "training", 3, "up") in up
    plain = plain_run(method)
    assert (
        result.history != plain.history
        or not same_weights(result.weights, plain.weights)
        or any(not same_weights(result.own[name], plain.own[name]) for name in result.own)
    )
    assert sorted(result.history["training"]) == sorted(plain_run(method).history["training"])


@federated
@pytest.mark.parametrize("evaluation", ["global-graph", "own-subgraph"])
def test_goes_on_without_a_silo_that_never_answers(method: str, evaluation: str) -> None:
    faults, partition = [Fault("silo-1")], without_one(method)
    result = train(method, partition, faults=faults, evaluation=evaluation, **settings_of(method))
    assert result.ledger.total("up", "silo-1") == 0
    assert result.scores is not None
    if METHODS[method].model == "own":
        assert set(result.own) == {"silo-0", "silo-2"}
        assert set(result.scores.by_silo) == {"silo-0", "silo-2"}
        with pytest.raises(UnknownNameError, match="silo-1"):
            result.model_of("silo-1")
    else:
        names = set(partition.names) if evaluation == "own-subgraph" else set()
        assert set(result.scores.by_silo) == names


@federated
def test_stops_clearly_with_too_few_silos(method: str) -> None:
    faults = [Fault("silo-0", first=2), Fault("silo-2", first=2)]
    with pytest.raises(TooFewSilosError, match=r"1 of 3 silos answered, min_silos=2 \(silo-0: it"):
        train(method, PARTITION, faults=faults, min_silos=2, **settings_of(method))
    with pytest.raises(SettingsError, match="min_silos=4, but there are 3 silos"):
        train(method, PARTITION, min_silos=4, **settings_of(method))


@every_method
def test_saved_run_predicts_as_the_run_itself(tmp_path: Path, method: str) -> None:
    result = plain_run(method)
    result.save(tmp_path / "run")
    saved = read_run(tmp_path / "run")
    record = saved.record
    assert record.model == result.shape
    assert same_weights(saved.weights, result.weights)
    assert record.silos_with_own_model == tuple(sorted(result.own))
    unseen = tiny_graph(30, seed=9)
    for silo in (*record.silos, *(() if record.silos_with_own_model else (None,))):
        if silo is None:
            weights = own_or_shared(record, saved.weights, saved.own_weights, None)
            again = predict_with(
                partial(predict, model_with(record.model, weights)), record, unseen
            )
        else:
            again = predict_with(predictor_of(saved, silo).predict, record, unseen)
        now = result.predict(unseen, silo)
        assert torch.equal(again.probabilities, now.probabilities)
        assert again.labels == now.labels
        torch.testing.assert_close(now.probabilities.sum(1), torch.ones(30))
    if METHODS[method].model == "own":
        with pytest.raises(SettingsError, match="a model per silo: name one"):
            result.predict(unseen)
        with pytest.raises(UnknownNameError, match="did you mean 'silo-0'"):
            result.predict(unseen, "silo0")


# Settings


@every_method
def test_settings_are_described_and_checked(method: str) -> None:
    rows = describe(find(method).settings_type)
    assert all(each.help for each in rows), "every setting says what it means"
    assert {"rounds", "backbone", "lr"} <= {each.name for each in rows}
    with pytest.raises(UnknownNameError, match="did you mean 'rounds'"):
        train(method, PARTITION, round=3)
    with pytest.raises(SettingsError, match="rounds=0 is not allowed"):
        train(method, PARTITION, rounds=0)


BACKBONES_OF = {"hifgl": ("gcn", "sage")}
"""Methods that cannot be had with every backbone."""


@every_method
def test_backbone_is_an_option_of_all(method: str) -> None:
    for backbone in ("gcn", "gat", "mlp", "sage"):
        fixed = METHODS[method].fixed.get("backbone", backbone)
        if backbone not in BACKBONES_OF.get(method, BACKBONES):
            with pytest.raises(UnknownNameError, match="unknown value of backbone"):
                train(method, PARTITION, backbone=backbone, **SETTINGS)
        elif fixed != backbone:
            with pytest.raises(SettingsError, match=f"{method} means backbone={fixed}; for"):
                train(method, PARTITION, **settings_of(method, backbone=backbone))
        else:
            result = train(method, PARTITION, **settings_of(method, backbone=backbone, rounds=1))
            fused = METHODS[method].settings == "FedDEPSettings"
            assert result.shape.backbone == ("fused-sage" if fused else backbone)


def test_fedsage_is_fedavg_with_graphsage() -> None:
    same_result(plain_run("fedsage"), train("fedavg", PARTITION, backbone="sage", **SETTINGS))
    with pytest.raises(SettingsError, match="fedsage means backbone=sage; for backbone=gcn"):
        train("fedsage", PARTITION, backbone="gcn", **SETTINGS)


@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if not m.needs_border])
def test_silo_without_training_nodes_is_named(method: str) -> None:
    graph = PARTITION.silos["silo-1"]
    nobody = torch.zeros(graph.num_nodes, dtype=torch.bool)
    silos: Mapping[str, Graph] = {
        **PARTITION.silos,
        "silo-1": graph.with_masks(nobody, graph.val_mask, graph.test_mask),
    }
    if METHODS[method].sees_beyond:
        assert PARTITION.whole is not None
        whole, mask = PARTITION.whole, PARTITION.whole.train_mask.clone()
        mask[torch.from_numpy(PARTITION.rows("silo-1"))] = False
        whole = whole.with_masks(mask, whole.val_mask, whole.test_mask)
        partition = Partition(dict(silos), "by hand", None, whole, PARTITION.assignment)
    else:
        partition = Partition(dict(silos), "by hand", None)
    if not METHODS[method].pooled:
        with pytest.raises(DataError, match="silo-1 has no training nodes"):
            train(method, partition, **settings_of(method))


@every_method
def test_registry_entry(method: str) -> None:
    entry = METHODS[method]
    assert entry.name == method
    assert entry.summary
    if METHODS.plugin_of(method) is None:
        assert entry.silo_type.__module__.startswith("fedmend.methods.")
    assert callable(entry.server)
    names = {each.name for each in describe(entry.settings_type)}
    assert set(entry.paper) <= names, "what its paper has is said of settings that there are"


def test_unknown_method() -> None:
    with pytest.raises(UnknownNameError, match="unknown method 'fedvag'; did you mean 'fedavg'"):
        train("fedvag", PARTITION)
