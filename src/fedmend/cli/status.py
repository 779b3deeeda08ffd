"""`fedmend status KIT`: who is connected, what runs; of a run's folder, what came of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def status(
    kit: Annotated[
        Path, typer.Argument(help="A submitter's or an observer's kit; or a run's folder.")
    ],
    json: common.JsonOption = False,
) -> None:
    """Ask a federation's server who is connected and what runs."""
    if (kit / "record.json").exists():
        _show_run(kit, json)
        return
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
    for silo, where in found.twice.items():
        console.print(f"The kit of {silo} was used a second time, from {where}.", soft_wrap=True)
    if not found.jobs:
        console.print("No runs yet.")
    for job in found.jobs:
        console.print(f"{job['submitted'][:19]}  {job['name']}  {job['status']}", soft_wrap=True)


def _show_run(folder: Path, json: bool) -> None:
    """A run's record, of whichever party."""
    from fedmend.reports import tables
    from fedmend.runs.record import RECORD, read_record

    record = read_record(folder / RECORD)
    if json:
        common.print_json(record.to_dict())
        return
    console = common.out_console()
    console.print(f"Finished {record.measured.finished}", soft_wrap=True)
    console.print(tables.headline([record]))
    console.print(tables.what_left(record))
