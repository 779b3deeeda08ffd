"""Choosing the round whose weights are kept: by validation nodes on the silos' own graphs only.

Of equal rounds the later one is kept: it has seen more training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedmend.training.state import Composed, Part, Values


@dataclass
class Training:
    """What a server that has a shared model remembers between rounds.

    done: rounds so far. improved: the first round of the best accuracy; equals do not count here.
    """

    weights: dict[str, Tensor]
    best: dict[str, Tensor] = field(default_factory=dict)
    best_round: int = 0
    best_accuracy: float = 0.0
    done: int = 0
    improved: int = 0

    def offer(self, round: int, weights: dict[str, Tensor], accuracy: float) -> None:
        """Consider the weights that stood after `round`."""
        if accuracy > self.best_accuracy:
            self.improved = round
        if accuracy >= self.best_accuracy:
            self.best, self.best_round, self.best_accuracy = weights, round, accuracy

    def waited(self, patience: int) -> bool:
        """Whether the weights that were validated last are so many rounds past the best."""
        return 0 < patience <= self.done - 1 - self.improved


class OwnBest(Composed):
    """For a silo with a model of its own: remembers the best weights so far."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.right = 0

    def offer(self, weights: Mapping[str, Tensor], right: int, nodes: int) -> bool:
        """Consider these weights, which classify `right` of `nodes` validation nodes right.

        Gives whether they are the best now.
        """
        better = right >= self.right or not nodes
        if better:
            self.weights = {key: value.cpu().clone() for key, value in weights.items()}
            self.right = right
        return better

    def parts(self) -> Mapping[str, Part]:
        return {"best": Values(self, weights=dict, right=int)}
