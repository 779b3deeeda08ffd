"""`fedmend rehearse METHOD`: a whole deployment on this machine, compared with `fedmend run`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def rehearse(
    method: Annotated[str, typer.Argument(help="A method (see `fedmend methods`).")],
    dataset: common.DatasetOption = "cora",
    silos: Annotated[
        int | None, typer.Option("--silos", min=1, help="Number of silos; 3 if left out.")
    ] = None,
    split: common.SplitOption = None,
    ratio: common.RatioOption = "60/20/20",
    rounds: common.RoundsOption = 10,
    seed: common.SeedOption = 0,
    set_: common.SetOption = None,
    config: common.ConfigOption = None,
    backbone: common.BackboneOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Keep kits, states and run here; else nothing.")
    ] = None,
    data_root: common.DataRootOption = None,
    json: common.JsonOption = False,
) -> None:
    """Server and silos as processes over loopback with fresh kits; is the result the same?"""
    from fedmend.deploy import need_flare

    need_flare()
    with common.Display(1) as display:
        from fedmend.deploy import rehearsal
        from fedmend.runs import plan as plans

        settings = common.gather_settings(set_, config, rounds=rounds, backbone=backbone)
        plans.check_settings([method], settings)
        few = None if plans.is_cut(dataset) else 3
        source = plans.Source(dataset, silos or few, split, ratio, data_root)
        with common.stopping_gently(display, "nothing is kept of a rehearsal"):
            found = rehearsal.rehearse(
                method,
                source.partition(seed),
                settings,
                display.watch(method, seed),
                seed=seed,
                folder=out,
            )
    if json:
        common.print_json(asdict(found))
    else:
        console = common.out_console()
        for line in found.lines():  # fedmend's own words and figures, some of them in colour
            console.print(line, markup=True, soft_wrap=True)
    if not found.same:
        raise typer.Exit(1)
