"""The same figures laid out for wide and narrow terminals; no name or figure is ever cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ROOMY = 10_000
"""Columns of a console on which every table has the width it would like."""

Row = Sequence[str | Text]


@dataclass(frozen=True)
class FirstThatFits:
    """The same figures in several layouts; drawn is the first that the console has room for."""

    layouts: Sequence[Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        roomy = options.update(max_width=_ROOMY)
        for table in self.layouts[:-1]:
            if Measurement.get(console, roomy, table).maximum <= options.max_width:
                yield table
                return
        yield self.layouts[-1]


def figures_table(
    heads: Sequence[str],
    rows: Sequence[Row] = (),
    *,
    title: str | None = None,
    caption: str | None = None,
    lines: box.Box = box.HEAVY_HEAD,
    tight: bool = False,
) -> Table:
    """A table of names and figures; folded where nothing else helps, but never cut short.

    tight: heads a word to a line, columns close together.
    """
    table = Table(title=title, title_justify="left", title_style="bold", caption=caption, box=lines)
    if tight:
        table.padding = 0
        heads = [head.replace(" ", "\n") for head in heads]
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def one_below_the_other(
    heads: Sequence[str],
    rows: Sequence[Row],
    *,
    title: str | None = None,
    caption: str | None = None,
    lines: box.Box = box.HEAVY_HEAD,
) -> Table:
    """A row's figures below its name, each with its head: the layout that needs least room."""
    table = figures_table((heads[0], ""), title=title, caption=caption, lines=lines)
    for name, *figures in rows:
        table.add_row(name, "")
        for head, text in zip(heads[1:], figures, strict=True):
            if text:
                table.add_row(f"  {head}", text)
        table.add_section()
    return table


def across_or_below(
    heads: Sequence[str],
    rows: Sequence[Row],
    *,
    title: str | None = None,
    lines: box.Box = box.HEAVY_HEAD,
) -> FirstThatFits:
    """A row's figures beside its name or, where that is too wide, below it."""
    return FirstThatFits(
        [
            figures_table(heads, rows, title=title, lines=lines),
            figures_table(heads, rows, title=title, lines=lines, tight=True),
            one_below_the_other(heads, rows, title=title, lines=lines),
        ]
    )
