"""`fedmend status KIT`: who is connected, what runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def status(
    kit: Annotated[Path, typer.Argument(help="A submitter's or an observer's kit.")],
    json: common.JsonOption = False,
) -> None:
    """Ask a federation's server who is connected and what runs."""
    from fedmend.deploy import need_flare

    need_flare()
    from fedmend.deploy import kits, session

    read = kits.read_kit(kit, "submitter", "observer")
    with common.spinner(f"Asking {read.address} ..."):
        found = session.status(read)
    if json:
        common.print_json(asdict(found))
        return
    console = common.out_console()
    console.print(f"Server {found.server}", soft_wrap=True)
    console.print(f"Connected silos: {', '.join(found.silos) or 'none'}", soft_wrap=True)
    if not found.jobs:
        console.print("No runs yet.")
    for job in found.jobs:
        console.print(f"{job['submitted'][:19]}  {job['name']}  {job['status']}", soft_wrap=True)
