"""Two source trees in turns: every method's whole runs before a change and after it.

`--before PATH` is a checkout of the state to compare with; without it the tree is compared with
itself, which tells how far to trust the figures on this machine. Each run is a process of its own
whose PYTHONPATH starts with one tree's `src`; both trees take turns, so that a busy moment hits
both. Only what both trees have had all along is called: `fedmend run` and its settings.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY, Measured, Options, Row, say, working_on
from fedmend.errors import SettingsError

ALLOWED = 1.03
"""A change may cost so much, in processor time of a round and in peak memory."""

FULL_BATCH = "--set batch_size=0 --set fan_out=0"
GENERATORS = "--set generator_epochs=10 --set generator_rounds=2"

COMMANDS = {
    "FedAvg, Cora": "fedavg --rounds 60",
    "FedAvg, csbm": "fedavg --dataset csbm --rounds 60",
    "FedAvg, Cora, full batch": f"fedavg --rounds 200 {FULL_BATCH}",
    "Global, Cora": "global --rounds 30",
    "Local, Cora": "local --rounds 20",
    "FedProx, Cora": "fedprox --rounds 40",
    "FedPer, Cora": "fedper --rounds 40",
    "Oracle, Cora": "oracle --rounds 40",
    "Local+, Cora": "local+ --rounds 10 --set generator_epochs=10",
    "FedSage+, Cora": f"fedsage+ --rounds 20 {GENERATORS}",
    "FedDEP, Cora": "feddep --rounds 20 --set encoder_epochs=3 --set generator_epochs=10",
    "FedGGR, Cora": "fedggr --rounds 8",
    "HiFGL, Cora": "hifgl --rounds 40",
}

MAIN = """
import json, os, sys
from fedmend.cli.main import app
from pathlib import Path
import fedmend
app(sys.argv[1:], standalone_mode=False)
took = os.times()
peak = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM:")]
print(json.dumps({
    "cpu": took.user + took.system,
    "mb": float(peak[0].split()[1]) / 1024.0,
    "tree": str(Path(fedmend.__file__).resolve().parents[2]),
}))
"""
"""What runs in either tree; it must know nothing that only one of them has."""


def before_after(options: Options) -> Measured:
    """A row per command: processor seconds, wall seconds and memory, and the ratios of both."""
    before = (options.before or REPOSITORY).resolve()
    if not (before / "src" / "fedmend").is_dir():
        raise SettingsError(f"--before {before} has no src/fedmend: give a checkout of the project")
    turns = 1 if options.quick else 5
    chosen = dict(list(COMMANDS.items())[:2]) if options.quick else COMMANDS
    rows: list[Row] = []
    for what, command in chosen.items():
        with working_on(what):
            found = in_turns(command.split(), (before, REPOSITORY), turns)
        row: Row = {"what": what, "command": f"fedmend run {command}"}
        for kind in ("cpu", "wall", "mb"):
            row[kind] = [statistics.median(each[kind] for each in runs) for runs in found]
            row[f"{kind}_x"] = statistics.median(
                after[kind] / earlier[kind] for earlier, after in zip(*found, strict=True)
            )
        rows.append(row)
        say(f"{what}: processor time x {row['cpu_x']:.3f}, memory x {row['mb_x']:.3f}")
    return Measured(rows, {"turns": turns, "before": _commit(before), "allowed": ALLOWED})


def in_turns(words: Sequence[str], trees: Sequence[Path], turns: int) -> list[list[Any]]:
    """For each tree, what the command took in each turn; who goes first changes every turn."""
    found: dict[Path, list[Any]] = {tree: [] for tree in trees}
    for turn in range(turns):
        for tree in trees if turn % 2 == 0 else reversed(trees):
            found[tree].append(_run(words, tree))
    return list(found.values())


def _run(words: Sequence[str], tree: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        asked = [sys.executable, "-c", MAIN, "run", *words]
        asked += ["--workers", "1", "--out", str(Path(folder) / "run")]
        started = time.perf_counter()
        answer = subprocess.run(
            asked,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        took: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    if Path(took["tree"]) != tree:
        raise SettingsError(f"the run took fedmend from {took['tree']} in place of {tree}")
    return {**took, "wall": time.perf_counter() - started}


def _commit(tree: Path) -> str:
    asked = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
