"""`fedmend methods|backbones|datasets|splits|metrics`: what there is, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmend.cli import common

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedmend.plugins.registry import Registry


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's settings.")] = None,
) -> None:
    """List the methods, or the settings of one."""
    from fedmend.methods import METHODS, find

    if name is None:
        _list(METHODS, lambda each: each.summary)
        return
    from rich.table import Table
    from rich.text import Text

    from fedmend.config import describe

    method = find(name)
    console = common.out_console()
    console.print(Text.assemble((method.name, "bold"), f": {method.summary}"))
    owner = "one shared by all silos" if method.model == "shared" else "one per silo"
    console.print(f"Model it ends with: {owner}.")
    plugin = METHODS.plugin_of(name)
    if plugin is not None:
        console.print(f"Comes from the plugin {plugin}.")
    console.print()
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(each, style="dim") for each in ("setting", "allowed", "paper's", "")))
    for each in describe(method.settings_type, method.paper):
        fixed = f"{method.fixed[each.name]} (fixed)" if each.name in method.fixed else each.default
        named = Text(f"{each.name}={fixed}", style="bold")
        table.add_row(named, each.allowed, each.paper, each.help)
    console.print(table)


def backbones() -> None:
    """List the networks."""
    from fedmend.models.backbones import BACKBONES

    _list(BACKBONES, lambda each: each.description)


def metrics() -> None:
    """List the metrics."""
    from fedmend.evaluation.metrics import METRICS
    from fedmend.plugins.registry import first_line

    _list(METRICS, lambda each: first_line(type(each)))


def datasets() -> None:
    """List the datasets."""
    from fedmend.data.datasets import DATASETS, Dataset

    def line(each: Dataset) -> str:
        size = "" if each.nodes is None else f" ({each.nodes} nodes, {each.edges} edges)"
        return each.description + size

    _list(DATASETS, line)


def splits() -> None:
    """List the ways to cut a graph into silos."""
    from fedmend.data.partitioners import PARTITIONERS, Partitioner

    def line(each: Partitioner) -> str:
        return each.description + (f" [{', '.join(each.options)}]" if each.options else "")

    _list(PARTITIONERS, line)


def _list(registry: Registry[Any], line: Callable[[Any], str]) -> None:
    """A line each, and a remark on what a plugin offers and cannot be used."""
    usable, remarks = registry.listed()
    whose = {name: registry.plugin_of(name) for name in usable}
    common.print_lines(
        [
            (name, line(each) + (f" (plugin {whose[name]})" if whose[name] else ""))
            for name, each in usable.items()
        ]
    )
    for remark in remarks:
        typer.echo(f"fedmend: {' '.join(remark.split())}", err=True)
