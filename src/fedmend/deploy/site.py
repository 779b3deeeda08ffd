"""FLARE's programs of a party, behind our doors.

    python -m fedmend.deploy.site server|client WORKSPACE KEY=VALUE ...
    python -m fedmend.deploy.site server-run|silo-run ARGUMENTS OF FLARE'S

The first is the long-running one, a child of `fedmend server` or `fedmend silo`; it starts the
second for each job.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from fedmend.deploy import doors
from fedmend.deploy.job import MODULES, end_with_parent


def main(kind: str, *options: str) -> int:
    """Run FLARE's program until it ends; it ends with the process that started it."""
    end_with_parent()
    name, config = MODULES[kind]
    if config:
        workspace, *settings = options
        options = ("-m", workspace, "-s", config, "--set", *settings)
    sys.argv = [name, *options]
    program = importlib.import_module(name)
    arguments = program.parse_arguments()
    root = Path(arguments.workspace)
    doors.install(root.parent)
    folder = root if config else root / arguments.job_id
    return int(program.mpm.run(main_func=program.main, run_dir=str(folder), args=arguments) or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
