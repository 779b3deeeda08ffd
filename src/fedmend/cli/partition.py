"""`fedmend partition DATASET OUT`: write a folder per silo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common
from fedmend.errors import SettingsError


def partition(
    dataset: Annotated[str, typer.Argument(help="A dataset's name or a folder with a graph.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the silos' folders into.")],
    silos: common.SilosOption = None,
    split: common.SplitOption = None,
    ratio: common.RatioOption = "60/20/20",
    seed: common.SeedOption = 0,
    column: Annotated[
        str | None, typer.Option("--column", help="Ownership column, for --split column.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
    data_root: common.DataRootOption = None,
    json: common.JsonOption = False,
) -> None:
    """Cut a graph into silos and write a folder for each."""
    from dataclasses import asdict

    from fedmend.data.folders import write_partition
    from fedmend.reports import tables
    from fedmend.runs.plan import Source

    if column and split not in (None, "column"):
        raise SettingsError(f"--column {column} cuts by owner: leave --split {split} out")
    how = f"column:column={column}" if column else split
    with common.spinner("Cutting the graph ..."):
        cut = Source(dataset, silos, how, ratio, data_root).partition(seed)
    with common.spinner("Writing the silos ..."):
        write_partition(cut, out, format)  # type: ignore[arg-type]  # checked there
    statistics = cut.statistics()
    if json:
        common.print_json({"folder": str(out), "hash": cut.hash, **asdict(statistics)})
        return
    console = common.out_console()
    console.print(tables.partition_table(statistics))
    console.print(tables.partition_row(statistics))
    console.print(f"Written to {out}: a folder per silo, each with its own border edges;")
    console.print(f"{out}/evaluation has all cut edges and is for evaluation only.")
    console.print(f"Next: fedmend run fedsage --dataset {out}", soft_wrap=True)
