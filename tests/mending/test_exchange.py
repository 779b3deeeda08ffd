"""The exchange of gradients between generators: what arrives, what is refused, what is said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.engines import wire
from fedmend.engines.inprocess import InProcess
from fedmend.errors import FederationError
from fedmend.federation import Nothing, Schema, SiloLost
from fedmend.mending.exchange import HeadGradient, Offer, exchange, well_filled
from fedmend.methods import fedsage_plus
from fedmend.methods.fedsage_plus import FedSagePlusSettings
from fedmend.runs.train import train
from tests.tiny import QUICK, tiny_partition

PARTITION = tiny_partition()
OPTIONS: dict[str, Any] = {
    **QUICK,
    "neighbours": 3,
    "hide": 0.4,
    "embedding": 4,
    "generator_hidden": 5,
    "generator_width": 6,
    "generator_epochs": 1,
    "generator_rounds": 2,
    "min_batch": 2,
}
SETTINGS = FedSagePlusSettings(**OPTIONS)
SCHEMA = Schema(6, PARTITION.silos["silo-0"].label_names)


def silos(
    settings: FedSagePlusSettings = SETTINGS,
    kind: type[fedsage_plus.Silo] = fedsage_plus.Silo,
    partition: Partition = PARTITION,
) -> dict[str, fedsage_plus.Silo]:
    made = {name: kind(name, graph, settings, 0) for name, graph in partition.silos.items()}
    for silo in made.values():
        with torch.no_grad():  # so that there is something to offer: two and three neighbours
            silo.learner.number.bias.fill_(2.6)
            silo.learner.number.weight.mul_(3)
    return made


def offer_of(silo: fedsage_plus.Silo) -> Offer:
    offer: Offer = wire.decode(wire.encode(silo.offer_head(Nothing())).data)
    assert offer.head
    return offer


def cross_term(weights: Mapping[str, Tensor], offer: Offer, x: Tensor) -> Tensor:
    """Eq. (6)'s term of one other silo, by loops, as everybody's data in one place would give."""
    total = torch.zeros(())
    for z, count in zip(offer.inputs, offer.predicted.tolist(), strict=True):
        h = z
        for layer in range(2):
            h = torch.relu(h @ weights[f"hidden.{layer}"] + weights[f"hidden_bias.{layer}"])
        for slot in range(count):
            made = torch.tanh(h @ weights[f"last.{slot}"] + weights[f"last_bias.{slot}"])
            total = total + min(((made - row) ** 2).sum() for row in x)
    return total


def test_gradient_is_that_of_the_cross_term() -> None:
    made = silos()
    offer = offer_of(made["silo-2"])
    assert len(set(offer.predicted.tolist())) > 1
    found = made["silo-1"].measure(offer).gradient
    weights = {key: value.detach().clone().requires_grad_() for key, value in offer.head.items()}
    cross_term(weights, offer, PARTITION.silos["silo-1"].x).backward()  # type: ignore[no-untyped-call]  # torch's
    assert found.keys() == weights.keys()
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value.grad)


class Listening(InProcess[Any]):
    """An engine that keeps what is exchanged, and can lose a silo in a single step."""

    lose: tuple[str, str] = ("", "")

    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        answers = dict(super()._exchange(step, requests))
        for name in answers:
            if (step, name) == self.lose:
                answers[name] = SiloLost(name, "it does not answer")
        self.heard = getattr(self, "heard", [])
        for name, request in requests.items():
            answer = answers[name]
            reply = None if isinstance(answer, SiloLost) else wire.decode(answer)
            self.heard.append((step, name, wire.decode(request), reply))
        return answers


def one_round(
    lose: tuple[str, str] = ("", ""),
    kind: type[fedsage_plus.Silo] = fedsage_plus.Silo,
    partition: Partition = PARTITION,
) -> Listening:
    engine = Listening(silos(SETTINGS, kind, partition).values(), SCHEMA, 0, workers=1)
    engine.lose = lose
    with engine:
        for number in engine.rounds(1, Nothing(), "exchange"):
            exchange(engine, number, 1, SETTINGS.min_batch)
    return engine


def gradients(engine: Listening, name: str) -> tuple[list[Any], Any]:
    """What the others found for a silo's head, and what reached that silo."""
    head = next(
        reply.head for step, who, _, reply in engine.heard if (step, who) == ("offer_head", name)
    )
    found = [
        reply
        for step, _, asked, reply in engine.heard
        if step == "measure" and all(torch.equal(asked.head[key], head[key]) for key in head)
    ]
    got = next(asked for step, who, asked, _ in engine.heard if (step, who) == ("learn", name))
    return found, got


def test_server_adds_the_gradients_up() -> None:
    engine = one_round()
    for name in PARTITION.names:
        found, got = gradients(engine, name)
        assert len(found) == 2
        for key, value in got.gradient.items():
            assert torch.equal(value, found[0].gradient[key] + found[1].gradient[key])
            assert not torch.equal(value, found[0].gradient[key])


def test_a_lost_silos_term_is_left_out_and_said_so() -> None:
    engine = one_round(lose=("measure", "silo-3"), partition=tiny_partition(4))
    found, got = gradients(engine, "silo-0")
    one, other = (each for each in found if each is not None)
    assert got.gradient
    for key, value in got.gradient.items():
        assert torch.equal(value, one.gradient[key] + other.gradient[key])
    for name in ("silo-0", "silo-1", "silo-2"):
        assert f"silo-3 is left out of what {name}'s generator learns from" in engine.sentences
    # Silo 3 itself still learns from the others.
    assert len([each for each in gradients(engine, "silo-3")[0] if each is not None]) == 3


def test_one_answer_alone_is_not_handed_on() -> None:
    """With three silos and one that does not answer, a sum would be the other's own gradient."""
    engine = one_round(lose=("measure", "silo-2"))
    _, got = gradients(engine, "silo-0")
    assert got.gradient == {}
    assert any("only one silo answered silo-0" in said for said in engine.sentences)
    _, whole = gradients(engine, "silo-2")  # both others answered it
    assert whole.gradient


def test_one_step_takes_own_and_others_gradient_once() -> None:
    """The step's gradient is the own loss's plus alpha times the sum over the batch's size."""
    seen: dict[str, dict[str, Tensor]] = {}
    for alpha in (0.0, 0.5):
        silo = silos(replace(SETTINGS, alpha=alpha))["silo-0"]
        offer = offer_of(silo)
        cross = silos()["silo-1"].measure(offer)
        learner = silo.learner

        def keep(learner: Any = learner, alpha: float = alpha) -> None:
            seen[str(alpha)] = {
                key: each.grad.clone()
                for key, each in learner.head.named_parameters()
                if each.grad is not None
            }

        learner._optimizer.step = keep  # type: ignore[method-assign]  # looks on
        silo.learn(cross)
    nodes = silo.learner.impaired.graph.num_nodes
    for key, value in cross.gradient.items():
        expected = seen["0.0"][key] + 0.5 * value / nodes
        torch.testing.assert_close(seen["0.5"][key], expected)
        assert not torch.equal(seen["0.5"][key], seen["0.0"][key])


def test_learning_twice_from_one_exchange_is_refused() -> None:
    silo = silos()["silo-0"]
    with pytest.raises(FederationError, match="silo-0 is to learn from an exchange it had no part"):
        silo.learn(HeadGradient({}))


def changed_head(offer: Offer, key: str, value: Tensor) -> Offer:
    return replace(offer, head={**offer.head, key: value})


def with_first(values: Tensor, first: float) -> Tensor:
    return torch.cat([torch.full_like(values[:1], first), values[1:]])


HOSTILE: dict[str, tuple[Any, str]] = {
    "inputs of another width": (
        lambda o: replace(o, inputs=torch.zeros(len(o.inputs), 5)),
        "embeddings of another shape or type",
    ),
    "fewer inputs than numbers": (
        lambda o: replace(o, inputs=o.inputs[1:]),
        "embeddings of another shape or type",
    ),
    "inputs of another type": (
        lambda o: replace(o, inputs=o.inputs.double()),
        "embeddings of another shape or type",
    ),
    "numbers in two dimensions": (
        lambda o: replace(o, predicted=o.predicted[:, None]),
        "embeddings of another shape or type",
    ),
    "NaN inputs": (
        lambda o: replace(o, inputs=with_first(o.inputs, math.nan)),
        "embeddings that are NaN or infinite",
    ),
    "infinite inputs": (
        lambda o: replace(o, inputs=with_first(o.inputs, math.inf)),
        "embeddings that are NaN or infinite",
    ),
    "no neighbour": (
        lambda o: replace(o, predicted=with_first(o.predicted, 0)),
        "not between 1 and 3",
    ),
    "too many neighbours": (
        lambda o: replace(o, predicted=with_first(o.predicted, 4)),
        "not between 1 and 3",
    ),
    "numbers that are not whole": (
        lambda o: replace(o, predicted=o.predicted.float()),
        "not between 1 and 3",
    ),
    "too few nodes": (
        lambda o: replace(o, inputs=o.inputs[:1], predicted=o.predicted[:1]),
        "1 nodes, fewer than min_batch=2",
    ),
    "nobody": (
        lambda o: Offer({}, o.inputs[:0], o.predicted[:0]),
        "0 nodes, fewer than min_batch=2",
    ),
    "a slot that one node fills": (
        lambda o: replace(o, predicted=with_first(torch.ones_like(o.predicted), 2)),
        "slots that fewer than min_batch=2 nodes fill",
    ),
    "an absurd number": (
        lambda o: replace(o, predicted=with_first(o.predicted, 2**62)),
        "not between 1 and 3",
    ),
    "a weight too many": (
        lambda o: changed_head(o, "other", torch.zeros(1)),
        "weights of another model",
    ),
    "a weight of another shape": (
        lambda o: changed_head(o, "last.0", torch.zeros(6, 7)),
        r"sent last.0 as \(6, 7\)",
    ),
    "a NaN weight": (
        lambda o: changed_head(o, "hidden.0", torch.full((4, 5), math.nan)),
        "NaN or infinite",
    ),
    "a weight missing": (
        lambda o: replace(o, head={k: v for k, v in o.head.items() if k != "last.0"}),
        "weights of another model",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_offers_are_refused(what: str) -> None:
    change, text = HOSTILE[what]
    made = silos()
    with pytest.raises(FederationError, match=text):
        made["silo-1"].measure(change(offer_of(made["silo-0"])))


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        ({"other": torch.zeros(1)}, "the server sent the weights of another model"),
        ({"last.0": torch.zeros(2, 2)}, r"the server sent last.0 as \(2, 2\)"),
        ({"hidden.0": torch.full((4, 5), math.nan)}, "the server sent .* NaN"),
    ],
)
def test_hostile_gradients_are_refused(gradient: dict[str, Tensor], text: str) -> None:
    silo = silos()["silo-0"]
    silo.offer_head(Nothing())
    with pytest.raises(FederationError, match=text):
        silo.learn(HeadGradient(gradient))


class Careless(fedsage_plus.Silo):
    """A silo that answers with a part of the gradient."""

    def measure(self, offer: Offer) -> HeadGradient:
        return HeadGradient({key: value[:1] for key, value in offer.head.items()})


def test_a_silos_bad_gradient_is_refused_by_the_server() -> None:
    with pytest.raises(FederationError, match=r"silo-1 sent .* as"):
        one_round(kind=Careless)


def test_two_silos_are_told_what_they_reveal() -> None:
    two, three = (
        train("fedsage+", tiny_partition(silos), **OPTIONS).record.said for silos in (2, 3)
    )
    assert [said for said in two if "with two silos the exchange hands each one" in said]
    assert not [said for said in three if "with two silos" in said]


def test_too_few_nodes_learn_alone_and_it_is_said() -> None:
    result = train("fedsage+", PARTITION, **{**OPTIONS, "min_batch": 1000})
    for name in PARTITION.names:
        assert (
            f"{name} has fewer than min_batch=1000 nodes with a predicted missing neighbour: "
            "while that is so, its generator learns alone"
        ) in result.record.said
    kinds = {entry.kind for entry in result.ledger.entries if entry.phase == "generator exchange"}
    assert "gradients" not in kinds
    assert "embeddings" not in kinds
    assert len(result.history["generator exchange"]) == 2


def test_an_offer_below_the_minimum_holds_nothing() -> None:
    silo = silos(replace(SETTINGS, min_batch=1000))["silo-0"]
    offer = silo.offer_head(Nothing())
    assert offer.head == {}
    assert len(offer.inputs) == len(offer.predicted) == 0


def test_an_offer_tells_of_no_node_without_a_predicted_neighbour() -> None:
    silo = silos(replace(SETTINGS, least_degree=0, least_neighbours=0))["silo-0"]
    learner = silo.learner
    with torch.no_grad():  # about half of the nodes miss one
        values = learner.embeddings() @ learner.number.weight
        learner.number.bias.fill_(0.5 - float(values.median()))
    offer = silo.offer_head(Nothing())
    assert 2 <= len(offer.predicted) < silo.learner.impaired.graph.num_nodes
    assert int(offer.predicted.min()) >= 1


@pytest.mark.parametrize("least", [0, 1, 3, 100])
@pytest.mark.parametrize("least_degree", [0, 1, 2, 100])
def test_every_node_gets_the_least_number_of_neighbours(least: int, least_degree: int) -> None:
    settings = replace(SETTINGS, least_neighbours=least, least_degree=least_degree)
    learner = silos(settings)["silo-0"].learner
    predicted, seen = [0.0, 0.4, 1.6, 0.0, 2.2, 50.0], [0, 3, 1, 1, 0, 2]
    expected = [
        min(max(round(number), least, least_degree - degree), learner.neighbours)
        for number, degree in zip(predicted, seen, strict=True)
    ]
    assert learner.rounded(torch.tensor(predicted), torch.tensor(seen)).tolist() == expected


@given(
    st.lists(st.integers(0, 6), max_size=40),
    st.integers(1, 8),
)
def test_every_slot_that_is_offered_is_well_filled(counts: list[int], least: int) -> None:
    given = torch.tensor(counts, dtype=torch.int64)
    kept = well_filled(given, least)
    assert bool((kept <= given).all())
    for slot in range(6):
        nodes = int((kept > slot).sum())
        assert nodes == 0 or nodes >= least
        # Nothing is left out that could have stayed.
        assert nodes == int((given > slot).sum()) or int((given > slot).sum()) < least
    assert torch.equal(well_filled(kept, least), kept)


def test_no_slot_of_an_offer_is_filled_by_few() -> None:
    thin = silos(replace(SETTINGS, min_batch=1))["silo-0"].offer_head(Nothing()).predicted
    fewest = int((thin == thin.max()).sum())
    assert int(thin.max()) == 3
    offer = silos(replace(SETTINGS, min_batch=fewest + 1))["silo-0"].offer_head(Nothing())
    assert int(offer.predicted.max()) < 3
    assert "last.2" not in offer.head
    assert len(offer.predicted) == len(thin)  # nodes are not left out, only their last slots
