"""`fedmend methods|datasets|splits`: what there is, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmend.cli import common


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's settings.")] = None,
) -> None:
    """List the methods, or the settings of one."""
    from fedmend.methods import METHODS, find

    if name is None:
        common.print_lines([(each.name, each.summary) for each in METHODS.values()])
        return
    from rich.text import Text

    from fedmend.config import describe

    method = find(name)
    common.out_console().print(Text.assemble((method.name, "bold"), f": {method.summary}"))
    owner = "one shared by all silos" if method.model == "shared" else "one per silo"
    common.out_console().print(f"Model it ends with: {owner}.\n")
    rows = []
    for key, default, meaning in describe(method.settings_type):
        value = f"{method.fixed[key]} (fixed)" if key in method.fixed else default
        rows.append((f"{key}={value}", meaning))
    common.print_lines(rows)


def datasets() -> None:
    """List the datasets."""
    from fedmend.data.datasets import DATASETS

    rows = []
    for name, each in DATASETS.items():
        size = "" if each.nodes is None else f" ({each.nodes} nodes, {each.edges} edges)"
        rows.append((name, each.description + size))
    common.print_lines(rows)


def splits() -> None:
    """List the ways to cut a graph into silos."""
    from fedmend.data.partitioners import PARTITIONERS

    rows = []
    for name, each in PARTITIONERS.items():
        options = f" [{', '.join(each.options)}]" if each.options else ""
        rows.append((name, each.description + options))
    common.print_lines(rows)
