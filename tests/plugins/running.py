"""Running commands in processes in which plugins are installed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SEVERAL = """
import contextlib, io, json, sys
from fedmend.cli.main import main
found = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["fedmend", *command]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""
"""Several commands in one process: importing torch takes longer than most of them."""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        return " ".join(self.out.split())


def process(*command: str, at: Path, plugins: str | None = None, **variables: str) -> Done:
    """A Python process; `plugins`: a folder of packages that are installed for it."""
    environment = {**os.environ, "COLUMNS": "100", **variables}
    if plugins is not None:
        before = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([plugins, *([before] if before else [])])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=at,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def fedmend(*commands: str, at: Path, plugins: str | None = None, **variables: str) -> list[Done]:
    """`fedmend COMMAND` for each of these, in one process."""
    asked = json.dumps([shlex.split(command) for command in commands])
    done = process("-c", SEVERAL, asked, at=at, plugins=plugins, **variables)
    assert done.code == 0, done.err
    return [Done(code or 0, out, err) for code, out, err in json.loads(done.out)]
