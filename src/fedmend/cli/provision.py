"""`fedmend provision OUT`: a start-up kit for every party of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def provision(
    out: Annotated[Path, typer.Argument(help="Folder for the kits; keep it to yourself.")],
    server: Annotated[
        str, typer.Option("--server", help="Where silos reach the server: HOST[:PORT].")
    ],
    silos: Annotated[str, typer.Option("--silos", help="Names, separated by commas.")],
    days: Annotated[
        int, typer.Option("--days", help="How many days new certificates are valid.")
    ] = 365,
    json: common.JsonOption = False,
) -> None:
    """Make certificates and kits for a server and its silos; again, to add silos."""
    from fedmend.deploy import need_flare

    need_flare()
    from fedmend.deploy import kits

    with common.spinner("Making keys ..."):
        done = kits.provision(out, server, silos.split(","), valid_days=days)
    if json:
        common.print_json(kits.described(done))
        return
    console = common.out_console()
    if done.made:
        console.print(f"New kits in {out}: {', '.join(done.made)}.", soft_wrap=True)
    if done.kept:
        console.print(f"Kept as they were: {', '.join(done.kept)}.", soft_wrap=True)
    if done.remark:
        console.print(done.remark, soft_wrap=True)
    console.print(f"The first certificate expires on {done.expires:%Y-%m-%d}.")
    console.print(f"{out}/authority signs for everybody: keep it, and give it to nobody.")
    console.print("Hand every party its own folder over a safe channel, then:")
    silo = next(name for name in (*done.made, *done.kept) if name not in kits.RESERVED)
    for line in (
        f"fedmend server {out}/server",
        f"fedmend silo {out}/{silo} --graph DIR",
        f"fedmend status {out}/observer",
        f"fedmend submit {out}/submitter fedavg --rounds 50 --out runs/first",
    ):
        console.print(f"  {line}", soft_wrap=True)
