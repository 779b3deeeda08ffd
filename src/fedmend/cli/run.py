"""`fedmend run METHOD`: train one method, one or more seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmend.cli import common


def run(
    method: Annotated[str, typer.Argument(help="A method (see `fedmend methods`).")],
    dataset: common.DatasetOption = "cora",
    silos: common.SilosOption = None,
    split: common.SplitOption = "louvain",
    ratio: common.RatioOption = "60/20/20",
    rounds: common.RoundsOption = None,
    seeds: common.SeedsOption = 1,
    seed: common.SeedOption = 0,
    split_seed: common.SplitSeedOption = None,
    set_: common.SetOption = None,
    config: common.ConfigOption = None,
    out: common.OutOption = None,
    resume: common.ResumeOption = False,
    evaluation: common.EvaluationOption = None,
    backbone: common.BackboneOption = None,
    device: common.DeviceOption = None,
    workers: common.WorkersOption = 0,
    threads: common.ThreadsOption = 1,
    checkpoint_every: common.CheckpointOption = 10,
    track: common.TrackOption = None,
    data_root: common.DataRootOption = None,
    json: common.JsonOption = False,
) -> None:
    """Train a method on a federation and test it."""
    folder = out or common.default_out(method, dataset)
    chosen = tuple(range(seed, seed + seeds))
    with common.Display(seeds) as display:
        from fedmend import experiments
        from fedmend.reports import tables
        from fedmend.reports.summary import summarise_runs

        settings = common.gather_settings(
            set_, config, rounds=rounds, backbone=backbone, device=device
        )
        experiments.check_settings([method], settings)
        source = experiments.Source(dataset, silos, split, ratio, data_root, split_seed)
        plan = experiments.Plan(
            source,
            chosen,
            settings,
            evaluation,
            resume,
            workers,
            threads,
            checkpoint_every,
            common.sinks(track),
        )
        folders = experiments.seed_folders(folder, chosen, resume)
        with common.stopping_gently(display, common.resume_words(folder)):
            runs = experiments.run_seeds(method, plan, folders, display.watch)
    if seeds > 1:
        experiments.write_summary(folder, {method: runs})
    if json:
        common.print_json({**summarise_runs(runs).as_dict(), "folder": str(folder), "runs": runs})
        return
    console = common.out_console()
    console.print(tables.headline(runs))
    console.print(tables.what_left(runs[0]))
    for sentence in dict.fromkeys(sentence for each in runs for sentence in each["said"]):
        console.print(f"Note: {sentence}")
    console.print(f"Run folder: {folder}", soft_wrap=True)
