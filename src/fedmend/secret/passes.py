"""The server's side of sums under secret sharing: who is there, what they agreed on, and passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedmend.errors import FederationError, SettingsError, TooFewSilosError
from fedmend.federation import Federation, Replies
from fedmend.privacy.sealing import KEY_BYTES
from fedmend.secret.consent import BACKWARD, FORWARD, INPUT, LAST
from fedmend.secret.participant import Agreed, Columns, Participant, SharedModel
from fedmend.secret.session import (
    Incoming,
    Keys,
    Letters,
    Outgoing,
    Router,
    forwarded,
    nothing_incoming,
)
from fedmend.training.selection import Training

M = TypeVar("M")
R = TypeVar("R")
P = TypeVar("P", bound=Participant)

BLOCK = 2**21
"""Numbers of raw features that all silos send at a time: bounds the memory of the input pass."""


@dataclass
class SecretMemory(Training):
    """What the server remembers between rounds, besides the weights.

    members: silos that take part; agreed: those among whom who hears whom is agreed on.
    messages: in an input pass; passes: how many were begun, of any kind.
    """

    members: list[str] = field(default_factory=list)
    agreed: list[str] = field(default_factory=list)
    messages: int = 0
    training_nodes: int = 0
    passes: int = 0
    below_minimum: dict[str, float] = field(default_factory=dict)


class LostInRound(Exception):  # noqa: N818  # no error: the round is repeated without them
    """Silos that stopped answering in the middle of a round."""


class Passes(Generic[P]):
    """Passes over the silos' network, among those who are there and have agreed."""

    def __init__(self, silos: Federation[P], settings: Any, state: SecretMemory) -> None:
        self._silos, self._settings, self._state = silos, settings, state
        self._router = Router(settings.secrecy)
        self._number = {name: number for number, name in enumerate(silos.names)}
        self._absent: set[str] = set()
        self._present: list[str] = []
        self._keys = torch.empty(0, KEY_BYTES, dtype=torch.uint8)
        self._summands = 1

    def repeat_until_complete(self, action: Callable[[], R]) -> R:
        """A round, begun anew without the silos that were lost in the middle of it.

        Masks and messages are new, and so are the relays. What was heard before counts: see
        `secret/consent.py`.
        """
        self._absent = set()
        while True:
            try:
                return action()
            except LostInRound as lost:
                self._absent |= set(lost.args)

    # What a round consists of

    def prepare(self) -> None:
        """Agree on who hears whom, and sum up raw features; who is not there stays out."""
        state = self._state
        self.gather(state.weights)
        width = max(1, BLOCK // max(state.messages, 1))
        features = self._silos.schema.num_features
        for first in range(0, features if state.messages else 0, width):
            columns = Columns(self._label("input"), first, min(first + width, features))
            outgoing = self._ask(Participant.speak_features, dict.fromkeys(self._present, columns))
            self._ask(Participant.hear_features, self._carry(INPUT, outgoing))
        state.members = list(self._present)

    # Who is there

    def gather(self, weights: dict[str, Tensor]) -> None:
        """Greet the silos, and have those who answer agree anew if they are not the same."""
        state, s = self._state, self._settings
        asked = [name for name in state.members if name not in self._absent]
        greeting = SharedModel(weights, state.training_nodes)
        greeted = self._silos.ask(Participant.greet, greeting, to=asked).enough(s.min_silos)
        self._present = list(greeted)
        check_relays(len(greeted), s, lost=len(self._silos.names) - len(greeted))
        self._keys = torch.stack([reply.public_key for reply in greeted.values()])
        most = max(reply.most_neighbours for reply in greeted.values())
        self._summands = max(most, len(greeted))
        if self._present == state.agreed:
            return
        agreed = self._agree()
        state.agreed = list(self._present)
        state.messages = sum(each.messages for each in agreed.values())
        state.training_nodes = sum(reply.training_nodes for reply in greeted.values())
        if not state.training_nodes:
            raise FederationError("no silo has training nodes: give some nodes the role 'train'")
        if not state.below_minimum:
            stages = next(iter(agreed.values())).below_minimum
            state.below_minimum = {
                stage: sum(each.below_minimum[stage] for each in agreed.values())
                for stage in stages
            }

    def _agree(self) -> Mapping[str, Agreed]:
        """The phases of `secret/consent.py`."""
        wishes = self._ask(Participant.wish, dict.fromkeys(self._present, self._round_keys(False)))
        wishes = self._ask(Participant.take_wishes, self._deliver(wishes))
        counting = self._ask(Participant.take_wishes_back, self._deliver(wishes))
        wishes = self._ask(Participant.count_losses, self._carry(BACKWARD, counting))
        return self._ask(Participant.settle, self._deliver(wishes))

    # Carrying

    def across(self, end: Callable[[P, Incoming], R], *, training: bool) -> Mapping[str, R]:
        """One pass over the network, layer by layer and back; `end` is each silo's last step."""
        layers = self._settings.layers
        outgoing = self._ask(
            Participant.speak, dict.fromkeys(self._present, self._round_keys(training))
        )
        incoming = {name: nothing_incoming(each.label) for name, each in outgoing.items()}
        for layer in range(1, layers):
            incoming = self._carry(FORWARD, outgoing)
            if layer < layers - 1:
                outgoing = self._ask(Participant.hear, incoming)
        if training and layers > 1:
            outgoing = self._ask(Participant.turn, incoming)
            incoming = self._carry(LAST, outgoing)
            for _ in range(layers - 2):
                outgoing = self._ask(Participant.hear_back, incoming)
                incoming = self._carry(BACKWARD, outgoing)
        return self._ask(end, incoming)

    def _round_keys(self, training: bool) -> Keys:
        members = torch.tensor([self._number[name] for name in self._present])
        label = self._label("pass")
        turn = self._state.passes % len(members)
        return Keys(label, training, members, self._keys, self._summands, turn)

    def _label(self, what: str) -> str:
        """A name that no other pass has; always as long, so that the same run sends as much."""
        self._state.passes += 1
        return f"{what} {self._state.passes:09d}"

    def _ask(self, step: Callable[[P, M], R], messages: Mapping[str, M]) -> dict[str, R]:
        replies: Replies[R] = self._silos.ask_each(step, messages)
        if replies.lost:
            raise LostInRound(*(lost.silo for lost in replies.lost))
        return replies.arrived

    def _carry(self, stage: str, outgoing: Mapping[str, Outgoing]) -> dict[str, Incoming]:
        name_of = self._silos.names

        def relay(letters: Mapping[int, Letters]) -> dict[int, Letters]:
            passed = self._ask(
                Participant.relay, {name_of[to]: each for to, each in letters.items()}
            )
            return {self._number[name]: each for name, each in passed.items()}

        by_number = {self._number[name]: each for name, each in outgoing.items()}
        incoming = self._router.carry(stage, by_number, relay)
        return {name_of[number]: each for number, each in incoming.items()}

    def _deliver(self, letters: Mapping[str, Letters]) -> dict[str, Letters]:
        """Sealed letters from silo to silo."""
        label = next(iter(letters.values())).label
        sealed = forwarded({self._number[name]: each.sealed for name, each in letters.items()})
        return {name: Letters(label, sealed.get(self._number[name], {})) for name in letters}


def check_relays(members: int, settings: Any, lost: int) -> None:
    try:
        settings.secrecy.check(members, settings.setting == "devices")
    except SettingsError as error:
        if not lost:
            raise
        raise TooFewSilosError(f"{lost} silos were lost, and now {error}") from error
