"""The statistics of a suite's table: ours against the published, and methods against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedmend.evaluation.summary import (
    Share,
    Summary,
    recovered_share,
    student_p,
    student_quantile,
    summarise,
)
from fedmend.reports.summary import same_test
from fedmend.runs.record import Figures


@dataclass(frozen=True)
class AgainstPublished:
    """Ours minus the published figure.

    interval: half-width of the 95% interval of the difference (Welch), None where a single seed
    allows none. A published figure without a standard deviation is taken as exact.
    mark: "above", "within" or "below"; "" without an interval.
    """

    published: float
    published_std: float | None
    difference: float
    interval: float | None
    mark: str


def against_published(
    ours: Summary, published: float, std: float | None, repeats: int
) -> AgainstPublished:
    """Set our figure beside a published mean and standard deviation over so many repeats."""
    difference = ours.mean - published
    if ours.count < 2:
        return AgainstPublished(published, std, difference, None, "")
    own = ours.std**2 / ours.count
    theirs = 0.0 if std is None or repeats < 2 else std**2 / repeats
    if own + theirs == 0.0:
        interval = 0.0
    else:
        below = own**2 / (ours.count - 1) + (theirs**2 / (repeats - 1) if theirs else 0.0)
        freedom = (own + theirs) ** 2 / below
        interval = student_quantile(freedom) * math.sqrt(own + theirs)
    mark = "within"
    if abs(difference) > interval:
        mark = "above" if difference > 0 else "below"
    return AgainstPublished(published, std, difference, interval, mark)


@dataclass(frozen=True)
class Paired:
    """One row minus another, seed by seed on shared splits.

    p: of the paired t test that the mean difference is 0; None below two shared seeds.
    adjusted: p after Holm's correction for all comparisons made with it.
    """

    row: str
    base: str
    difference: Summary
    p: float | None
    adjusted: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired(
    row: str, runs: Sequence[Figures], base: str, others: Sequence[Figures]
) -> Paired | None:
    """The paired test of two rows; None where no seed has both on the same split and mode."""
    differences = [one - other for one, other in _shared(runs, others)]
    if not differences:
        return None
    summary = summarise(differences)
    return Paired(row, base, summary, _p_value(summary))


def recovered(
    runs: Sequence[Figures], base: Sequence[Figures], ceiling: Sequence[Figures]
) -> Share | None:
    """The share of the way from base to ceiling that a row goes; None where it is undefined."""
    shared = _shared(runs, base, ceiling)
    return recovered_share(*zip(*shared, strict=True)) if shared else None


def _shared(*rows: Sequence[Figures]) -> list[tuple[float, ...]]:
    """The accuracies of all rows, of every seed that all have on the same split and mode."""
    by_seed = [{run.seed: run for run in runs if run.result is not None} for runs in rows]
    groups = [[runs[seed] for runs in by_seed] for seed in by_seed[0] if _all_have(by_seed, seed)]
    return [
        tuple(run.result.accuracy for run in group if run.result is not None)
        for group in groups
        if same_test(*group)
    ]


def _all_have(by_seed: Sequence[Mapping[int, Figures]], seed: int) -> bool:
    return all(seed in runs for runs in by_seed)


def _p_value(summary: Summary) -> float | None:
    if summary.count < 2:
        return None
    if summary.std == 0.0:
        return 1.0 if summary.mean == 0.0 else 0.0
    statistic = summary.mean / (summary.std / math.sqrt(summary.count))
    return student_p(statistic, summary.count - 1)


def holm(tests: Sequence[Paired]) -> list[Paired]:
    """The same tests, each with its p adjusted for being one of several."""
    order = sorted((i for i, test in enumerate(tests) if test.p is not None), key=_p_of(tests))
    adjusted: dict[int, float] = {}
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * (tests[index].p or 0.0)))
        adjusted[index] = largest
    return [
        Paired(test.row, test.base, test.difference, test.p, adjusted.get(i))
        for i, test in enumerate(tests)
    ]


def _p_of(tests: Sequence[Paired]) -> Any:
    return lambda index: tests[index].p
