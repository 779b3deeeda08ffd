"""A silo's side of sums under secret sharing: consent on who hears whom, and passes.

The server's side is `secret/passes.py`; what a pass is for, training or testing, is the method's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.border import Border
from fedmend.errors import FederationError
from fedmend.federation import Nothing, Schema, SiloBase, content_sizes, message, wire_name
from fedmend.graph import Graph
from fedmend.models.predictor import Predictor, hash_of, predictor
from fedmend.privacy.ledger import Direction, Kind, Ledger
from fedmend.privacy.noise import NO_NOISE, NoiseSource
from fedmend.secret.consent import BACKWARD, FORWARD, INPUT, LAST
from fedmend.secret.devices import (
    CodedSums,
    DecodedSums,
    DeviceGradients,
    DeviceReport,
    Devices,
    Model,
)
from fedmend.secret.session import (
    NO_NUMBERS,
    NOTHING_IN_CLEAR,
    Incoming,
    Keys,
    Letters,
    Outgoing,
)
from fedmend.training.personal import Shared
from fedmend.training.state import Part, take_over

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]


@message("hifgl.Shared")
class SharedModel:
    """The shared weights (level: server to silo), and over how many training nodes they learn."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    training_nodes: Annotated[int, Kind.COUNTS]


@message("hifgl.Greeting")
class Greeting:
    """A silo says it is there (level: silo to server)."""

    public_key: Annotated[Tensor, Kind.CONTROL]
    training_nodes: Annotated[int, Kind.COUNTS]
    most_neighbours: Annotated[int, Kind.COUNTS]


@message("hifgl.Agreed")
class Agreed:
    """Who hears whom is settled (level: silo to server): how much is sent and left out."""

    messages: Annotated[int, Kind.COUNTS]
    below_minimum: Annotated[dict[str, float], Kind.COUNTS]


@message("hifgl.Columns")
class Columns:
    """Which columns of the features the next input pass is about (level: server to silo)."""

    label: Annotated[str, Kind.CONTROL]
    first: Annotated[int, Kind.CONTROL]
    last: Annotated[int, Kind.CONTROL]


class Participant(SiloBase):
    """One silo: its model, its keys, and its devices, which alone hold data.

    Under setting "devices" everything that passes between the two is a message, counted in
    `inside`; under "silos" the silo owns its nodes' data and there is no such boundary.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: Any,
        seed: int,
        *,
        border: Border,
        shared: Shared,
        noise: NoiseSource = NO_NOISE,
    ) -> None:
        # No graph of its own: not calling SiloBase's, which would keep one.
        self.name, self.settings, self.seed, self.noise = name, settings, seed, noise
        self._ids, self._of_graph = graph.node_ids, hash_of(graph)
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        self.devices = Devices(name, graph, border, shape, settings, shared, seed, noise)
        self._messages = self.devices.messages
        self._agreement = self.devices.agreement
        self._network = self.devices.network
        self._ledger = Ledger() if settings.setting == "devices" else None
        self._label = ""
        self._silos = 1
        self._judged = (0.0, torch.zeros(0))
        self._to_itself = b""

    # Greeting, agreement and the input layer

    def greet(self, shared: SharedModel) -> Greeting:
        """Take over the shared weights and say who takes part."""
        own = dict(self._network.model.named_parameters())
        take_over({key: own[key] for key in shared.weights if key in own}, shared.weights)
        self._inside("down", Model(self._weights()))
        return Greeting(
            self._messages.public_key,
            len(self.devices.train_nodes),
            self.devices.most_neighbours if self._ledger is not None else 0,
        )

    def wish(self, keys: Keys) -> Letters:
        """Tell neighbours' silos which nodes want to hear raw features and hidden layers."""
        self._messages.meet(keys)
        self._agreement.begin()
        for stage in (INPUT, FORWARD):
            self._agreement.want(stage, self._agreement.here)
        return self._post((INPUT, FORWARD), f"{keys.label} wishes")

    def take_wishes(self, letters: Letters) -> Letters:
        """Learn who wants to hear; tell who wants to hear gradients on the way back."""
        self._take((INPUT, FORWARD), self._agreement.here, letters)
        self._agreement.want(BACKWARD, self._agreement.speaks[FORWARD])
        return self._post((BACKWARD,), f"{letters.label} back")

    def take_wishes_back(self, letters: Letters) -> Outgoing:
        """Learn who wants to hear gradients; help them count their neighbours with a loss."""
        self._take((BACKWARD,), self._agreement.hears[FORWARD], letters)
        return self._messages.speak(BACKWARD, self.devices.has_loss(), f"{letters.label} count")

    def count_losses(self, incoming: Incoming) -> Letters:
        """Tell who wants to hear the last layer's gradients: who has enough such neighbours."""
        counted = self._decoded(BACKWARD, incoming, 1)[:, 0].round().long().numpy()
        if self.settings.min_neighbours == 1:  # nothing to hide from: hear as in other layers
            counted = np.full(self.devices.count, np.iinfo(np.int64).max)
        self._agreement.want(LAST, self._agreement.hears[BACKWARD], counted)
        return self._post((LAST,), f"{incoming.label} last")

    def settle(self, letters: Letters) -> Agreed:
        """Learn who wants to hear the last layer's gradients; the agreement is complete."""
        self._take((LAST,), self._agreement.speaks[BACKWARD], letters)
        self.devices.settled()
        few = {stage: float(count) for stage, count in self._agreement.few.items()}
        return Agreed(len(self._messages.routes[INPUT].silos), few)

    def _post(self, stages: Sequence[str], label: str) -> Letters:
        """Wishes to the other silos; those to itself stay here."""
        wishes = self._agreement.wishes(stages)
        self._to_itself = wishes.pop(self._messages.number)
        return self._messages.seal(wishes, label)

    def _take(self, stages: Sequence[str], candidates: Mask, letters: Letters) -> None:
        opened = self._messages.open(letters.sealed, letters.label)
        own = {self._messages.number: self._to_itself}
        self._agreement.grant(stages, candidates, {**opened, **own})
        self._agreement.compile(stages)

    def speak_features(self, columns: Columns) -> Outgoing:
        """Send raw features, some columns at a time, to those who want to hear them."""
        rows = self.devices.features(slice(columns.first, columns.last))
        return self._messages.speak(INPUT, rows, columns.label)

    def hear_features(self, incoming: Incoming) -> Nothing:
        """Keep the sums of raw features."""
        self.devices.keep_features(self._decoded(INPUT, incoming, self.devices.columns))
        return Nothing()

    # One pass over the network

    def relay(self, letters: Letters) -> Letters:
        """For others: add up shares that this silo can neither read nor use."""
        return self._messages.relay(letters)

    def speak(self, keys: Keys) -> Outgoing:
        """Begin a pass over the network: the first layer, and what the second one needs."""
        self._messages.meet(keys)
        self._label = keys.label
        self._silos = len(keys.members)
        self.devices.begin(keys.training)
        if self.settings.layers == 1:
            return Outgoing(
                keys.label, NO_NUMBERS[:, None], NO_NUMBERS, NO_NUMBERS, {}, NOTHING_IN_CLEAR
            )
        return self._messages.speak(FORWARD, self._network.say(), f"{self._label} 1")

    def hear(self, incoming: Incoming) -> Outgoing:
        """Compute one layer and send what the next one needs."""
        self.devices.hear(self._decoded(FORWARD, incoming, self._network.width))
        label = f"{self._label} {self._network.depth}"
        return self._messages.speak(FORWARD, self._network.say(), label)

    def turn(self, incoming: Incoming) -> Outgoing:
        """Compute the last layer and the loss, and send its gradients back."""
        self.devices.hear(self._decoded(FORWARD, incoming, self._network.width))
        self._judged = self.devices.judge()
        return self._messages.speak(LAST, self._network.say_gradients(), f"{self._label} back")

    def hear_back(self, incoming: Incoming) -> Outgoing:
        """One layer further back."""
        stage = LAST if self._network.depth == self.settings.layers else BACKWARD
        self._network.hear_gradients(self._decoded(stage, incoming, self._network.width))
        label = f"{self._label} back {self._network.depth}"
        return self._messages.speak(BACKWARD, self._network.say_gradients(), label)

    def end_of_pass(self, incoming: Incoming) -> tuple[dict[str, Tensor], float, Tensor]:
        """Gradients of the silo's summed loss, the loss, and its validation nodes' statistic."""
        if self.settings.layers > 1:
            stage = LAST if self._network.depth == self.settings.layers else BACKWARD
            self._network.hear_gradients(self._decoded(stage, incoming, self._network.width))
        else:
            self._judged = self.devices.judge()
        gradients = self._network.gradients()
        self._inside("up", DeviceGradients(gradients), self.devices.count)
        loss, validation = self._judged
        self._inside("up", DeviceReport(loss, validation), self.devices.count)
        if not math.isfinite(loss):
            raise FederationError(
                f"{self.name}: training diverged, the loss is {loss}; try a smaller lr"
            )
        return gradients, loss, validation

    def judge(self, incoming: Incoming) -> Tensor:
        """The end of a pass without learning: the statistic of validation nodes."""
        if self.settings.layers > 1:
            self.devices.hear(self._decoded(FORWARD, incoming, self._network.width))
        return self.devices.judge()[1]

    def _decoded(self, stage: str, incoming: Incoming, width: int) -> Tensor:
        """What each node hears from hidden neighbours: devices collect, the silo decodes."""
        if self.settings.routing == "clear":
            return self._messages.heard_in_clear(stage, incoming, width)
        coded = self._messages.collect(stage, incoming)
        self._inside("up", CodedSums(torch.from_numpy(coded.view(np.int64))))
        decoded = self._messages.decode(coded)
        self._inside("down", DecodedSums(torch.from_numpy(decoded)))
        return self._messages.placed(stage, decoded, width)

    # What it keeps

    def _weights(self) -> dict[str, Tensor]:
        return {key: each.detach() for key, each in self._network.model.named_parameters()}

    def _inside(self, direction: Direction, sent: Any, devices: int = 1) -> None:
        """Count what passes between the silo and its devices."""
        if self._ledger is not None:
            sizes = {kind: size * devices for kind, size in content_sizes(sent).items()}
            name = wire_name(type(sent))
            self._ledger.count("inside", 0, self.name, direction, name, sizes)

    def inside(self) -> Ledger | None:
        return self._ledger

    def predictor(self, shared: Mapping[str, Tensor] | None) -> Predictor | None:
        shape, own = self._network.model.shape, self.own_weights()
        found = predictor(shape, self._ids, shared, own)
        if found is None or self.devices.probabilities is None:
            return found
        return replace(found, heard=self.devices.probabilities, of_graph=self._of_graph)

    def privacy_facts(self) -> dict[str, float]:
        """In how many messages with noise one of its nodes spoke, at most."""
        uses = float(self.devices.mechanism.accountant.uses)
        return {"uses": uses} if self.settings.with_noise else {}

    def parts(self) -> Mapping[str, Part]:
        return {"devices": self.devices, "noise": self.devices.mechanism}
