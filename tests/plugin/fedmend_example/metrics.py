"""A metric for classes of very different sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmend.evaluation.metrics import MOST_NODES, Metric


class BalancedAccuracy(Metric):
    """Mean over classes of the share of their nodes that was found."""

    name = "balanced-accuracy"
    title = "balanced accuracy"

    def statistic(self, scores: Tensor, targets: Tensor) -> Tensor:
        found = targets[scores.argmax(1) == targets]
        classes = scores.shape[1]
        return torch.stack([torch.bincount(each, minlength=classes) for each in (found, targets)])

    def figure(self, statistic: Tensor) -> float:
        found, there = statistic
        occurs = there > 0
        return float((found[occurs] / there[occurs]).mean()) if bool(occurs.any()) else 0.0

    def fits(self, statistic: Tensor, classes: int) -> bool:
        if statistic.shape != (2, classes) or statistic.dtype != torch.int64:
            return False
        found, there = statistic
        return bool(((found >= 0) & (found <= there) & (there <= MOST_NODES)).all())

    def nodes(self, statistic: Tensor) -> int:
        return int(statistic[1].sum())
