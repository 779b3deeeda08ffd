"""FLARE's own long-running program of a party, as a child of `fedmend server` or `fedmend silo`.

python -m fedmend.deploy.site server|client WORKSPACE KEY=VALUE ...
"""

from __future__ import annotations

import importlib
import sys

from fedmend.deploy.job import end_with_parent

MODULES = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "client": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}


def main(kind: str, workspace: str, *options: str) -> int:
    """Run FLARE's program until it ends; it ends with the process that started it."""
    end_with_parent()
    name, config = MODULES[kind]
    sys.argv = [name, "-m", workspace, "-s", config, "--set", *options]
    program = importlib.import_module(name)
    code = program.mpm.run(
        main_func=program.main, run_dir=workspace, args=program.parse_arguments()
    )
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
