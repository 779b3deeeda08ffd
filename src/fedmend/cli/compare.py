"""`fedmend compare`: several methods on the same splits and seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmend.cli import common


def compare(
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas; the first is the base.")
    ] = "fedavg,local,global",
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
    """Train several methods on the same silos and show them side by side."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    folder = out or common.default_out("compare", dataset)
    chosen = tuple(range(seed, seed + seeds))
    with common.Display(seeds * len(names)) as display:
        from fedmend import experiments
        from fedmend.reports import tables
        from fedmend.reports.summary import summarise_runs

        settings = common.gather_settings(
            set_, config, rounds=rounds, backbone=backbone, device=device
        )
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
        with common.stopping_gently(display, common.resume_words(folder)):
            found = experiments.compare(names, plan, folder, display.watch)
    if json:
        summaries = [summarise_runs(runs).as_dict() for runs in found.values()]
        common.print_json({"folder": str(folder), "methods": summaries, "runs": found})
        return
    console = common.out_console()
    console.print(tables.comparison(found))
    console.print(f"Run folders: {folder}", soft_wrap=True)
