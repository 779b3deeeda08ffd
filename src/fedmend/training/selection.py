"""Choosing the round whose weights are kept: by validation nodes on the silos' own graphs only.

Of equal rounds the later one is kept: it has seen more training.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmend.training.state import under


class Selection:
    """Mixin for a server's state: remembers the best shared weights so far."""

    best: dict[str, Tensor]
    best_round: int
    best_accuracy: float

    def offer(self, round: int, weights: dict[str, Tensor], accuracy: float) -> None:
        """Consider the weights that stood after `round`."""
        if accuracy >= self.best_accuracy:
            self.best, self.best_round, self.best_accuracy = weights, round, accuracy


class OwnBest:
    """For a silo with a model of its own: remembers the best weights so far."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.right = 0

    def offer(self, weights: Mapping[str, Tensor], right: int, nodes: int) -> None:
        """Consider these weights, which classify `right` of `nodes` validation nodes right."""
        if right >= self.right or not nodes:
            self.weights = {key: value.cpu().clone() for key, value in weights.items()}
            self.right = right

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        saved = {f"best/{key}": value for key, value in self.weights.items()}
        return {**saved, "best right": torch.tensor(self.right)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        self.right = int(state["best right"])
        self.weights = under("best/", state)
