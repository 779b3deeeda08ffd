"""A suite's tables: what stands in them. `bench_formats` writes them down.

A block is one dataset, split and number of silos. It says of its split what a reader must know
(share of edges cut, label skew, roles, mode), and warns where rows do not compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fedmend.evaluation.summary import Share, Summary
from fedmend.reports import guards
from fedmend.reports.comparing import (
    AgainstPublished,
    Paired,
    against_published,
    holm,
    paired,
    recovered,
)
from fedmend.reports.summary import summarise_runs
from fedmend.reports.tables import human_bytes
from fedmend.runs.record import Figures


@dataclass(frozen=True)
class Line:
    """One row of a block; figures are None where no run has finished.

    recovered: how far the row goes between two others; a text where the seeds cannot tell that
        there is a way at all.
    """

    label: str
    method: str
    baseline: bool
    seeds: tuple[int, ...]
    failed: int
    accuracy: Summary | None
    macro_f1: Summary | None
    published: AgainstPublished | None
    paired: Paired | None
    seconds: float | None
    sent: str
    recovered: Share | str | None
    between: tuple[str, str] | None


@dataclass(frozen=True)
class Block:
    """One table: rows on one dataset, split and number of silos."""

    dataset: str
    split: str
    silos: int
    base: str
    evaluation: str
    ratio: str
    missing_share: float | None
    label_skew: float | None
    hashes: dict[int, str]
    lines: tuple[Line, ...]
    pairs: tuple[Paired, ...]
    warnings: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.split}, {self.silos} silos"

    @property
    def about(self) -> str:
        """The split in words."""
        if not self.hashes:
            return "nothing has finished yet"
        cut = "unknown" if self.missing_share is None else f"{self.missing_share:.1%}"
        skew = "unknown" if self.label_skew is None else f"{self.label_skew:.2f}"
        return (
            f"edges between silos {cut}, label skew {skew}, train/val/test {self.ratio}, "
            f"tested by {self.evaluation}"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Published(Protocol):
    """A figure of a paper."""

    @property
    def accuracy(self) -> float: ...
    @property
    def std(self) -> float | None: ...
    @property
    def repeats(self) -> int: ...


@dataclass(frozen=True)
class Given:
    """What a line is made of."""

    label: str
    method: str
    baseline: bool
    runs: Sequence[Figures]
    failed: int
    published: Published | None
    between: tuple[str, str] | None


def block(dataset: str, split: str, silos: int, base: str, given: Sequence[Given]) -> Block:
    """One table from the records of its rows."""
    runs_of = {each.label: list(each.runs) for each in given}
    every = [run for runs in runs_of.values() for run in runs]
    against_base = holm(
        [
            test
            for each in given
            if each.label != base
            and (test := paired(each.label, each.runs, base, runs_of.get(base, [])))
        ]
    )
    labels = [each.label for each in given if not each.baseline]
    pairs = holm(
        [
            test
            for i, one in enumerate(labels)
            for other in labels[:i]
            if (test := paired(one, runs_of[one], other, runs_of[other]))
        ]
    )
    by_row = {test.row: test for test in against_base}
    won = {
        each.label: recovered(each.runs, *(runs_of[end] for end in each.between)) or "undefined"
        for each in given
        if each.between and each.label not in each.between
    }
    shares = [run.data.missing_share for run in every]
    known = [share for share in shares if share is not None]
    return Block(
        dataset=dataset,
        split=split,
        silos=silos,
        base=base,
        evaluation=" / ".join(sorted({run.evaluation for run in every})),
        ratio=" or ".join(
            sorted({"/".join(f"{100 * s:.0f}" for s in guards.ratio(run)) for run in every})
        ),
        missing_share=sum(known) / len(known) if known else None,
        label_skew=sum(map(guards.label_skew, every)) / len(every) if every else None,
        hashes={run.seed: run.split.hash or "" for run in every},
        lines=tuple(_line(each, by_row.get(each.label), won.get(each.label)) for each in given),
        pairs=tuple(pairs),
        warnings=tuple(guards.warnings(runs_of)),
    )


def _line(given: Given, test: Paired | None, won: Share | str | None) -> Line:
    if not given.runs:
        return Line(
            given.label,
            given.method,
            given.baseline,
            seeds=(),
            failed=given.failed,
            accuracy=None,
            macro_f1=None,
            published=None,
            paired=None,
            seconds=None,
            sent="",
            recovered=None,
            between=given.between,
        )
    summary = summarise_runs(given.runs)
    beside = None
    if given.published is not None and summary.accuracy is not None:
        beside = against_published(
            summary.accuracy,
            given.published.accuracy,
            given.published.std,
            given.published.repeats,
        )
    return Line(
        given.label,
        given.method,
        given.baseline,
        seeds=tuple(run.seed for run in given.runs),
        failed=given.failed,
        accuracy=summary.accuracy,
        macro_f1=summary.macro_f1,
        published=beside,
        paired=test,
        seconds=summary.seconds.mean,
        sent="all raw data" if summary.pooled else human_bytes(summary.bytes_up),
        recovered=won,
        between=given.between,
    )
