"""A Markdown page that several suites write together, and the figures it is written from.

Each suite has its section between two marks. In a folder beside the page one file per suite keeps
the figures of every run that its section shows (`reports.figures`). A part of a suite that is run
later, or on another machine, is added to them, and the section is written from all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedmend.bench import Suite
from fedmend.bench.running import BenchPlan
from fedmend.errors import FileFormatError, SettingsError
from fedmend.files import write_bytes
from fedmend.reports import bench_formats, figures
from fedmend.reports.benches import Block
from fedmend.runs.cells import Cell, Outcome, is_of_other_settings
from fedmend.runs.record import Figures


def figures_of(page: Path, suite: Suite) -> Path:
    """Where the figures of a suite's section are kept."""
    return page.parent / f"{page.stem}-figures" / f"{suite.name}{figures.SUFFIX}"


def check_page(page: Path, whole: BenchPlan, cells: Iterable[Cell]) -> None:
    """Refuse a page that the results of `cells` could not be added to, before they run for hours.

    whole: the suite with all its datasets, splits and rows, and the settings chosen now.
    """
    _read_page(page, whole.suite)
    kept = _read_figures(page, whole)
    anew = {cell.name for cell in cells}
    for cell in whole.cells():
        record = kept.get(cell.name)
        if record and cell.name not in anew and is_of_other_settings(cell, record):
            raise SettingsError(
                f"{figures_of(page, whole.suite)} holds figures of other settings, "
                f"{cell.name} for one; choose another --page, or remove that file"
            )


def update_page(page: Path, whole: BenchPlan, outcome: Outcome) -> None:
    """Keep the figures of an outcome, and write the suite's section of all that are kept."""
    kept = _read_figures(page, whole) | outcome.records
    figures.write(figures_of(page, whole.suite), kept)
    section = _section(whole, Outcome(kept, outcome.failures))
    first, last = _marks(whole.suite)
    text = _read_page(page, whole.suite)
    section = f"{first}\n{section}\n{last}"
    if first in text:
        text = re.sub(
            f"{re.escape(first)}.*?{re.escape(last)}", lambda _: section, text, flags=re.DOTALL
        )
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    write_bytes(page, text.encode())


def _section(whole: BenchPlan, outcome: Outcome) -> str:
    suite = whole.suite
    blocks = [_begun(whole.block(place, outcome)) for place in whole.places]
    blocks = [block for block in blocks if block.lines]
    shown = {cell.name for cell in whole.cells()}
    runs = [run for name, run in outcome.records.items() if name in shown]
    return "\n".join(
        [
            f"## {suite.name}",
            "",
            f"{suite.about}.",
            "",
            f"`fedmend bench {suite.name}`: {suite.seeds} seeds (0 to {suite.seeds - 1}), "
            f"{'; '.join(_conditions(runs))}.",
            "",
            bench_formats.markdown(blocks),
        ]
    )


def _begun(block: Block) -> Block:
    """Without the rows of which nothing has been run."""
    return replace(block, lines=tuple(line for line in block.lines if line.seeds or line.failed))


def _conditions(runs: Iterable[Figures]) -> list[str]:
    """When, where and with which versions the runs were made; baselines do not say."""
    days, machines, versions = set(), set(), set()
    for run in runs:
        days.add(run.measured.finished[:10])
        machines.add(run.measured.machine or "")
        versions.add(", ".join(f"{name} {each}" for name, each in run.versions.items()))
    dates = sorted(days - {""})
    when = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    return [*when, *(" / ".join(sorted(each - {""})) for each in (machines, versions) if any(each))]


def _read_figures(page: Path, whole: BenchPlan) -> dict[str, Figures]:
    path = figures_of(page, whole.suite)
    return figures.read(path) if path.exists() else {}


def _marks(suite: Suite) -> tuple[str, str]:
    return f"<!-- suite {suite.name} -->", f"<!-- end of {suite.name} -->"


def _read_page(path: Path, suite: Suite) -> str:
    """The page as it is, or a new one; an error if the suite's section could not be written."""
    if path.is_dir():
        raise SettingsError(f"--page {path} is a folder: name a file")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise SettingsError(f"--page {path} cannot be written: {there} is a file, not a folder")
    if not path.exists():
        return "# Results\n\nWritten by `fedmend bench SUITE --page`; see `fedmend bench`.\n"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not a text file: {error}") from error
    first, last = _marks(suite)
    if text.count(first) > 1 or text.count(first) != text.count(last):
        raise FileFormatError(f"{path}: the marks of suite {suite.name} do not match; mend them")
    return text
