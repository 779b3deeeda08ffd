"""Secret Message Passing by itself: exact sums, and transcripts that tell nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmend.errors import FederationError, SettingsError
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.field import PRIME, add, from_field
from fedmend.privacy.mechanism import GaussianMessages
from fedmend.privacy.noise import NO_NOISE, SecretNoise
from fedmend.secret.session import (
    SERVER,
    Bundle,
    Edges,
    Hearing,
    Incoming,
    Keys,
    Letters,
    Outgoing,
    Route,
    Router,
    Secrecy,
    SecretMessages,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NODES = 6
WIDTH = 3


class Net:
    """A few silos of six nodes each, joined at random, and everything that passes between them."""

    def __init__(
        self,
        silos: int = 5,
        threshold: int = 1,
        checks: int = 0,
        routing: str = "relay",
        together: bool = True,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.secrecy = Secrecy(routing, threshold, checks, 28)
        self.names = np.arange(silos * NODES) * 7 + 1000  # pseudonyms
        silo = np.repeat(np.arange(silos), NODES)
        pairs = np.array(list(combinations(range(silos * NODES), 2)))
        pairs = pairs[(silo[pairs[:, 0]] != silo[pairs[:, 1]]) & (rng.random(len(pairs)) < 0.15)]
        both = np.concatenate([pairs, pairs[:, ::-1]])
        self.adjacency = np.zeros((silos * NODES, silos * NODES))
        self.adjacency[both[:, 0], both[:, 1]] = 1.0
        self.values = torch.from_numpy(rng.normal(size=(silos * NODES, WIDTH))).float()
        self.silos = []
        for number in range(silos):
            own = self.names[silo == number]
            each = SecretMessages(f"silo-{number}", number, own, self.secrecy, None)
            mine = both[silo[both[:, 0]] == number]
            edges = Edges(mine[:, 0] % NODES, silo[mine[:, 1]], self.names[mine[:, 1]])
            quiet = np.zeros(len(mine), dtype=np.bool_)
            each.routes["forward"] = Route(edges, quiet, NODES, together)
            each.hearings["forward"] = Hearing(own, edges, together)
            self.silos.append(each)
        keys = torch.stack([each.public_key for each in self.silos])
        members = torch.arange(silos)
        for each in self.silos:
            each.meet(Keys("pass 1", True, members, keys, 1000, 3))
        self.router = Router(self.secrecy)
        self.to_relays: dict[int, Letters] = {}
        self.from_relays: dict[int, Letters] = {}

    def rows(self, number: int) -> slice:
        return slice(number * NODES, (number + 1) * NODES)

    def speak(self, label: str = "pass 1") -> dict[int, Outgoing]:
        return {
            each.number: each.speak("forward", self.values[self.rows(each.number)], label)
            for each in self.silos
        }

    def carry(self, outgoing: Mapping[int, Outgoing]) -> dict[int, Incoming]:
        def relay(letters: Mapping[int, Letters]) -> dict[int, Letters]:
            self.to_relays = dict(letters)
            self.from_relays = {to: self.silos[to].relay(each) for to, each in letters.items()}
            return self.from_relays

        return self.router.carry("forward", outgoing, relay)

    def heard(self, incoming: Mapping[int, Incoming]) -> Tensor:
        found = []
        for each in self.silos:
            coded = each.collect("forward", incoming[each.number])
            found.append(each.placed("forward", each.decode(coded), WIDTH))
        return torch.cat(found)

    def shares_of(self, outgoing: Mapping[int, Outgoing], source: int) -> dict[int, list[Bundle]]:
        """Every share a source sent, by relay: opened with the relays' own keys."""
        sent = outgoing[source]
        held: dict[int, list[Bundle]] = {SERVER: []}
        start = 0
        for target, rows in enumerate(sent.rows.tolist()):
            part = slice(start, start + rows)
            start += rows
            shares = sent.shares.numpy().view(np.uint64)[part]
            held[SERVER].append(Bundle(target, 0, sent.pseudonyms.numpy()[part], shares))
        for key, sealed in sent.sealed.items():
            opened = self.silos[int(key)].open({str(source): sealed}, sent.label)[source]
            held[int(key)] = unpack(opened, self.secrecy.shares)
        return held

    def said(self, source: int, target: int) -> dict[int, NDArray[Any]]:
        """What a source really says to each node of a target."""
        adjacency = self.adjacency[self.rows(target), self.rows(source)]
        sums = adjacency @ self.values[self.rows(source)].double().numpy()
        names = self.names[self.rows(target)]
        return {int(names[row]): sums[row] for row in np.flatnonzero(adjacency.any(1))}


def exact(net: Net) -> Tensor:
    return torch.from_numpy(net.adjacency @ net.values.double().numpy())


@pytest.mark.parametrize("routing", ["relay", "paper"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("silos", "threshold", "checks"), [(3, 1, 0), (5, 1, 0), (5, 2, 1), (6, 4, 0), (5, 1, 2)]
)
def test_sums_are_exact(
    silos: int, threshold: int, checks: int, together: bool, routing: str
) -> None:
    net = Net(silos, threshold, checks, routing, together)
    outgoing = net.speak()
    torch.testing.assert_close(
        net.heard(net.carry(outgoing)).double(), exact(net), atol=1e-6, rtol=1e-6
    )


def test_the_adjacency_is_one_worth_testing() -> None:
    net = Net()
    degree = net.adjacency.sum(1)
    assert (degree == 0).any()
    assert (degree == 1).any()
    assert (degree >= 3).any()


# Who relays


@given(st.integers(3, 12), st.integers(1, 5), st.integers(0, 2), st.data())
def test_no_silo_relays_its_own_messages(
    silos: int, threshold: int, checks: int, data: st.DataObject
) -> None:
    members = data.draw(st.lists(st.integers(0, 20), min_size=silos, max_size=silos, unique=True))
    secrecy = Secrecy("relay", threshold, checks, 28)
    if secrecy.shares > silos - 1:
        with pytest.raises(SettingsError, match="use at least"):
            secrecy.check(silos, within_silos=False)
        return
    secrecy.check(silos, within_silos=True)
    source, target = data.draw(st.sampled_from(members)), data.draw(st.sampled_from(members))
    relays = secrecy.relays(source, target, members, data.draw(st.integers(0, 30)))
    assert len(set(relays)) == len(relays) == secrecy.shares
    assert relays[0] == SERVER
    assert source not in relays
    assert target not in relays
    assert set(relays[1:]) <= set(members)


def test_few_relay_in_a_pass_and_everybody_in_turn() -> None:
    secrecy = Secrecy("relay", 1, 0, 28)
    pairs = [(s, t) for s in range(6) for t in range(6) if s != t]
    loads = np.zeros((6, 6), dtype=int)
    for turn in range(6):
        for source, target in pairs:
            loads[turn, secrecy.relays(source, target, range(6), turn)[1]] += 1
    assert ((loads > 0).sum(1) == 3).all()  # T + 2 silos are enough for every pair
    assert len(set(loads.sum(0).tolist())) == 1


@pytest.mark.parametrize("silos", [1, 2])
def test_one_or_two_silos_have_no_relay(silos: int) -> None:
    with pytest.raises(SettingsError, match=r"use at least 3 silos.*routing=paper"):
        Secrecy("relay", 1, 0, 28).check(silos, within_silos=True)
    Secrecy("relay", 1, 0, 28).check(1, within_silos=False)  # nothing is sent at all
    Secrecy("paper", 1, 0, 28).check(silos, within_silos=True)


def test_a_relay_refuses_what_it_must_not_see() -> None:
    net = Net()
    bundle = Bundle(0, 1, np.array([1000]), np.array([[5]], dtype=np.uint64))
    for target, number in ((1, 1), (9, 2)):
        letter = net.silos[0].seal({number: pack([replace(bundle, target=target)])}, "pass 1")
        sealed = {"0": letter.sealed[str(number)]}
        with pytest.raises(FederationError, match="must not see it"):
            net.silos[number].relay(Letters("pass 1", sealed))


# Transcripts


def decodes_to(bundles: list[Bundle]) -> dict[int, NDArray[Any]]:
    """What adding up the given shares of each node gives: the decoder of an eavesdropper."""
    sums: dict[int, Any] = {}
    for bundle in bundles:
        for name, share in zip(bundle.pseudonyms.tolist(), bundle.shares, strict=True):
            sums[name] = add(sums[name], share) if name in sums else share
    return {name: from_field(total, 28) for name, total in sums.items()}


def reveals(found: Mapping[int, NDArray[Any]], true: Mapping[int, NDArray[Any]]) -> int:
    return sum(bool(np.allclose(found[name], true[name], atol=1e-4)) for name in true)


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_any_t_relays_learn_nothing_and_one_more_everything(threshold: int) -> None:
    net = Net(threshold=threshold)
    outgoing = net.speak()
    seen = 0
    for source in range(5):
        held = net.shares_of(outgoing, source)
        assert source not in held
        for target in range(5):
            true = net.said(source, target)
            if source == target or not true:
                continue
            relays = net.secrecy.relays(source, target, range(5), 3)
            mine = {
                relay: [bundle for bundle in held[relay] if bundle.target == target]
                for relay in relays
            }
            for some in combinations(relays, threshold):
                together = [bundle for relay in some for bundle in mine[relay]]
                assert reveals(decodes_to(together), true) == 0
            everybody = [bundle for relay in relays for bundle in mine[relay]]
            assert reveals(decodes_to(everybody), true) == len(true)
            seen += len(true)
    assert seen > 50


def test_the_same_message_never_has_the_same_shares() -> None:
    net = Net(threshold=2)
    seen = []
    for number in range(4):
        outgoing = net.speak(f"pass {number}")
        for source in range(5):
            held = net.shares_of(outgoing, source)
            seen += [b.shares.reshape(-1) for bundles in held.values() for b in bundles]
    everything = np.concatenate(seen)
    assert len(np.unique(everything)) == len(everything)


def test_the_servers_transcript_decodes_nothing() -> None:
    net = Net()
    outgoing = net.speak()
    incoming = net.carry(outgoing)
    sent = [bytes(t.numpy()) for each in outgoing.values() for t in each.sealed.values()]
    sent += [bytes(t.numpy()) for each in net.from_relays.values() for t in each.sealed.values()]
    carried = b"".join(sent)
    for source in range(5):
        held = net.shares_of(outgoing, source)
        true = {k: v for target in range(5) for k, v in net.said(source, target).items()}
        assert reveals(decodes_to(held[SERVER]), true) == 0
        for relay, bundles in held.items():
            for bundle in bundles if relay != SERVER else []:
                for row in bundle.shares:
                    assert row.tobytes() not in carried
                assert bundle.pseudonyms.tobytes() not in carried
    # Its own sums, which it adds up itself, are no sums of messages either.
    whole = exact(net).numpy()
    sums = {int(name): whole[row] for row, name in enumerate(net.names)}
    for each in incoming.values():
        own = Bundle(0, 0, each.pseudonyms.numpy(), each.sums.numpy().view(np.uint64))
        found = decodes_to([own])
        assert reveals(found, {name: sums[name] for name in found}) == 0
    # The search would find a share that is carried open.
    plain = net.shares_of(outgoing, 0)[SERVER][1].shares[0]
    assert plain.tobytes() in outgoing[0].shares.numpy().tobytes()


def test_the_targets_transcript_gives_sums_and_no_single_message() -> None:
    net = Net(silos=5, threshold=1)
    outgoing = net.speak()
    incoming = net.carry(outgoing)
    whole = exact(net).numpy()
    singles, several = 0, 0
    for target in range(5):
        parts = [
            Bundle(
                target,
                0,
                incoming[target].pseudonyms.numpy(),
                incoming[target].sums.numpy().view(np.uint64),
            )
        ]
        label = f"{incoming[target].label} sums"
        for data in net.silos[target].open(incoming[target].sealed, label).values():
            parts += unpack(data, 2)
        total = decodes_to(parts)
        for row, name in enumerate(net.names[net.rows(target)].tolist()):
            said = [net.said(s, target)[name] for s in range(5) if name in net.said(s, target)]
            if not said:
                assert name not in total
                continue
            np.testing.assert_allclose(total[name], whole[target * NODES + row], atol=1e-5)
            if len(said) == 1:
                continue  # one neighbouring silo: its sum is the whole sum
            several += 1
            for size in range(1, len(parts)):
                for some in combinations(parts, size):
                    found = decodes_to(list(some)).get(name)
                    singles += any(
                        found is not None and np.allclose(found, each, atol=1e-4) for each in said
                    )
    assert several > 10
    assert singles == 0


def test_routing_as_in_the_paper_lets_the_target_decode_single_messages() -> None:
    """The weakness that docs/methods/hifgl.md states."""
    net = Net(routing="paper")
    outgoing = net.speak()
    assert not outgoing[0].shares.numel()
    found = 0
    for source in range(5):
        for key, sealed in outgoing[source].sealed.items():
            target = net.silos[int(key)]
            opened = target.open({str(source): sealed}, "pass 1")[source]
            true = net.said(source, int(key))
            assert reveals(decodes_to(unpack(opened, 2)), true) == len(true)
            found += len(true)
    assert found > 50


# Shares that are missing, wrong or too many


def test_a_missing_share_is_a_lost_message() -> None:
    net = Net()
    outgoing = net.speak()
    relay, letter = next(iter(outgoing[0].sealed.items()))
    del outgoing[0].sealed[relay]
    incoming = net.carry(outgoing)
    with pytest.raises(FederationError, match=r"a message was lost: shares for \d+ of its nodes"):
        net.heard(incoming)
    outgoing[0].sealed[relay] = letter
    torch.testing.assert_close(
        net.heard(net.carry(outgoing)).double(), exact(net), atol=1e-6, rtol=0
    )


def test_a_relay_that_drops_a_node_is_noticed() -> None:
    net = Net()
    incoming = net.carry(net.speak())
    for each in incoming.values():
        each.sealed.clear()
    with pytest.raises(FederationError, match="a message was lost"):
        net.heard(incoming)


def test_a_letter_sent_twice_is_noticed() -> None:
    net = Net(silos=6)
    incoming = net.carry(net.speak())
    target = net.silos[0]
    label = f"{incoming[0].label} sums"
    bundles = [b for d in target.open(incoming[0].sealed, label).values() for b in unpack(d, 2)]
    again = net.silos[1].seal({0: pack([*bundles, *bundles])}, label)
    first = Incoming(
        "pass 1",
        incoming[0].sums,
        incoming[0].pseudonyms,
        incoming[0].counts,
        {"1": again.sealed["0"]},
        incoming[0].in_clear,
    )
    with pytest.raises(FederationError, match="missing or too many"):
        target.collect("forward", first)


@pytest.mark.parametrize("threshold", [1, 2])
def test_one_more_share_detects_a_wrong_one(threshold: int) -> None:
    for checks in (0, 1):
        net = Net(silos=6, threshold=threshold, checks=checks)
        incoming = net.carry(net.speak())
        wrong = incoming[2].sums.clone()
        wrong[0, 0] = (int(wrong[0, 0]) + 2**30) % PRIME
        target = net.silos[2]
        coded = target.collect(
            "forward",
            Incoming(
                "pass 1",
                wrong,
                incoming[2].pseudonyms,
                incoming[2].counts,
                incoming[2].sealed,
                incoming[2].in_clear,
            ),
        )
        if checks:
            with pytest.raises(FederationError, match="silo-2: a share is wrong"):
                target.decode(coded)
        else:
            assert target.decode(coded).size  # nobody can tell: the docs say so


def test_overflow_is_an_error_before_anything_is_sent() -> None:
    net = Net()
    net.values[3, 1] = 1e9
    with pytest.raises(FederationError, match=r"silo-0 has a value of size .* scale the features"):
        net.speak()


# Hostile bytes


@given(st.binary(max_size=200))
def test_bundles_that_are_none(data: bytes) -> None:
    try:
        found = unpack(data, 2)
    except FederationError:
        return
    assert pack(found) == data


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_bundles_of_any_numbers(numbers: list[int]) -> None:
    with contextlib.suppress(FederationError):
        unpack(np.array(numbers, dtype=np.int64).tobytes(), 2)


@pytest.mark.parametrize(
    "header", [[0, 2, 1, 1, 0], [0, 0, 2**62, 2**62, 0], [0, 0, 3, 1, 0], [0, 0, 1, 1, 2], [-1] * 5]
)
def test_bundles_with_a_false_header(header: list[int]) -> None:
    with pytest.raises(FederationError, match="malformed"):
        unpack(np.array([*header, 7, 8], dtype=np.int64).tobytes(), 2)


def test_numbers_outside_of_the_field_are_refused() -> None:
    bad = Bundle(0, 0, np.array([7]), np.array([[PRIME]], dtype=np.uint64))
    with pytest.raises(FederationError, match="no field element"):
        unpack(pack([bad]), 2)


def test_letters_from_nobody_are_refused() -> None:
    net = Net()
    letter = torch.zeros(40, dtype=torch.uint8)
    for sender in ("9", "x", "-1", "0"):
        with pytest.raises(FederationError, match=r"from nobody|does not open"):
            net.silos[1].open({sender: letter}, "pass 1")


def test_shares_for_a_node_that_does_not_wait() -> None:
    net = Net()
    hearing = net.silos[0].hearings["forward"]
    with pytest.raises(FederationError, match="does not wait"):
        hearing.places(np.array([5]))


# Noise


def test_noise_on_messages_that_need_it() -> None:
    rows = np.array([0, 1, 2, 0])
    silos, remote = np.zeros(4, dtype=np.int64), np.array([10, 10, 11, 12])
    noised = np.array([False, False, True, True])
    route = Route(Edges(rows, silos, remote), noised, 3, together=True)
    values = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.1, 0.0]])
    accountant = GaussianAccountant(3)
    none = route.messages(values, GaussianMessages(1.0, 0.0, accountant, NO_NOISE))
    expected = torch.tensor([[4.0, 5.0], [0.1, 0.0], [0.6, 0.8]])  # clipped where noised
    torch.testing.assert_close(none, expected)
    noisy = GaussianMessages(2.0, 1.5, accountant, SecretNoise())
    drawn = torch.stack([route.messages(values, noisy) for _ in range(4000)])
    assert torch.equal(drawn[:, 0], expected[0].expand(4000, 2))
    assert drawn[:, 1:].std(0).flatten().tolist() == pytest.approx([3.0] * 4, rel=0.1)
    assert accountant.uses == 4001  # nodes 0 and 2 speak in a message with noise each time
    with pytest.raises(FederationError, match="handed no source"):
        route.messages(values, GaussianMessages(2.0, 1.5, accountant, NO_NOISE))
