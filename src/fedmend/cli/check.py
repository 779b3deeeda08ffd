"""`fedmend check DIR`: is this folder a graph fedmend can use?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def check(
    folder: Annotated[Path, typer.Argument(help="A folder with nodes and edges.")],
    column: Annotated[
        str | None,
        typer.Option("--column", help="Ownership column, for `fedmend partition --column`."),
    ] = None,
    json: common.JsonOption = False,
) -> None:
    """Validate a graph's folder and say what is in it and what is missing."""
    from dataclasses import asdict

    from fedmend.data.folders import check_folder, read_column

    with common.spinner(f"Reading {folder} ..."):
        owners = None if column is None else len(set(read_column(folder, column).tolist()))
        report = check_folder(folder, columns_to_ignore=() if column is None else (column,))
    if json:
        common.print_json({**asdict(report), **({} if column is None else {"owners": owners})})
        return
    console = common.out_console()
    for line in report.lines():
        console.print(line, soft_wrap=True)
    if column is not None:
        console.print(f"{column}: {owners} different owners", soft_wrap=True)
