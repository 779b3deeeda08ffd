"""The one loop of rounds: what a silo got is validated and offered, what it gives is averaged.

A method says what happens in a round and how the weights are validated in the end (`Rounds`); the
loop keeps the best weights, notes the figures, and stops where `patience` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedmend.evaluation.metrics import metric
from fedmend.federation import Federation
from fedmend.training.selection import Training

NOT_TOLD = -1.0
"""In place of a loss that noise is to hide; no cross-entropy is negative."""

Validated = Mapping[str, Tensor]
"""By silo: the statistic of its validation nodes (`evaluation.metrics`)."""


class Tested(Protocol):
    """What a silo says of the weights it received, whatever else its message carries."""

    @property
    def validation(self) -> Tensor: ...


class Trained(Protocol):
    """What a silo says of its training."""

    @property
    def loss(self) -> float: ...

    @property
    def training_nodes(self) -> int: ...


@dataclass(frozen=True)
class Round:
    """What a round gave.

    weights: those the next round begins with. validation: how those that this round began with do.
    loss: of the training nodes; None where it is not told.
    """

    weights: dict[str, Tensor]
    validation: Validated
    loss: float | None


def train_rounds(
    silos: Federation[Any],
    settings: Any,
    state: Training,
    one_round: Callable[[int], Round],
    validate: Callable[[], Validated],
    on_best: Callable[[], None] = lambda: None,
) -> None:
    """Rounds of training, each round's weights offered to the selection.

    one_round: trains from `state.weights`. validate: tests them after the last round.
    on_best: called while what belongs to the best weights so far is at hand.
    """

    chosen = metric(settings.metric)

    def offer(number: int, validation: Validated) -> None:
        figure = chosen.figure(chosen.total(validation, silos.schema.num_classes))
        state.offer(number, state.weights, chosen.better(figure))
        if state.best_round == number:
            on_best()
        silos.note(number, **{f"validation_{chosen.name}": figure})

    for number in silos.rounds(settings.rounds, state):
        found = one_round(number)
        offer(number - 1, found.validation)
        if found.loss is not None:
            silos.note(number, training_loss=found.loss)
        state.weights, state.done = found.weights, number
        if state.waited(settings.patience):
            silos.finish()
    offer(state.done, validate())


def validated(replies: Mapping[str, Tested]) -> dict[str, Tensor]:
    """How the weights that the silos received do, as they say themselves."""
    return {name: each.validation for name, each in replies.items()}


def mean_loss(replies: Mapping[str, Trained]) -> float | None:
    """The silos' training loss, by training nodes; None where one of them does not tell it."""
    if any(reply.loss == NOT_TOLD for reply in replies.values()):
        return None
    nodes = sum(reply.training_nodes for reply in replies.values())
    return sum(reply.loss * reply.training_nodes for reply in replies.values()) / nodes


def importances(replies: Mapping[str, Trained], weighting: str) -> dict[str, float]:
    """How much each silo counts in the average."""
    if weighting == "equal":
        return dict.fromkeys(replies, 1.0)
    return {name: float(reply.training_nodes) for name, reply in replies.items()}
