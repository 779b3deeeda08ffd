"""`fedmend study NAME`: what one thing does to a method's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmend.cli import common
from fedmend.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import RenderableType


def study(
    name: Annotated[
        str | None, typer.Argument(help="A study; without one, they are listed.")
    ] = None,
    dataset: common.DatasetOption = "cora",
    values: Annotated[
        str | None, typer.Option("--values", help="Other values than the study's, with commas.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Other methods than the study's; the first is the base."),
    ] = None,
    silos: common.SilosOption = None,
    split: Annotated[
        str | None, typer.Option("--split", help="How the graph is cut; default: the study's.")
    ] = None,
    ratio: Annotated[
        str | None, typer.Option("--ratio", help="Shares of train/val/test nodes.")
    ] = None,
    rounds: common.RoundsOption = None,
    seeds: common.SeedsOption = 3,
    seed: common.SeedOption = 0,
    split_seed: common.SplitSeedOption = None,
    set_: common.SetOption = None,
    config: common.ConfigOption = None,
    out: common.OutOption = None,
    evaluation: common.EvaluationOption = None,
    backbone: common.BackboneOption = None,
    device: common.DeviceOption = None,
    reuse: common.ReuseOption = None,
    jobs: common.JobsOption = 1,
    workers: common.WorkersOption = 0,
    threads: common.ThreadsOption = 1,
    checkpoint_every: common.CheckpointOption = 10,
    data_root: common.DataRootOption = None,
    json: common.JsonOption = False,
) -> None:
    """Run a study over several seeds: a table, a plot and files; go on where it was stopped."""
    from fedmend import studies

    if name is None:
        common.print_lines(
            [(each.name, f"{each.summary} ({each.repeats})") for each in studies.STUDIES.values()]
        )
        return
    chosen = studies.find(name)
    points = chosen.points
    if values is not None:
        points = studies.choose_points(chosen, studies.separate(chosen, values))
    if silos is not None and any(point.silos for point in points):
        raise SettingsError(f"study {name} varies the silos: use --values instead of --silos")
    folder = out or common.default_out("study", name, dataset)
    with common.spinner("preparing ..."):
        from fedmend.cli.cells import CellsDisplay, stopping_gently
        from fedmend.reports import studies as reports
        from fedmend.runs.cells import Engine, Outcome
        from fedmend.runs.plan import Source, is_cut
        from fedmend.studies.running import StudyPlan, gather, run_study

        settings = common.gather_settings(
            set_, config, rounds=rounds, backbone=backbone, device=device
        )
        usual = (None, None) if is_cut(dataset) else (chosen.silos, chosen.split)
        source = Source(
            dataset,
            silos or usual[0],
            split or usual[1],
            ratio or chosen.ratio,
            data_root,
            split_seed,
        )
        cut = source.cut()[1]
        plan = StudyPlan(
            chosen,
            source,
            tuple(range(seed, seed + seeds)),
            points,
            tuple(common.names(methods)) if methods else chosen.methods,
            {key.replace("-", "_"): value for key, value in settings.items()},
            evaluation,
        )
        cells = plan.cells()
    title = (
        f"{chosen.summary} ({chosen.repeats}): {dataset}, {cut}, {seeds} seed{'s' * (seeds > 1)}"
    )

    def so_far(records: dict[str, Any]) -> RenderableType:
        return reports.table(title, chosen.varies, gather(plan, Outcome(records)), "...")

    with CellsDisplay(len(cells), so_far) as display:
        telling = display.telling()
        with stopping_gently(display, telling, folder):
            engine = Engine(jobs, workers, threads, checkpoint_every, tuple(reuse or ()))
            entries, failures = run_study(plan, folder, engine, telling)
    succeeded = any(each.seeds for each in entries)
    if succeeded and not reports.plot(title, chosen.varies, entries, folder):
        typer.echo("fedmend: no plot; for one, pip install 'fedmend[plots]'", err=True)
    if json:
        about = [each.as_dict() for each in entries]
        common.print_json(
            {"folder": str(folder), "study": name, "entries": about, "failures": failures}
        )
    else:
        console = common.out_console()
        console.print(reports.table(title, chosen.varies, entries, "failed"))
        console.print(f"Study folder: {folder}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)
