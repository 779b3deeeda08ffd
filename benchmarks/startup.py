"""How quickly the command line answers."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Measured, Options, Row, working_on

HELP_TARGET = 0.5
"""Seconds in which `fedmend --help` answers."""


def startup(options: Options) -> Measured:
    """Median wall time of new processes, after one that is not counted."""
    repeats = 3 if options.quick else 10
    command = str(Path(sys.executable).parent / "fedmend")
    asked: Sequence[tuple[str, list[str], float | None]] = (
        ("python -c pass", [sys.executable, "-c", "pass"], None),
        ("import fedmend", [sys.executable, "-c", "import fedmend"], None),
        ("fedmend --help", [command, "--help"], HELP_TARGET),
        ("fedmend methods", [command, "methods"], None),
        ("fedmend run --help", [command, "run", "--help"], None),
    )
    with working_on("start-up"):
        rows = [_timed(name, argv, target, repeats) for name, argv, target in asked]
    return Measured(rows, {"repeats": repeats})


def _timed(name: str, argv: list[str], target: float | None, repeats: int) -> Row:
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    return {"what": name, "seconds": median, "slowest": max(seconds[1:]), "target": target}
