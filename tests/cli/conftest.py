"""Running the command as a user does.

`fedmend` calls the command's entry point in this process, with its arguments, folder and
environment: importing torch anew for every line of bad input would take minutes. `process` starts
a process of its own, for what only that can show.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmend.cli.main import main

COMMAND = str(Path(sys.executable).with_name("fedmend"))


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def fedmend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """`fedmend ARGS` in a fresh folder; gives exit code, stdout and stderr."""

    def run(*args: str, env: dict[str, str] | None = None) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedmend", *args])
        monkeypatch.setenv("COLUMNS", "100")
        for key, value in (env or {}).items():
            monkeypatch.setenv(key, value)
        capfd.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        return Done(code if isinstance(code, int) else 1, out, err)

    return run


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Done]:
    """`fedmend ARGS` as a process of its own, in a fresh folder."""

    def run(*args: str, env: dict[str, str] | None = None, **options: object) -> Done:
        done = subprocess.run(
            [COMMAND, *args],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100", **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **options,  # type: ignore[call-overload]  # preexec_fn and the like
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
