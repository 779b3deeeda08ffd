"""`fedmend run METHOD`: train one method, one or more seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmend.cli import common
from fedmend.cli.training_options import TrainingOptions, with_training_options


@with_training_options
def run(
    method: Annotated[str, typer.Argument(help="A method (see `fedmend methods`).")],
    *,
    options: TrainingOptions,
) -> None:
    """Train a method on a federation and test it."""
    folder = options.folder(method)
    with common.Display(options.seeds) as display:
        from fedmend.files import plain
        from fedmend.reports import tables
        from fedmend.reports.summary import summarise_runs
        from fedmend.runs import plan as plans

        plan = options.plan()
        plans.check_settings([method], plan.settings)
        folders = plans.seed_folders(folder, plan.seeds, options.resume)
        with common.stopping_gently(display, common.resume_words(folder)):
            runs = plans.run_seeds(method, plan, folders, display.watch)
    if options.seeds > 1:
        plans.write_summary(folder, {method: runs})
    if options.json:
        common.print_json(
            {**summarise_runs(runs).as_dict(), "folder": str(folder), "runs": plain(runs)}
        )
        return
    console = common.out_console()
    console.print(tables.headline(runs))
    console.print(tables.what_left(runs[0]))
    for sentence in dict.fromkeys(sentence for each in runs for sentence in each.said):
        console.print(f"Note: {sentence}")
    console.print(f"Run folder: {folder}", soft_wrap=True)
