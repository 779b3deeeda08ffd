"""`fedmend compare`: several methods on the same splits and seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmend.cli import common
from fedmend.cli.training_options import TrainingOptions, with_training_options


@with_training_options
def compare(
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas; the first is the base.")
    ] = "fedavg,local,global",
    *,
    options: TrainingOptions,
) -> None:
    """Train several methods on the same silos and show them side by side."""
    names = common.names(methods)
    folder = options.folder("compare")
    with common.Display(options.seeds * len(names)) as display:
        from fedmend.files import plain
        from fedmend.reports import tables
        from fedmend.reports.summary import summarise_runs
        from fedmend.runs import plan as plans

        plan = options.plan()
        with common.stopping_gently(display, common.resume_words(folder)):
            found = plans.compare(names, plan, folder, display.watch)
    if options.json:
        summaries = [summarise_runs(runs).as_dict() for runs in found.values()]
        common.print_json({"folder": str(folder), "methods": summaries, "runs": plain(found)})
        return
    console = common.out_console()
    console.print(tables.comparison(found))
    console.print(f"Run folders: {folder}", soft_wrap=True)
