"""Choosing the round whose weights are kept: by validation nodes on the silos' own graphs only.

Of equal rounds the later one is kept: it has seen more training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedmend.evaluation import metrics
from fedmend.training.state import Composed, Part, Values


@dataclass
class Training:
    """What a server that has a shared model remembers between rounds.

    best_figure: what more is better of (`Metric.better`). done: rounds so far.
    improved: the first round of the best figure; equals do not count here.
    """

    weights: dict[str, Tensor]
    best: dict[str, Tensor] = field(default_factory=dict)
    best_round: int = 0
    best_figure: float = -math.inf
    done: int = 0
    improved: int = 0

    def offer(self, round: int, weights: dict[str, Tensor], figure: float) -> None:
        """Consider the weights that stood after `round`."""
        if figure > self.best_figure:
            self.improved = round
        if figure >= self.best_figure:
            self.best, self.best_round, self.best_figure = weights, round, figure

    def waited(self, patience: int) -> bool:
        """Whether the weights that were validated last are so many rounds past the best."""
        return 0 < patience <= self.done - 1 - self.improved


class OwnBest(Composed):
    """For a silo with a model of its own: remembers the best weights so far.

    metric: the name of the metric that chooses them.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metrics.metric(metric)
        self.weights: dict[str, Tensor] = {}
        self.figure = -math.inf

    def offer(self, weights: Mapping[str, Tensor], validation: Tensor) -> bool:
        """Consider these weights, with this statistic of the silo's validation nodes.

        Gives whether they are the best now; without validation nodes the newest are.
        """
        figure = self._metric.better(self._metric.figure(validation))
        better = figure >= self.figure
        if better:
            self.weights = {key: value.cpu().clone() for key, value in weights.items()}
            self.figure = figure
        return better

    def parts(self) -> Mapping[str, Part]:
        return {"best": Values(self, weights=dict, figure=float)}
