"""`fedmend silo KIT --graph DIR`: be a silo of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def silo(
    kit: Annotated[Path, typer.Argument(help="This silo's kit.")],
    graph: Annotated[Path, typer.Option("--graph", help="The folder with this silo's graph.")],
    state: common.StateOption = None,
) -> None:
    """Take part in a federation with one's own graph until Ctrl-C or SIGTERM."""
    from fedmend.deploy import need_flare

    need_flare()
    from fedmend.deploy import kits, processes

    read = kits.read_kit(kit, "silo")
    processes.be_silo(read, graph, state or processes.default_state(read), common.status_line)
