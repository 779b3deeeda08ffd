"""A study's table, CSV and plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from fedmend.evaluation.summary import Summary
from fedmend.files import replacing
from fedmend.reports.comparing import paired
from fedmend.reports.layouts import across_or_below
from fedmend.reports.summary import summarise_runs
from fedmend.reports.tables import figure
from fedmend.runs.record import Figures


@dataclass(frozen=True)
class Entry:
    """One method at one point. Figures are None where no run has finished.

    method: the column it stands in; `ran`: the method that ran there.
    difference: to the base, paired by seed and split.
    """

    value: str
    number: float | None
    method: str
    ran: str
    seeds: tuple[int, ...]
    accuracy: Summary | None
    macro_f1: Summary | None
    difference: Summary | None
    seconds: float | None
    bytes_up: float | None
    bytes_down: float | None
    missing_share: float | None

    def as_dict(self) -> dict[str, Any]:
        summaries = {
            name: None if summary is None else summary.as_dict()
            for name, summary in (
                ("accuracy", self.accuracy),
                ("macro_f1", self.macro_f1),
                ("difference", self.difference),
            )
        }
        return {**self.__dict__, "seeds": list(self.seeds), **summaries}


def entry(
    value: str,
    number: float | None,
    method: str,
    ran: str,
    runs: Sequence[Figures],
    base: Sequence[Figures],
) -> Entry:
    """What the runs of one method at one point say, and against the base's."""
    if not runs:
        return Entry(value, number, method, ran, (), None, None, None, None, None, None, None)
    summary = summarise_runs(runs)
    test = paired(method, runs, "", base)
    shares = [run.data.missing_share for run in runs]
    known = [share for share in shares if share is not None]
    return Entry(
        value=value,
        number=number,
        method=method,
        ran=ran,
        seeds=tuple(run.seed for run in runs),
        accuracy=summary.accuracy,
        macro_f1=summary.macro_f1,
        difference=None if test is None else test.difference,
        seconds=summary.seconds.mean,
        bytes_up=summary.bytes_up,
        bytes_down=summary.bytes_down,
        missing_share=sum(known) / len(known) if known else None,
    )


def table(title: str, varies: str, entries: Sequence[Entry], missing: str = "failed") -> Group:
    """Values down, methods across: mean, 95% interval, paired difference to the first method."""
    names = list(dict.fromkeys(each.method for each in entries))
    values = list(dict.fromkeys(each.value for each in entries))
    by_place = {(each.value, each.method): each for each in entries}
    rows = []
    for value in values:
        places = [by_place[value, name] for name in names]
        found = (_words(each, missing) + _signed(each.difference) for each in places)
        rows.append([value, *found])
    drawn = across_or_below([varies, *names], rows)
    words = []
    if any(each.difference for each in entries):
        words.append(f"Δ is the difference to {names[0]}, paired by seed and split")
    if any(each.accuracy and each.accuracy.count > 1 for each in entries):
        words.append("± is the 95% interval over seeds")
    return Group(Text(title, style="bold"), drawn, *(Text(each, style="dim") for each in words))


def _words(each: Entry, missing: str) -> str:
    if not each.seeds:
        return missing
    words = figure(each.accuracy)
    return words if each.ran == each.method else f"{words} ({each.ran})"


def _signed(difference: Summary | None) -> str:
    if difference is None:
        return ""
    interval = f" ± {difference.interval:.4f}" if difference.count > 1 else ""
    return f"\nΔ {difference.mean:+.4f}{interval}"


COLUMNS = (
    *("method", "ran", "seeds", "accuracy", "accuracy_std", "accuracy_interval"),
    *("macro_f1", "macro_f1_interval", "difference", "difference_interval"),
    *("seconds", "bytes_up", "bytes_down", "missing_share"),
)


def to_csv(varies: str, entries: Sequence[Entry]) -> str:
    """A line per value and method."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([varies, *COLUMNS])
    for each in entries:
        accuracy, f1, difference = each.accuracy, each.macro_f1, each.difference
        lines.writerow(
            [
                each.value,
                each.method,
                each.ran,
                len(each.seeds),
                *((accuracy.mean, accuracy.std, accuracy.interval) if accuracy else [""] * 3),
                *((f1.mean, f1.interval) if f1 else [""] * 2),
                *((difference.mean, difference.interval) if difference else [""] * 2),
                *(
                    "" if number is None else number
                    for number in (
                        each.seconds,
                        each.bytes_up,
                        each.bytes_down,
                        each.missing_share,
                    )
                ),
            ]
        )
    return text.getvalue()


def _place(each: Entry, values: list[str] | None) -> float:
    """Where a point stands: at its number, or one after another where they are no numbers."""
    return (
        each.number
        if values is None and each.number is not None
        else (values or []).index(each.value)
    )


def plot(title: str, varies: str, entries: Sequence[Entry], out: Path) -> list[Path]:
    """study.svg and study.png: a line per method with its interval; [] without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    values = list(dict.fromkeys(each.value for each in entries))
    numbers = [each.number for each in entries]
    on_numbers = None not in numbers
    drawing = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = drawing.add_subplot()
    for name in dict.fromkeys(each.method for each in entries):
        there = [each for each in entries if each.method == name and each.accuracy]
        places = [_place(each, values if None in numbers else None) for each in there]
        summaries = [each.accuracy for each in there if each.accuracy]
        means = [summary.mean for summary in summaries]
        intervals = [summary.interval for summary in summaries]
        axes.errorbar(places, means, yerr=intervals, label=name, marker="o", capsize=3)
    positive = sorted({number for number in numbers if number is not None and number > 0})
    if on_numbers and len(positive) == len(values) and positive[-1] >= 8 * positive[0]:
        axes.set_xscale("log", base=2)
    if on_numbers:
        axes.set_xticks([float(value) for value in values], values)
        axes.minorticks_off()
    else:
        axes.set_xticks(range(len(values)), values)
    axes.set_xlabel(varies)
    axes.set_ylabel("test accuracy")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    paths = [out / "study.svg", out / "study.png"]
    for path in paths:
        with replacing(path) as temporary:
            drawing.savefig(temporary, format=path.suffix[1:], dpi=150)
    return paths
