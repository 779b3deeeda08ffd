"""`fedmend bench SUITE`: a whole table of runs beside the published figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmend.cli import common
from fedmend.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import RenderableType


def bench(
    suite: Annotated[
        str | None,
        typer.Argument(help="A suite's name or a TOML file; without one, suites are listed."),
    ] = None,
    datasets: Annotated[
        str | None, typer.Option("--datasets", help="Only these of the suite's, with commas.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option("--splits", help="Only these splits, with commas.")
    ] = None,
    silos: Annotated[
        str | None, typer.Option("--silos", help="Only these numbers of silos, with commas.")
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", help="Only these rows.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Another number.")] = None,
    first_seed: Annotated[
        int | None, typer.Option("--first-seed", min=0, help="The first of them; 0 otherwise.")
    ] = None,
    rounds: common.RoundsOption = None,
    set_: common.SetOption = None,
    config: common.ConfigOption = None,
    out: common.OutOption = None,
    reuse: common.ReuseOption = None,
    jobs: common.JobsOption = 1,
    workers: common.WorkersOption = 0,
    threads: common.ThreadsOption = 1,
    checkpoint_every: common.CheckpointOption = 10,
    data_root: common.DataRootOption = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="A folder of Markdown pages: one per suite, and an index."),
    ] = None,
    json: common.JsonOption = False,
) -> None:
    """Run a suite and show its tables: ours, published, differences; go on where it stopped."""
    from fedmend import bench as suites

    if suite is None:
        common.print_lines(
            [
                (name, each.about + _waiting(each.unknown_methods))
                for name, each in suites.shipped().items()
            ]
        )
        return
    every = suites.find(suite)
    chosen = every.only(
        datasets=None if datasets is None else _datasets(datasets),
        splits=None if splits is None else common.names(splits),
        silos=None if silos is None else _counts(silos),
        rows=None if rows is None else common.names(rows),
        seeds=seeds,
        first_seed=first_seed,
    )
    folder = out or Path("runs") / f"bench-{chosen.name}"
    with common.spinner("preparing ..."):
        from fedmend.bench.pages import check_page, update_page
        from fedmend.bench.running import BenchPlan, run_bench
        from fedmend.cli.cells import CellsDisplay, stopping_gently
        from fedmend.reports import bench_formats
        from fedmend.runs.cells import Engine, Outcome

        settings = common.gather_settings(set_, config, rounds=rounds)
        settings = {key.replace("-", "_"): value for key, value in settings.items()}
        plan = BenchPlan(chosen, settings, data_root)
        cells = plan.cells()
        if page is not None:
            here = [row.label for row in every.rows if row.method not in every.unknown_methods]
            part = every.only(rows=here, seeds=seeds, first_seed=first_seed)
            whole = BenchPlan(part, settings, data_root)
            check_page(page, whole, cells)

    def so_far(records: dict[str, Any]) -> RenderableType:
        """The table that the newest cell belongs to."""
        place = plan.place_of(next(reversed(records)))
        return bench_formats.terminal(plan.block(place, Outcome(records)))

    with CellsDisplay(len(cells), so_far) as display:
        telling = display.telling()
        with stopping_gently(display, telling, folder):
            engine = Engine(
                jobs, _workers(workers, jobs), threads, checkpoint_every, tuple(reuse or ())
            )
            blocks, outcome = run_bench(plan, folder, engine, telling)
    if page is not None and outcome.records:
        update_page(page, whole, outcome)
    if not outcome.records:
        typer.echo(
            "fedmend: no cell succeeded; earlier tables and pages are as they were", err=True
        )
    if json:
        tables = [block.as_dict() for block in blocks]
        common.print_json({"folder": str(folder), "tables": tables, "failures": outcome.failures})
    else:
        console = common.out_console()
        for block in blocks:
            console.print(bench_formats.terminal(block))
            console.print()
        for table in bench_formats.terminal_overviews(blocks):
            console.print(table)
        for note in bench_formats.notes(blocks):
            console.print(note, style="dim")
        console.print(f"Folder, with table.md, .csv, .tex and .html: {folder}", soft_wrap=True)
    if outcome.failures:
        raise typer.Exit(1)


def _waiting(methods: list[str]) -> str:
    return f" (needs {', '.join(methods)}, not here yet)" if methods else ""


def _datasets(text: str) -> list[str]:
    """Names between commas; a comma before `key=` is one of the dataset's own (csbm:a=1,b=2)."""
    return [name.strip() for name in re.split(r",(?!\s*\w+=)", text) if name.strip()]


def _counts(text: str) -> list[int]:
    found = common.names(text)
    if not all(each.isdecimal() for each in found):
        raise SettingsError(f"--silos {text!r} is not a list of whole numbers")
    return [int(each) for each in found]


def _workers(given: int, jobs: int) -> int:
    """Left open, the cores are shared among the jobs."""
    import os

    return given or max(1, (os.cpu_count() or 1) // jobs)
