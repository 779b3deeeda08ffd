"""HiFGL: equal to training on the whole graph, and what happens where it must not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmend.config import make
from fedmend.data.folders import read_silos, write_partition
from fedmend.data.partition import Partition, split
from fedmend.engines import wire
from fedmend.engines.inprocess import Fault, InProcess
from fedmend.errors import FederationError, SettingsError, TooFewSilosError
from fedmend.federation import Schema, SiloLost
from fedmend.graph import Graph
from fedmend.methods import hifgl
from fedmend.methods.hifgl import HiFGLSettings, Silo
from fedmend.privacy.accountants.gaussian import gaussian_epsilon
from fedmend.privacy.masks import MaskGenerator
from fedmend.runs.train import train
from fedmend.secret.consent import BACKWARD, FORWARD, INPUT, LAST
from fedmend.secret.session import Incoming, Outgoing
from tests.tiny import rebuilt, same_weights, tiny_graph

OPEN: dict[str, Any] = {"min_neighbours": 1, "input_min_neighbours": 1}
FIVE: dict[str, Any] = {"rounds": 5, "hidden": 8, "lr": 0.05}


def without_validation(nodes: int = 60, *, sparse: bool = False) -> Graph:
    """No validation nodes: the last round's weights are the result, whatever happens before."""
    graph = tiny_graph(nodes, sparse=sparse)
    nobody = torch.zeros(nodes, dtype=torch.bool)
    return graph.with_masks(graph.train_mask, nobody, graph.test_mask | graph.val_mask)


@cache
def cut(silos: int, nodes: int = 60, sparse: bool = False) -> Partition:
    return split(without_validation(nodes, sparse=sparse), silos, "random", seed=0)


@cache
def central(backbone: str, nodes: int = 60, **options: Any) -> dict[str, Tensor]:
    settings = {**FIVE, "batch_size": 0, "fan_out": 0, **options}
    result = train("global", cut(2, nodes), backbone=backbone, **settings)
    assert result.weights is not None
    return result.weights


def close(found: Mapping[str, Tensor] | None, expected: Mapping[str, Tensor]) -> None:
    """Within what rounding to float32 and to 2^-28 allows."""
    assert found is not None
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=2e-6, rtol=2e-6)


# The central test


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
@pytest.mark.parametrize("setting", ["silos", "devices"])
@pytest.mark.parametrize("routing", ["relay", "paper"])
@pytest.mark.parametrize(("silos", "threshold"), [(3, 1), (5, 1), (5, 2), (5, 3)])
def test_equals_training_on_the_whole_graph(
    backbone: str, setting: str, routing: str, silos: int, threshold: int
) -> None:
    result = train(
        "hifgl",
        cut(silos),
        backbone=backbone,
        setting=setting,
        routing=routing,
        privacy_threshold=threshold,
        **OPEN,
        **FIVE,
    )
    close(result.weights, central(backbone))


@pytest.mark.parametrize("backbone", ["gcn", "sage"])
@pytest.mark.parametrize("setting", ["silos", "devices"])
def test_one_silo_per_device(backbone: str, setting: str) -> None:
    """Solely cross-device; most of these silos have no training node, some no edge."""
    alone = cut(14, 14)
    assert max(graph.num_nodes for graph in alone.silos.values()) == 1
    result = train("hifgl", alone, backbone=backbone, setting=setting, **OPEN, **FIVE)
    close(result.weights, central(backbone, 14))


@pytest.mark.parametrize("layers", [1, 3, 4])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_any_number_of_layers(layers: int, optimizer: str) -> None:
    for backbone in ("gcn", "sage"):
        options: dict[str, Any] = {"layers": layers, "optimizer": optimizer, "weight_decay": 0.01}
        result = train("hifgl", cut(3), backbone=backbone, **options, **OPEN, **FIVE)
        close(result.weights, central(backbone, **options))


def test_sparse_features_and_wide_layers() -> None:
    partition = cut(3, sparse=True)
    options: dict[str, Any] = {**FIVE, "hidden": 2, "layers": 3}  # no layer narrows at the end
    whole = train("global", partition, backbone="gcn", batch_size=0, fan_out=0, **options)
    result = train("hifgl", partition, **OPEN, **options)
    assert whole.weights is not None
    close(result.weights, whole.weights)


def test_it_would_not_be_equal_without_the_edges_between_silos() -> None:
    result = train("hifgl", cut(3), **{**OPEN, **FIVE, "min_neighbours": 99})
    assert result.weights is not None
    expected = central("gcn")
    assert max(float((result.weights[k] - expected[k]).abs().max()) for k in expected) > 1e-3


def test_one_silo_sends_nothing_secret() -> None:
    result = train("hifgl", cut(1), **OPEN, **FIVE)
    close(result.weights, central("gcn"))
    assert not {entry.kind for entry in result.ledger.entries} & {"shares", "sealed"}


def test_two_silos_need_the_papers_routing() -> None:
    with pytest.raises(SettingsError, match=r"2 silos leave 0: use at least 3 .*routing=paper"):
        train("hifgl", cut(2), **FIVE)
    close(train("hifgl", cut(2), routing="paper", **OPEN, **FIVE).weights, central("gcn"))


# Federated optimisers


@pytest.mark.parametrize("weighting", ["nodes", "equal"])
def test_fedavg_of_plain_steps_is_the_central_step(weighting: str) -> None:
    options: dict[str, Any] = {**FIVE, **OPEN, "optimizer": "sgd"}
    result = train("hifgl", cut(3), training="fedavg", weighting=weighting, **options)
    close(result.weights, central("gcn", optimizer="sgd"))


def test_averaging_local_adam_steps_is_not_central_training() -> None:
    result = train("hifgl", cut(3), training="fedavg", **OPEN, **FIVE)
    assert result.weights is not None
    expected = central("gcn")
    assert max(float((result.weights[k] - expected[k]).abs().max()) for k in expected) > 1e-2


def test_fedprox_without_a_pull_is_fedavg_and_with_one_stays_nearer() -> None:
    options: dict[str, Any] = {**FIVE, "local_epochs": 3, "rounds": 1}
    start = train("hifgl", cut(3), training="fedavg", **{**options, "lr": 0.0}).weights
    plain = train("hifgl", cut(3), training="fedavg", **options).weights
    none = train("hifgl", cut(3), training="fedprox", mu=0.0, **options).weights
    held = train("hifgl", cut(3), training="fedprox", mu=5.0, optimizer="sgd", **options).weights
    loose = train("hifgl", cut(3), training="fedavg", optimizer="sgd", **options).weights
    assert same_weights(plain, none)
    assert start is not None
    assert held is not None
    assert loose is not None

    def moved(weights: Mapping[str, Tensor]) -> float:
        return sum(float((weights[k] - start[k]).norm()) for k in start)

    assert moved(held) < moved(loose)


def test_fedper_keeps_its_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    encode = wire.encode

    def recording(message: Any) -> wire.Encoded:
        sent.extend(getattr(message, "weights", ()))
        return encode(message)

    monkeypatch.setattr(wire, "encode", recording)
    result = train("hifgl", cut(3), training="fedper", evaluation="cross-edges", **FIVE)
    assert {key.split(".")[1] for key in sent} == {"0"}
    assert result.weights is None
    assert set(result.own) == {"silo-0", "silo-1", "silo-2"}
    last = [result.own[name]["layers.1.weight"] for name in sorted(result.own)]
    assert not torch.equal(last[0], last[1])
    with pytest.raises(SettingsError, match="leaves nothing to share"):
        train("hifgl", cut(3), training="fedper", personal_layers=2, **FIVE)


# By hand, to look at and to disturb what passes

Disturb = Callable[[str, str, Any], Any]


class Observed(InProcess[Silo]):
    """Keeps what passes; `disturb(step, silo, reply)` may change a reply or lose it (None)."""

    def __init__(self, partition: Partition, disturb: Disturb | None = None, **settings: Any):
        self.settings = make(HiFGLSettings, {**FIVE, **settings})
        built = [
            Silo(name, graph, self.settings, 0, border=partition.borders[name])
            for name, graph in sorted(partition.silos.items())
        ]
        one = next(iter(partition.silos.values()))
        super().__init__(built, Schema(one.num_features, one.label_names), 0, workers=1)
        self.disturb = disturb
        self.asked: list[tuple[str, str, Any, Any]] = []

    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        answers = dict(super()._exchange(step, requests))
        for name, answer in answers.items():
            if isinstance(answer, SiloLost):
                continue
            reply = wire.decode(answer)
            if self.disturb is not None:
                reply = self.disturb(step, name, reply)
                answers[name] = (
                    SiloLost(name, "it was cut off") if reply is None else wire.encode(reply).data
                )
            self.asked.append((step, name, wire.decode(requests[name]), reply))
        return answers

    def run(self) -> dict[str, Tensor]:
        with self:
            weights = hifgl.server(self, self.settings)
        assert weights is not None
        return weights

    def replies(self, kind: type[Any]) -> list[tuple[str, str, Any]]:
        return [(step, name, reply) for step, name, _, reply in self.asked if type(reply) is kind]


def test_nothing_is_sent_if_there_are_too_few_relays() -> None:
    observed = Observed(cut(3), privacy_threshold=2)
    with pytest.raises(SettingsError, match="privacy_threshold=2 needs 3 relays"):
        observed.run()
    assert not observed.asked
    with pytest.raises(SettingsError, match="check_shares=2 needs 4 relays"):
        Observed(cut(4), check_shares=2).run()


def test_masks_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    original = MaskGenerator.elements

    def recording(self: MaskGenerator, *shape: int) -> Any:
        drawn.append(original(self, *shape))
        return drawn[-1]

    monkeypatch.setattr(MaskGenerator, "elements", recording)
    train("hifgl", cut(3), **FIVE)
    train("hifgl", cut(3), **FIVE)
    everything = np.concatenate([each.reshape(-1) for each in drawn])
    assert len(everything) > 5000
    assert len(np.unique(everything)) == len(everything)


def test_what_the_server_gets_changes_while_what_is_learnt_does_not() -> None:
    one, other = Observed(cut(3)), Observed(cut(3))
    assert same_weights(one.run(), other.run())
    for (_, _, a), (_, _, b) in zip(one.replies(Outgoing), other.replies(Outgoing), strict=True):
        assert a.pseudonyms.equal(b.pseudonyms)
        assert not (a.shares == b.shares).any()


@pytest.mark.parametrize("step", ["greet", "speak", "relay", "turn", "give_gradients", "wish"])
def test_a_silo_lost_in_a_round_stops_it_and_it_is_repeated_without(step: str) -> None:
    partition = cut(5)
    gone: list[str] = []

    def cut_off(now: str, name: str, reply: Any) -> Any:
        trained = sum(1 for asked in observed.asked if asked[0] == "give_gradients")
        if name == "silo-3" and (gone or (now == step and (step == "wish" or trained >= 5))):
            gone.append(now)
            return None
        return reply

    observed = Observed(partition, cut_off, **OPEN)
    weights = observed.run()
    assert gone
    assert all(bool(torch.isfinite(each).all()) for each in weights.values())
    # From then on silo-3 gets nothing, relays nothing, and nobody speaks to it; every round asks
    # whether it is back, but not before there is a federation it could come back to.
    assert set(gone[1:]) == (set() if step == "wish" else {"greet"})
    later = [asked for asked in observed.asked if asked[0] == "speak"][-4:]
    assert [asked[1] for asked in later] == ["silo-0", "silo-1", "silo-2", "silo-4"]
    for _, _, keys, outgoing in later:
        assert keys.members.tolist() == [0, 1, 2, 4]
        assert outgoing.rows.tolist()[3] == 0
        assert "3" not in outgoing.sealed


@pytest.mark.parametrize("step", ["settle", "speak_features", "hear_features", "relay"])
def test_a_silo_lost_in_preparation_is_as_good_as_never_there(step: str) -> None:
    gone: list[str] = []

    def cut_off(now: str, name: str, reply: Any) -> Any:
        if name == "silo-3" and (gone or now == step):
            gone.append(now)
            return None
        return reply

    found = Observed(cut(5), cut_off, **OPEN).run()
    never = train("hifgl", cut(5), faults=[Fault("silo-3")], **OPEN, **FIVE)
    assert gone
    assert never.weights is not None
    close(found, never.weights)


def test_a_round_that_is_repeated_has_fresh_masks() -> None:
    turns = 0

    def cut_off(now: str, name: str, reply: Any) -> Any:
        nonlocal turns
        turns += now == "turn" and name == "silo-4"
        return None if now == "turn" and name == "silo-4" and turns == 2 else reply

    observed = Observed(cut(5), cut_off, **OPEN)
    observed.run()
    speaking = [a for a in observed.asked if a[0] == "speak" and a[1] == "silo-0"]
    assert len(speaking) == 7  # five rounds, the repeated one, the last validation
    seen = np.concatenate([asked[3].shares.numpy().reshape(-1) for asked in speaking])
    assert len(np.unique(seen)) == len(seen)
    members = [asked[2].members.tolist() for asked in speaking]
    assert members[1:4] == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4]]  # and it comes back


def test_a_minimum_is_kept_when_silos_are_lost() -> None:
    """Two neighbours in two silos, one of which is gone, are one neighbour: not to be heard."""
    observed = Observed(cut(5), min_neighbours=2)
    observed._faults = (Fault("silo-3", first=3),)
    observed.run()
    for silo in observed.silos.values():
        if silo.name == "silo-3":
            continue
        agreement = silo.devices.agreement
        assert agreement.members == (0, 1, 2, 4)
        heard = agreement.heard(FORWARD)
        assert not ((heard > 0) & (heard < 2)).any()


def test_too_few_relays_after_a_loss_is_a_clear_end() -> None:
    with pytest.raises(TooFewSilosError, match=r"1 silos were lost, and now .* use at least 3"):
        train("hifgl", cut(3), faults=[Fault("silo-1", first=2, phase="training")], **FIVE)


def test_a_missing_share_is_never_decoded() -> None:
    def drop(step: str, name: str, reply: Any) -> Any:
        if step == "turn" and name == "silo-1":
            reply.sealed.pop(next(iter(reply.sealed)))
        return reply

    with pytest.raises(FederationError, match=r"silo-\d: a message was lost: shares for"):
        Observed(cut(5), drop, **OPEN).run()


def test_a_wrong_share_is_detected_with_one_more_than_needed() -> None:
    def spoil(step: str, name: str, reply: Any) -> Any:
        if step == "turn" and name == "silo-1":
            reply.shares[0, 0] ^= 1
        return reply

    with pytest.raises(FederationError, match="a share is wrong"):
        Observed(cut(5), spoil, check_shares=1, **OPEN).run()
    weights = Observed(cut(5), check_shares=1, **OPEN).run()
    close(weights, central("gcn"))


def test_overflowing_features_are_an_error() -> None:
    graph = without_validation()
    x = graph.x.clone()
    x[7, 2] = 3e9
    observed = Observed(split(rebuilt(graph, x=x), 3, "random", seed=0), **OPEN)
    with pytest.raises(FederationError, match=r"silo-\d has a value of size .*fraction_bits"):
        observed.run()
    loudest = [step for step, *_ in observed.asked if step == "speak_features"]
    assert len(loudest) < 3  # the silo with the value sent nothing


# Who may hear


def chain() -> Partition:
    """Nodes 0..8 in three silos: 0 hears 1 other, 3 hears 2, 6 hears 3; 8 has no neighbour."""
    edges = np.array([[0, 3], [3, 6], [6, 1], [6, 4], [1, 2], [4, 7]]).T
    x = torch.arange(18.0).reshape(9, 2)
    train = torch.tensor([True, True, False, True, True, False, False, True, False])
    graph = Graph(x, edges, torch.arange(9) % 2, train_mask=train, test_mask=~train)
    assignment = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    silos = {f"s{k}": graph.subgraph(torch.arange(9)[assignment == k]) for k in range(3)}
    return Partition(silos, "by hand", None, graph, assignment)


@pytest.mark.parametrize(("least", "input_least"), [(1, 1), (2, 3), (3, 2), (9, 9)])
def test_a_node_below_the_minimum_hears_nobody(least: int, input_least: int) -> None:
    partition = chain()
    assert partition.whole is not None
    assert partition.assignment is not None
    observed = Observed(partition, min_neighbours=least, input_min_neighbours=input_least)
    observed.run()
    own = partition.assignment
    edges = partition.whole.edge_index.numpy()
    crossing = edges[:, own[edges[0]] != own[edges[1]]]
    cross = [crossing[1][crossing[0] == node].tolist() for node in range(9)]
    hears = {INPUT: [c if len(c) >= input_least else [] for c in cross]}
    hears[FORWARD] = [c if len(c) >= least else [] for c in cross]
    # Back along the edges it spoke on, if they are enough; last: if enough of them have a loss.
    back = [[v for v in range(9) if node in hears[FORWARD][v]] for node in range(9)]
    hears[BACKWARD] = [c if len(c) >= least else [] for c in back]
    trains = partition.whole.train_mask.tolist()
    losses = [sum(trains[v] for v in c) for c in hears[BACKWARD]]
    hears[LAST] = [
        c if count >= least or least == 1 else []
        for c, count in zip(hears[BACKWARD], losses, strict=True)
    ]
    for stage, expected in hears.items():
        found = torch.cat(
            [observed.silos[name].devices.agreement.heard(stage) for name in partition.names]
        )
        assert found.tolist() == [len(each) for each in expected], stage
    summed = torch.cat([observed.silos[n].devices.input_sums for n in partition.names])
    scale = (torch.bincount(torch.from_numpy(edges[0]), minlength=9) + 1.0).rsqrt()
    for node, heard in enumerate(hears[INPUT]):
        expected_sum = (partition.whole.x * scale[:, None])[heard].sum(0)
        torch.testing.assert_close(summed[node], expected_sum, atol=1e-6, rtol=1e-6)


def test_the_record_counts_nodes_below_the_minimum() -> None:
    partition = cut(5)
    history = train("hifgl", partition, **FIVE).history["training"][0]
    counts = np.concatenate(
        [
            np.bincount(partition.borders[n].rows, minlength=partition.silos[n].num_nodes)
            for n in partition.names
        ]
    )
    assert history["below_minimum_forward"] == (counts == 1).sum() > 0
    assert history["below_minimum_input"] == ((counts > 0) & (counts < 3)).sum()


def test_noise_below_the_minimum_is_accounted_for() -> None:
    options: dict[str, Any] = {**FIVE, "below_minimum": "noise", "noise_multiplier": 30.0}
    result = train("hifgl", cut(3), **options)
    (account,) = result.record.privacy
    assert account.epsilon == gaussian_epsilon(30.0, account.uses, 1e-5)
    assert account.uses >= 11  # at least one in each forward pass, each way back and the input
    silent = train("hifgl", cut(3), **{**options, "noise_multiplier": 0.0, "clip": 1e6})
    open_to_all = train("hifgl", cut(3), **OPEN, **FIVE)
    assert open_to_all.weights is not None
    close(silent.weights, open_to_all.weights)  # everybody is heard, nothing is clipped
    assert silent.record.privacy[0].epsilon is None
    assert silent.record.privacy[0].uses == account.uses
    assert train("hifgl", cut(3), **FIVE).record.privacy == ()  # such nodes hear nothing


# Who sees what


def kinds_received(observed: Observed) -> dict[str, set[str]]:
    """Which kinds of content each role ever got in clear (what is sealed is for somebody else)."""
    received: dict[str, set[str]] = {"server": set(), "silo": set(), "device": set()}
    for entry in observed.ledger.entries:
        received["server" if entry.direction == "up" else "silo"].add(entry.kind)
    for silo in observed.silos.values():
        inside = silo.inside()
        for entry in inside.entries if inside else []:
            received["silo" if entry.direction == "up" else "device"].add(entry.kind)
    return {role: kinds - {"framing", "sealed", "control"} for role, kinds in received.items()}


@pytest.mark.parametrize("routing", ["relay", "paper"])
def test_data_visibility_of_section_4_1_4(routing: str) -> None:
    """The server: gradients and shares. A silo: weights, shares, its devices' gradients and sums.

    Nobody ever gets features, labels, edges or a single embedding; a device gets weights and the
    sum over its own neighbours.
    """
    observed = Observed(cut(4), setting="devices", routing=routing)
    observed.run()
    received = kinds_received(observed)
    relayed = {"shares", "pseudonyms"} if routing == "relay" else set()
    assert received == {
        "server": {"gradients", "metrics", "counts"} | relayed,
        "silo": {"weights", "gradients", "metrics", "counts", "shares"} | relayed,
        "device": {"weights", "embeddings"},
    }
    for silo in observed.silos.values():
        assert not hasattr(silo, "graph")


def test_under_setting_silos_there_is_no_device_level() -> None:
    observed = Observed(cut(4))
    observed.run()
    assert all(silo.inside() is None for silo in observed.silos.values())
    assert not kinds_received(observed)["device"]


def test_bytes_between_silo_and_devices_are_in_the_record() -> None:
    record = train("hifgl", cut(3), setting="devices", **FIVE).record
    assert record.bytes.between_silo_and_devices is not None
    inside = record.bytes.between_silo_and_devices["silo-0"]
    weights = sum(each.numel() for each in central("gcn").values()) * 4
    nodes = cut(3).silos["silo-0"].num_nodes
    assert inside["up hifgl.DeviceGradients gradients"] == 5 * nodes * weights
    assert inside["down hifgl.Model weights"] % weights == 0
    assert train("hifgl", cut(3), **FIVE).record.bytes.between_silo_and_devices is None


# Evaluation and files


def test_cross_edges_evaluation_is_the_federations_own_prediction() -> None:
    graph = tiny_graph(90)
    partition = split(graph, 5, "random", seed=1)
    everything = train("hifgl", partition, evaluation="cross-edges", **OPEN, **FIVE)
    on_whole = train("hifgl", partition, evaluation="global-graph", **OPEN, **FIVE)
    assert everything.accuracy == on_whole.accuracy  # all edges in use: the same predictions
    assert everything.scores is not None
    assert partition.whole is not None
    assert everything.scores.test_nodes == int(partition.whole.test_mask.sum())
    shared = train("fedavg", partition, evaluation="cross-edges", rounds=2)
    assert shared.accuracy == train("fedavg", partition, rounds=2).accuracy
    assert set(shared.scores.by_silo if shared.scores else ()) == set(partition.names)


def test_silo_folders_with_borders_and_nothing_else(tmp_path: Path) -> None:
    partition = split(tiny_graph(90), 4, "random", seed=1)
    write_partition(partition, tmp_path)
    for file in (tmp_path / "evaluation").iterdir():
        file.unlink()
    silos = read_silos(tmp_path)
    assert silos.whole is None
    found = train("hifgl", silos, evaluation="cross-edges", **FIVE)
    expected = train("hifgl", partition, evaluation="cross-edges", **FIVE)
    assert same_weights(found.weights, expected.weights)
    assert found.scores == expected.scores


def test_missing_incoming_is_refused() -> None:
    observed = Observed(cut(3))
    observed.run()
    silo = observed.silos["silo-0"]
    none = torch.empty(0, 0, dtype=torch.int64)
    empty = none.reshape(-1)
    lost = Incoming("pass 9", none, empty, empty, {}, torch.empty(0, 0))
    with pytest.raises(FederationError, match="a message was lost"):
        silo.hear_features(lost)
