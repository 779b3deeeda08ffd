"""`fedmend check DIR`: is this folder a graph fedmend can use?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def check(
    folder: Annotated[Path, typer.Argument(help="A folder with nodes and edges.")],
    json: common.JsonOption = False,
) -> None:
    """Validate a graph's folder and say what is in it and what is missing."""
    from dataclasses import asdict

    from fedmend.data.folders import check_folder

    with common.spinner(f"Reading {folder} ..."):
        report = check_folder(folder)
    if json:
        common.print_json(asdict(report))
        return
    console = common.out_console()
    for line in report.lines():
        console.print(line, markup=False, soft_wrap=True)
