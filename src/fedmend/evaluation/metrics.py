"""Metrics: an additive statistic that silos can send and sum up, and the figure made of it.

A metric is one class. Statistics of several silos add up to the statistic of all their nodes, which
figures do not. What silos say together and what several seeds say is in `evaluation.summary`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmend.errors import FederationError, SettingsError
from fedmend.plugins.registry import Registry

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


def _accepted(name: str, given: Any) -> Metric:
    """A metric from outside: a class, or an object of it, that does what silos rely on."""
    made = given() if isinstance(given, type) and issubclass(given, Metric) else given
    if not isinstance(made, Metric) or made.name != name:
        raise SettingsError(
            f"metric {name!r} must be a fedmend.evaluation.metrics.Metric of that name, "
            f"got {given!r:.80}"
        )
    wrong = _wrong(made)
    if wrong is not None:
        raise SettingsError(f"metric {name!r} {wrong}")
    return made


def _wrong(tried: Metric) -> str | None:
    """Why a metric could not be summed up over silos; tried out on seven nodes of three classes."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 3, generator=generator)
    targets = torch.tensor([0, 1, 2, 2, 1, 0, 2])
    whole = tried.statistic(scores, targets)
    parts = [tried.statistic(scores[at], targets[at]) for at in (slice(2), slice(2, 7), slice(0))]
    if any(part.shape != whole.shape or part.dtype != whole.dtype for part in parts):
        return "must give statistics of one shape and type, however many the nodes: none, too"
    if not torch.allclose(sum(parts[1:], parts[0]), whole):
        return "must give statistics that add up: those of some nodes and of the others to all's"
    if not all(tried.fits(each, 3) for each in (whole, *parts)):
        return "does not take its own statistics for such (fits)"
    if tried.fits(torch.full_like(whole, -1), 3):
        return "takes any numbers for its statistics (fits): a silo may send what it likes"
    if [tried.nodes(each) for each in (whole, parts[-1])] != [7, 0]:
        return "must know of how many nodes a statistic is (nodes)"
    figures = [tried.figure(each) for each in (whole, *parts)]
    if not all(isinstance(each, float) and math.isfinite(each) for each in figures):
        return "must give a finite figure, of no nodes at all too"
    return None


METRICS: Registry[Metric] = Registry(
    "metric", {each.name: each for each in (Accuracy(), MacroF1())}, _accepted
)
"""Every metric by its name; a run's result has ours, and those from outside that are in use."""


def metric(name: str) -> Metric:
    """The metric of this name; an error with the nearest one if there is none."""
    return METRICS.find(name)


Statistics = Mapping[str, Tensor]
"""Of every metric its statistic, by the metric's name."""


def statistics(scores: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The statistic of every metric in use."""
    return {name: each.statistic(scores, targets) for name, each in METRICS.in_use().items()}


def checked(silo: str, found: Statistics, classes: int, nodes: int) -> Statistics:
    """What a silo sent, if it can be of so many nodes; those of unknown metrics are left out."""
    known = {name: METRICS[name] for name in METRICS if name in found}
    for name, each in known.items():
        each.total({silo: found[name]}, classes)
        if each.nodes(found[name]) != nodes:
            raise FederationError(f"{silo} sent {each.title} of other nodes than it has")
    return {name: found[name] for name in known}


def summed(every: Mapping[str, Statistics]) -> dict[str, Tensor]:
    """The sum of several statistics, of the metrics that all of them have."""
    given = list(every.values())
    names = [name for name in METRICS if all(name in each for each in given)]
    return {name: torch.stack([each[name] for each in given]).sum(0) for name in names}


def figures(found: Statistics) -> dict[str, float]:
    """The figures of statistics by metric."""
    return {name: METRICS[name].figure(each) for name, each in found.items()}


def mean_figures(every: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The unweighted mean of each figure, over silos or models; at least one."""
    given = list(every)
    return {name: sum(each[name] for each in given) / len(given) for name in given[0]}
