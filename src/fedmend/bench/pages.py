"""A folder of results: a Markdown page per suite, an index, and the figures they are written from.

    FOLDER/README.md            the index: every page's first sentence
    FOLDER/SUITE.md             the suite's tables, between two marks; what else stands there stays
    FOLDER/figures/SUITE.jsonl  the figures of every run that the page shows (`reports.figures`)

A part of a suite that is run later, or on another machine, is added to the figures, and the page is
written from all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from urllib.parse import quote

from fedmend.bench import Suite
from fedmend.bench.running import BenchPlan
from fedmend.errors import FileFormatError, SettingsError
from fedmend.files import write_bytes
from fedmend.reports import bench_formats, figures
from fedmend.reports.benches import Block
from fedmend.runs.cells import Cell, Outcome, is_of_other_settings
from fedmend.runs.record import Figures

INDEX = "README.md"
_PAGES = ("<!-- suites -->", "<!-- end of suites -->")
_NEW_INDEX = """# Results

Written by `fedmend bench SUITE --page`. Every seed's figures are in [figures](figures).
"""


def page_of(folder: Path, suite: Suite) -> Path:
    """A suite's page."""
    return folder / f"{suite.name}.md"


def figures_of(folder: Path, suite: Suite) -> Path:
    """Where the figures of a suite's page are kept."""
    return folder / "figures" / f"{suite.name}{figures.SUFFIX}"


def check_page(folder: Path, whole: BenchPlan, cells: Iterable[Cell]) -> None:
    """Refuse a folder that the results of `cells` could not be added to, before they run for hours.

    whole: the suite with all its datasets, splits and rows, and the settings chosen now.
    """
    _check_folder(folder, whole.suite)
    _read_page(folder, whole.suite)
    _read(folder / INDEX, _PAGES, _NEW_INDEX)
    kept = _read_figures(folder, whole)
    anew = {cell.name for cell in cells}
    for cell in whole.cells():
        record = kept.get(cell.name)
        if record and cell.name not in anew and is_of_other_settings(cell, record):
            raise SettingsError(
                f"{figures_of(folder, whole.suite)} holds figures of other settings, "
                f"{cell.name} for one; choose another --page, or remove that file"
            )


def update_page(folder: Path, whole: BenchPlan, outcome: Outcome) -> None:
    """Keep the figures of an outcome, and write the suite's page of all that are kept."""
    suite = whole.suite
    kept = _read_figures(folder, whole) | outcome.records
    figures.write(figures_of(folder, suite), kept)
    section = _section(whole, Outcome(kept, outcome.failures))
    text = _between(_marks(suite), section, _read_page(folder, suite))
    write_bytes(page_of(folder, suite), text.encode())
    index = _between(_PAGES, _index(folder), _read(folder / INDEX, _PAGES, _NEW_INDEX))
    write_bytes(folder / INDEX, index.encode())


def _between(marks: tuple[str, str], section: str, text: str) -> str:
    """The text with a section between two marks: in place of the one that is there, or last."""
    first, last = marks
    section = f"{first}\n{section}\n{last}"
    if first not in text:
        return f"{text.rstrip()}\n\n{section}\n".lstrip()
    found = f"{re.escape(first)}.*?{re.escape(last)}"
    return re.sub(found, lambda _: section, text, flags=re.DOTALL)


def _index(folder: Path) -> str:
    """A line for every suite's page that is there."""
    begins = re.compile(r"<!-- suite (.+) -->\n# .+\n\n(.+)\n")
    pages = sorted(folder.glob("*.md"))
    found = [begins.search(page.read_text(encoding="utf-8", errors="replace")) for page in pages]
    return "\n".join(
        f"- [{match[1]}]({quote(page.name)}): {match[2]}"
        for page, match in zip(pages, found, strict=True)
        if match
    )


def _section(whole: BenchPlan, outcome: Outcome) -> str:
    suite = whole.suite
    blocks = [_begun(whole.block(place, outcome)) for place in whole.places]
    blocks = [block for block in blocks if block.lines]
    shown = {cell.name for cell in whole.cells()}
    runs = [run for name, run in outcome.records.items() if name in shown]
    return "\n".join(
        [
            f"# {suite.name}",
            "",
            f"{suite.about}.",
            "",
            f"`fedmend bench {suite.name}`: {suite.seeds} seeds "
            f"({suite.seed_numbers[0]} to {suite.seed_numbers[-1]}), "
            f"{'; '.join(_conditions(runs))}.",
            "",
            bench_formats.markdown(blocks),
            *_what_ran(whole, outcome),
        ]
    ).rstrip()


def _what_ran(whole: BenchPlan, outcome: Outcome) -> list[str]:
    """A note for every sentence that kept figures carry, with the rows and tables it is about."""
    about: dict[str, dict[str, dict[str, list[int]]]] = {}
    for place, row in product(whole.places, whole.rows):
        for seed in whole.suite.seed_numbers:
            run = outcome.records.get(whole.cell(place, row, seed).name)
            if run and run.ran:
                tables = about.setdefault(run.ran, {}).setdefault(row.label, {})
                tables.setdefault(f"{place.dataset}, {place.split}", []).append(place.silos)
    return [
        "- **Runs older than their settings.** " + f"{ran} So it is with {_in_words(rows)}."
        for ran, rows in about.items()
    ]


def _in_words(rows: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Rows with the tables and numbers of silos that a note is about."""
    by_tables: dict[str, list[str]] = {}
    for row, tables in rows.items():
        each = [f"{on} ({', '.join(map(str, sorted(set(m))))})" for on, m in tables.items()]
        by_tables.setdefault("; ".join(each), []).append(row)
    return "; and ".join(f"{', '.join(names)}: {where}" for where, names in by_tables.items())


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


def _read_figures(folder: Path, whole: BenchPlan) -> dict[str, Figures]:
    path = figures_of(folder, whole.suite)
    return figures.read(path) if path.exists() else {}


def _marks(suite: Suite) -> tuple[str, str]:
    return f"<!-- suite {suite.name} -->", f"<!-- end of {suite.name} -->"


def _check_folder(folder: Path, suite: Suite) -> None:
    """Refuse what cannot be a folder of pages."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise SettingsError(f"--page {folder} cannot be written: {there} is a file, not a folder")
    if folder.suffix == ".md":
        raise SettingsError(
            f"--page {folder} must be a folder: the suite's page in it is {suite.name}.md"
        )
    if page_of(folder, suite).name.lower() == INDEX.lower():
        raise SettingsError(f"--page: {INDEX} is the index; give the suite's file another name")


def _read_page(folder: Path, suite: Suite) -> str:
    return _read(page_of(folder, suite), _marks(suite), "")


def _read(path: Path, marks: tuple[str, str], new: str) -> str:
    """A page as it is, or a new one; an error if what is between the marks could not be written."""
    if not path.exists():
        return new
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not a text file: {error}") from error
    first, last = marks
    if text.count(first) > 1 or text.count(first) != text.count(last):
        raise FileFormatError(f"{path}: the marks {first} and {last} do not match; mend them")
    return text
