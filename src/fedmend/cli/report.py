"""`fedmend report RUN...`: runs as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that hold several runs.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="A folder for the charts as PNG and SVG.")
    ] = None,
    data_root: common.DataRootOption = None,
) -> None:
    """Write one HTML file about one or more runs: it opens offline and sends nothing."""
    with common.spinner("reading runs ..."):
        from fedmend.reports import page, views
        from fedmend.runs.retrace import Retracer

        found = views.read_views(views.find_runs(runs))
        retrace = Retracer(data_root)
        for view in sorted(found, key=lambda each: each.hash):
            view.retraced = retrace(view.saved)
    with common.spinner("putting the page together (the first time takes longer) ..."):
        text, specs = page.build(found)
        page.write(out, text)
    if figures is not None:
        with common.spinner("drawing figures ..."):
            drawn = page.write_figures(figures, found, specs)
        typer.echo(f"{len(drawn)} figures in {figures}")
    typer.echo(f"{out}: {len(found)} runs, {len(text.encode()) / 1e6:.1f} MB")
