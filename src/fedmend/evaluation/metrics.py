"""Metrics: an additive statistic that silos can send and sum up, and the figure made of it.

A metric is one class. Statistics of several silos add up to the statistic of all their nodes, which
figures do not. What silos say together and what several seeds say is in `evaluation.summary`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedmend.errors import FederationError, UnknownNameError

MOST_NODES = 2**53
"""More nodes than a silo can have: counts up to here add up exactly, in any type."""


class Metric(ABC):
    """One figure of how well classes are predicted.

    name: in settings and records; title: in tables. sign: 1 where more is better, else -1.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    sign: ClassVar[int] = 1

    @abstractmethod
    def statistic(self, scores: Tensor, targets: Tensor) -> Tensor:
        """What adds up over nodes: a tensor whose shape depends on the number of classes alone.

        scores: a row per node, a column per class: logits, or logarithms of probabilities.
        """

    @abstractmethod
    def figure(self, statistic: Tensor) -> float:
        """The figure of a sum of statistics; 0 of no nodes at all."""

    @abstractmethod
    def fits(self, statistic: Tensor, classes: int) -> bool:
        """Whether this can be the statistic of any nodes: a silo is hostile until checked."""

    @abstractmethod
    def nodes(self, statistic: Tensor) -> int:
        """How many nodes a statistic is of."""

    def better(self, figure: float) -> float:
        """The figure, or its negative, so that more is better."""
        return self.sign * figure

    def total(self, statistics: Mapping[str, Tensor], classes: int) -> Tensor:
        """The sum of what silos sent, each checked; an error names the silo that sent nonsense."""
        for silo, each in statistics.items():
            if not self.fits(each, classes):
                raise FederationError(
                    f"{silo} sent figures of its validation or test nodes ({self.title}) that "
                    "cannot be: counts must be whole, not negative, and none larger than its whole"
                )
        return torch.stack(list(statistics.values())).sum(0)


class Accuracy(Metric):
    """Share of nodes whose class was found; the statistic is how many were, and how many are."""

    name = "accuracy"
    title = "accuracy"

    def statistic(self, scores: Tensor, targets: Tensor) -> Tensor:
        right = (scores.argmax(1) == targets).sum() if len(targets) else torch.tensor(0)
        return torch.tensor([int(right), len(targets)])

    def figure(self, statistic: Tensor) -> float:
        right, nodes = statistic.tolist()
        return float(right / nodes) if nodes else 0.0

    def fits(self, statistic: Tensor, classes: int) -> bool:  # noqa: ARG002  # the same for all
        if statistic.shape != (2,) or statistic.dtype != torch.int64:
            return False
        right, nodes = statistic.tolist()
        return bool(0 <= right <= nodes <= MOST_NODES)

    def nodes(self, statistic: Tensor) -> int:
        return int(statistic[1])


class MacroF1(Metric):
    """Mean over classes of 2 TP / (2 TP + FP + FN), over the classes that occur in either.

    The statistic: how many nodes of each class were found, are there, and were said to be.
    """

    name = "macro_f1"
    title = "macro-F1"

    def statistic(self, scores: Tensor, targets: Tensor) -> Tensor:
        found = scores.argmax(1) if len(targets) else targets
        counted = (targets[found == targets], targets, found)
        classes = scores.shape[1]
        return torch.stack([torch.bincount(each.cpu(), minlength=classes) for each in counted])

    def figure(self, statistic: Tensor) -> float:
        right, true, found = statistic
        sizes = true + found
        occurs = sizes > 0
        if not bool(occurs.any()):
            return 0.0
        return float((2.0 * right[occurs].double() / sizes[occurs]).mean())

    def fits(self, statistic: Tensor, classes: int) -> bool:
        if statistic.shape != (3, classes) or statistic.dtype != torch.int64:
            return False
        if bool((statistic < 0).any()) or bool((statistic > MOST_NODES).any()):
            return False
        right, true, found = statistic
        return bool((right <= torch.minimum(true, found)).all()) and sum(true.tolist()) == sum(
            found.tolist()
        )

    def nodes(self, statistic: Tensor) -> int:
        return int(statistic[1].sum())


METRICS: dict[str, Metric] = {each.name: each for each in (Accuracy(), MacroF1())}
"""Every metric by its name; a run's result has all of them."""


def metric(name: str) -> Metric:
    """The metric of this name; an error with the nearest one if there is none."""
    if name not in METRICS:
        raise UnknownNameError("metric", name, METRICS)
    return METRICS[name]


def statistics(scores: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The statistic of every metric."""
    return {name: each.statistic(scores, targets) for name, each in METRICS.items()}


def figures(found: Mapping[str, Tensor]) -> dict[str, float]:
    """The figures of statistics by metric."""
    return {name: METRICS[name].figure(each) for name, each in found.items()}


def mean_figures(every: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The unweighted mean of each figure, over silos or models; at least one."""
    given = list(every)
    return {name: sum(each[name] for each in given) / len(given) for name in given[0]}


def accuracy(found: Tensor, true: Tensor) -> float:
    """Share of nodes whose class was found."""
    return float((found == true).double().mean())


def macro_f1(found: Tensor, true: Tensor) -> float:
    """Mean over classes of 2 TP / (2 TP + FP + FN), over the classes that occur in either."""
    classes = int(torch.maximum(found.max(), true.max())) + 1
    return figures_of(counts_by_class(found, true, classes))["macro_f1"]


def counts_by_class(found: Tensor, true: Tensor, classes: int) -> Tensor:
    """How many nodes of each class were found, are there, and were said to be: 3 x classes.

    Of several silos they add up, which accuracy and macro-F1 of each do not.
    """
    return torch.stack(
        [torch.bincount(each, minlength=classes) for each in (true[found == true], true, found)]
    )


def figures_of(counts: Tensor) -> dict[str, float]:
    """Accuracy and macro-F1 from counts by class, of at least one node."""
    right, true, found = counts
    sizes = true + found
    occurs = sizes > 0
    return {
        "accuracy": int(right.sum()) / int(true.sum()),
        "macro_f1": float((2.0 * right[occurs].double() / sizes[occurs]).mean()),
    }
