"""`fedmend server KIT`: be a federation's server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def server(
    kit: Annotated[Path, typer.Argument(help="The server's kit.")],
    state: common.StateOption = None,
) -> None:
    """Run a federation's server until Ctrl-C or SIGTERM."""
    from fedmend.deploy import need_flare

    need_flare()
    from fedmend.deploy import kits, processes

    read = kits.read_kit(kit, "server")
    processes.serve(read, state or processes.default_state(read), common.status_line)
