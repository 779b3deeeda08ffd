"""`fedmend submit KIT METHOD`: have a deployed federation train a method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def submit(
    kit: Annotated[Path, typer.Argument(help="A submitter's kit.")],
    method: Annotated[str, typer.Argument(help="A method (see `fedmend methods`).")],
    rounds: common.RoundsOption = None,
    seed: common.SeedOption = 0,
    silos: Annotated[
        str | None,
        typer.Option("--silos", help="Who must take part, by commas; all connected if left out."),
    ] = None,
    set_: common.SetOption = None,
    config: common.ConfigOption = None,
    out: common.OutOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run that left this folder.")
    ] = None,
    backbone: common.BackboneOption = None,
    threads: common.ThreadsOption = 1,
    checkpoint_every: common.CheckpointOption = 10,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0.1, help="Seconds a silo may take for a step."),
    ] = None,
    answer_within: Annotated[
        float,
        typer.Option(
            "--answer-within", min=3, help="Seconds without a sign of life that lose a silo."
        ),
    ] = 8.0,
    largest_message: Annotated[
        int, typer.Option("--largest-message", min=1024, help="Bytes a reply may have.")
    ] = 2**30,
    json: common.JsonOption = False,
) -> None:
    """Train a method on a deployed federation; every silo tests it on its own nodes."""
    from fedmend.deploy import need_flare
    from fedmend.errors import SettingsError

    need_flare()
    if resume is not None and out is not None and out != resume:
        raise SettingsError("--resume RUN goes on in RUN itself: leave --out away")
    folder = resume or out or common.default_out(method, "deployed")
    with common.Display(1) as display:
        from fedmend.deploy import kits, submission
        from fedmend.reports import tables
        from fedmend.reports.summary import summarise_runs
        from fedmend.runs import plan as plans

        read = kits.read_kit(kit, "submitter", "observer")
        settings = common.gather_settings(set_, config, rounds=rounds, backbone=backbone)
        plans.check_settings([method], settings)
        with common.stopping_gently(
            display, f"go on with the same command and --resume {folder} instead of --out"
        ):
            record = submission.submit(
                read,
                method,
                settings,
                folder,
                display.watch(method, seed),
                silos=None if silos is None else [name.strip() for name in silos.split(",")],
                resume=resume is not None,
                seed=seed,
                threads=threads,
                checkpoint_every=checkpoint_every,
                timeout=timeout,
                answer_within=answer_within,
                largest_message=largest_message,
            )
    if json:
        summary = summarise_runs([record]).as_dict()
        common.print_json({**summary, "folder": str(folder), "runs": [record.to_dict()]})
        return
    console = common.out_console()
    console.print(tables.headline([record]))
    console.print(tables.what_left(record))
    for sentence in record.said:
        console.print(f"Note: {sentence}")
    if record.silos_with_own_model:
        console.print("Every silo keeps its own model, in its state folder.")
    console.print(f"Run folder: {folder}", soft_wrap=True)
