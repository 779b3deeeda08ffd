"""HiFGL: no edge between silos is lost, and none is seen (Guo et al., KDD 2024).

"HiFGL: A Hierarchical Framework for Cross-silo Cross-device Federated Graph Learning". Every node
is a device that knows its own features, label and neighbours, in other silos too. A layer needs
sums over neighbours; those between silos (setting "silos"), or all of them (setting "devices"),
come by Secret Message Passing: `secret/` has the protocol (participant and passes: who is there,
who hears whom, and passes over the network), this file what it is used for. docs/methods/hifgl.md
says who learns what.

What is implemented: the hierarchy of section 4.1, neighbour-agnostic aggregation (4.2.1: the
source scales, then the target), Lagrange shares (4.2.2), GCN and GraphSAGE, FedAvg, FedProx and
FedPer on top (4.3), or one optimiser at the server that makes training equal to training on the
whole graph. One silo per device is the purely cross-device case, one device setting the other.

Deviations, and why:
- Masks are fresh for every message; fixed ones (the paper's z) cancel between two messages.
- Shares go to different relays which pass on sums (`routing="relay"`). In the paper all shares of a
  message go to one device, which knows the encoding points and can decode (`routing="paper"`).
- The field has 2^61 - 1 elements, not 11: numbers must fit into it.
- The backward pass, on which the paper is silent, is the transposed message passing through the
  same protocol.
- Sums of raw features are asked for once and kept; where a layer narrows, its weights are applied
  before messages are sent.
- A node that would hear fewer than `min_neighbours` hidden neighbours hears none of them, or with
  noise: their sum would give them away.
- GCN counts the node itself (degree + 1), as GCN does; the paper's Eq. (2) leaves it out.
- A device's gradient reaches its silo in the paper one by one; here only their sum is ever formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Unpack

import torch
from torch import Tensor, nn

from fedmend import config
from fedmend.data.border import Border
from fedmend.errors import FederationError
from fedmend.federation import Federation, Handed, Nothing, message
from fedmend.graph import Graph
from fedmend.models.backbones import build
from fedmend.privacy.account import Account
from fedmend.privacy.accountants.gaussian import gaussian_account, gaussian_epsilon
from fedmend.privacy.ledger import Kind
from fedmend.secret.participant import Greeting, Participant, SharedModel
from fedmend.secret.passes import Passes, SecretMemory, check_relays
from fedmend.secret.session import Incoming
from fedmend.secret.settings import SecretSettings
from fedmend.training.aggregation import check_weights, weighted_mean
from fedmend.training.optimizer import Optimizer
from fedmend.training.personal import PersonalSettings, Shared, all_but_last, chosen
from fedmend.training.proximal import ProximalSettings, Pull
from fedmend.training.rounds import Round, importances, train_rounds, validated
from fedmend.training.selection import OwnBest
from fedmend.training.settings import (
    ModelSettings,
    PatienceSettings,
    QuorumSettings,
    StepSettings,
    WeightingSettings,
)
from fedmend.training.state import Part, take_over

TRAININGS = {
    "gradients": "the server adds up gradients and holds the optimiser: equal to central training",
    "fedavg": "silos step by themselves, the server averages",
    "fedprox": "fedavg with a pull (mu) towards the shared weights",
    "fedper": "fedavg of all but the last personal_layers",
}


_BY_SILOS = {"training": ("fedavg", "fedprox", "fedper")}


@dataclass(frozen=True, kw_only=True)
class HiFGLSettings(
    ModelSettings,
    StepSettings,
    PatienceSettings,
    QuorumSettings,
    WeightingSettings,
    ProximalSettings,
    PersonalSettings,
    SecretSettings,
):
    """How the network trains, and what is hidden from whom; every step takes all nodes."""

    backbone: str = config.setting("gcn", "the network: gcn or sage", choices=("gcn", "sage"))
    hidden: int = config.setting(64, "width of the hidden layers", low=1, high=10**6)
    lr: float = config.setting(0.01, "step size", low=0.0)
    training: str = config.setting(
        "gradients", "how weights are learnt: " + ", ".join(TRAININGS), choices=TRAININGS
    )
    local_epochs: int = config.setting(
        1, "steps a silo makes per round, a pass over the network each", low=1, only=_BY_SILOS
    )
    keep_optimizer: bool = config.setting(
        True, "a silo's optimiser remembers across rounds", only=_BY_SILOS
    )

    @property
    def shared(self) -> Shared:
        """Which weights all silos share."""
        if self.training != "fedper":
            return lambda _: True
        return all_but_last(self.layers, self.personal_layers)


@message("hifgl.Gradients")
class Gradients:
    """A silo's gradients of the summed loss (level: silo to server), and how its nodes did."""

    gradients: Annotated[dict[str, Tensor], Kind.GRADIENTS]
    loss: Annotated[float, Kind.METRICS]
    training_nodes: Annotated[int, Kind.COUNTS]
    validation: Annotated[Tensor, Kind.METRICS]


@message("hifgl.Update")
class Update:
    """A silo's weights after its own step (level: silo to server), and how its nodes did."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    loss: Annotated[float, Kind.METRICS]
    training_nodes: Annotated[int, Kind.COUNTS]
    validation: Annotated[Tensor, Kind.METRICS]


@message("hifgl.Validation")
class Validation:
    """How a silo's validation nodes do (level: silo to server)."""

    validation: Annotated[Tensor, Kind.METRICS]


class Silo(Participant):
    """One silo: its model, its keys, and its devices, which alone hold data."""

    settings: HiFGLSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: HiFGLSettings,
        seed: int,
        *,
        border: Border,
        **handed: Unpack[Handed],
    ) -> None:
        shared = settings.shared
        super().__init__(name, graph, settings, seed, border=border, shared=shared, **handed)
        self._optimizer = self._new_optimizer()
        self._received = SharedModel({}, 0)
        self.best = OwnBest(settings.metric)

    def _new_optimizer(self) -> Optimizer:
        s = self.settings
        return Optimizer(s.optimizer, self._network.model.parameters(), s.lr, s.weight_decay)

    def greet(self, shared: SharedModel) -> Greeting:
        self._received = shared
        if not self.settings.keep_optimizer:
            self._optimizer = self._new_optimizer()
        return super().greet(shared)

    def give_gradients(self, incoming: Incoming) -> Gradients:
        """The end of a pass: this silo's gradients of the summed loss."""
        gradients, loss, validation = self.end_of_pass(incoming)
        return Gradients(gradients, loss, len(self.devices.train_nodes), validation)

    def take_step(self, incoming: Incoming) -> Update:
        """The end of a pass: a step of this silo's own optimiser."""
        gradients, loss, validation = self.end_of_pass(incoming)
        training = len(self.devices.train_nodes)
        s, model = self.settings, self._network.model
        # So that the server's average of plain steps is a step along the whole gradient.
        times = self._silos / self._received.training_nodes
        if s.weighting == "nodes":
            times = 1.0 / max(training, 1)
        for key, parameter in model.named_parameters():
            parameter.grad = gradients[key] * times
        if s.training == "fedprox":
            Pull(self._received.weights, s.mu)(model)
        self._offer(validation)
        self._optimizer.step()
        return Update(chosen(self._weights(), s.shared), loss, training, validation)

    def validate(self, incoming: Incoming) -> Validation:
        """The end of a pass without learning: how validation nodes do."""
        validation = self.judge(incoming)
        self._offer(validation)
        return Validation(validation)

    def _offer(self, validation: Tensor) -> None:
        """With personal layers: consider the weights that these validation nodes were judged by."""
        if self.settings.training == "fedper":
            self.best.offer(self._weights(), validation)

    def recall(self, _: Nothing) -> Nothing:
        """Go back to the model that did best on this silo's own validation nodes."""
        take_over(dict(self._network.model.named_parameters()), self.best.weights)
        return Nothing()

    def own_weights(self) -> dict[str, Tensor] | None:
        return self.best.weights if self.settings.training == "fedper" else None

    def parts(self) -> Mapping[str, Part]:
        """The server has the weights where it makes the steps."""
        parts = dict(super().parts())
        if self.settings.training != "gradients":
            parts |= {"weights": self._network.model, "optimizer": self._optimizer}
        if self.settings.training == "fedper":
            parts["best"] = self.best
        return parts


# The server


@dataclass
class Memory(SecretMemory):
    """The server's memory between rounds; moments: its optimiser's."""

    moments: dict[str, Tensor] = field(default_factory=dict)


def server(silos: Federation[Silo], settings: HiFGLSettings) -> dict[str, Tensor] | None:
    """HiFGL; gives the weights that did best in validation (none with a model per silo)."""
    _check(silos, settings)
    state = Memory(initial_weights(silos, settings), members=list(silos.names))
    passes = Passes(silos, settings, state)
    train = by_gradients if settings.training == "gradients" else by_averaging
    for _ in silos.rounds(1, state, "preparation"):
        passes.repeat_until_complete(passes.prepare)

    def one_round(number: int) -> Round:
        if number == 1:
            silos.note(0, **{f"below_minimum_{k}": v for k, v in state.below_minimum.items()})
        return passes.repeat_until_complete(lambda: train(passes, settings, state))

    def validate(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return passes.repeat_until_complete(lambda: judged(passes, weights))

    train_rounds(silos, settings, state, one_round, lambda: validate(state.weights))
    if settings.training == "fedper":
        silos.ask(Silo.recall, Nothing(), to=state.agreed)
        validate({})
    elif state.best_round != state.done:  # nodes' predictions are those of the kept weights
        validate(state.best)
    if settings.training == "fedper":
        return None
    silos.note(state.best_round, selected=1.0)
    return state.best


def judged(passes: Passes[Silo], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Validation nodes classified right with these weights, and how many there are."""
    passes.gather(weights)
    replies = passes.across(Silo.validate, training=False)
    return validated(replies)


def judged_apart(
    passes: Passes[Silo], s: HiFGLSettings, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    """With dropout, as the pass that trains is then no test of weights; else only who is there."""
    if s.dropout:
        return judged(passes, weights)
    passes.gather(weights)
    return {}


def by_gradients(passes: Passes[Silo], s: HiFGLSettings, state: Memory) -> Round:
    """One step of the server's optimiser along the gradient of the whole federation's loss."""
    before = state.weights
    validation = judged_apart(passes, s, before)
    replies = passes.across(Silo.give_gradients, training=True)
    nodes = sum(reply.training_nodes for reply in replies.values())
    if not nodes:
        raise FederationError("no silo that is there has training nodes")
    # Sorted: a checkpoint gives names back in another order than the model has.
    parameters = {key: nn.Parameter(before[key].clone()) for key in sorted(before)}
    for name, reply in replies.items():
        check_weights(name, reply.gradients, like=before)
    for key, parameter in parameters.items():
        total = torch.zeros_like(parameter)
        for reply in replies.values():  # sorted by name: sums of floats depend on the order
            total += reply.gradients[key]
        parameter.grad = total / nodes
    optimizer = Optimizer(s.optimizer, parameters.values(), s.lr, s.weight_decay)
    if state.moments:
        optimizer.restore(state.moments)
    optimizer.step()
    state.moments = optimizer.state()
    weights = {key: each.detach() for key, each in parameters.items()}
    loss = sum(reply.loss for reply in replies.values()) / nodes
    return Round(weights, validation or validated(replies), loss)


def by_averaging(passes: Passes[Silo], s: HiFGLSettings, state: Memory) -> Round:
    """Every silo steps by itself, `local_epochs` times; the server averages."""
    before = state.weights
    validation = judged_apart(passes, s, before)
    replies = first = passes.across(Silo.take_step, training=True)
    for _ in range(s.local_epochs - 1):
        replies = passes.across(Silo.take_step, training=True)
    received = {name: reply.weights for name, reply in replies.items()}
    weights = weighted_mean(received, importances(replies, s.weighting), like=before)
    nodes = sum(reply.training_nodes for reply in first.values())
    loss = sum(reply.loss for reply in first.values()) / nodes
    return Round(weights, validation or validated(first), loss)


def initial_weights(silos: Federation[Silo], settings: HiFGLSettings) -> dict[str, Tensor]:
    """The weights training starts from: those of every method with the same backbone."""
    model = build(settings.shape(silos.schema), silos.stream("initial weights"))
    weights = {key: value.detach() for key, value in model.named_parameters()}
    return chosen(weights, settings.shared)


def _check(silos: Federation[Silo], settings: HiFGLSettings) -> None:
    """Refuse what cannot work, before anything is sent."""
    check_relays(len(silos.names), settings, lost=0)
    if settings.with_noise:
        gaussian_epsilon(1.0, 1, settings.delta)  # its package must be there, now and not later


def privacy(settings: HiFGLSettings, facts: Mapping[str, Mapping[str, float]]) -> list[Account]:
    """What the noise on messages to nodes below the minimum is worth."""
    if not settings.with_noise:
        return []  # such nodes hear nothing
    return [
        gaussian_account(
            "messages to nodes below the minimum",
            "a node's own messages",
            {settings.noise_multiplier: max(int(each["uses"]) for each in facts.values())},
            settings.delta,
            {"clip": settings.clip},
        )
    ]
