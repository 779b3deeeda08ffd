"""Whole commands with each kernel and without it, in turns.

Every line is a `fedmend run` in a process of its own, one thread; the variants of a command follow
each other within a turn. Processor time (user and system) decides, because the machine may have
other work; what a kernel wins is the median of the turns' ratios.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import (
    Measured,
    Options,
    Row,
    available,
    peak_memory_mb,
    root_for,
    say,
    working_on,
)
from benchmarks.fresh import in_fresh_process
from fedmend.models.kernels import KERNELS

FULL_BATCH = "--set batch_size=0 --set fan_out=0"

COMMANDS: dict[str, str] = {
    "FedAvg, Cora": "fedavg --rounds 60",
    "FedAvg, Cora, full batch": f"fedavg --rounds 200 {FULL_BATCH}",
    "FedAvg, Cora, GCN, full batch": f"fedavg --rounds 200 --backbone gcn {FULL_BATCH}",
    "FedAvg, csbm": "fedavg --dataset csbm --rounds 60",
    "FedAvg, PubMed": "fedavg --dataset pubmed --rounds 30",
    "FedSage+, Cora": "fedsage+ --rounds 30 --set generator_epochs=20 --set generator_rounds=3",
    "FedSage+, CiteSeer": "fedsage+ --dataset citeseer --rounds 30",
    "FedDEP, PubMed": "feddep --dataset pubmed --rounds 10 --set encoder_epochs=3"
    " --set generator_epochs=10",
    "HiFGL, Cora": "hifgl --rounds 60",
    "FedGGR, Cora": "fedggr --rounds 12",
    "Local, Cora, full batch": f"local --rounds 200 {FULL_BATCH}",
}
"""Short ones of every kind: what a run does most, often enough to outweigh the start."""

ALL = "all"
"""In place of a kernel's name: every kernel left out."""


def kernels(options: Options) -> Measured:
    """Rows of one command and one kernel each; kernel "" is the command as it is."""
    turns = 1 if options.quick else 5
    rows: list[Row] = []
    chosen = dict(list(COMMANDS.items())[:2]) if options.quick else COMMANDS
    for what, command in chosen.items():
        words = command.split()
        dataset = words[words.index("--dataset") + 1] if "--dataset" in words else "cora"
        if options.datasets is not None and dataset not in options.datasets:
            continue
        if dataset != "csbm" and not available(dataset, options.data_root):
            continue
        root = root_for(dataset, options.data_root)
        if root is not None:
            words += ["--data-root", str(root)]
        left_out = [[], *([name] for name in KERNELS), list(KERNELS)]
        with working_on(what):
            found = in_turns(words, left_out, turns)
        for names, runs in zip(left_out, found, strict=True):
            row = {
                "what": what,
                "command": f"fedmend run {command}",
                "without": ALL if len(names) == len(KERNELS) else "".join(names),
                "cpu": statistics.median([each["cpu"] for each in runs]),
                **{f"{kind}_x": _times(runs, found[0], kind) for kind in ("cpu", "wall")},
                "turns": turns,
                "mb": statistics.median([each["mb"] for each in runs]),
            }
            rows.append(row)
            say(str({key: row[key] for key in ("without", "cpu", "cpu_x", "wall_x", "mb")}))
    return Measured(rows, {"turns": turns})


def in_turns(words: Sequence[str], left_out: Sequence[list[str]], turns: int) -> list[list[Any]]:
    """For each list of kernels to leave out, what its run took in each turn."""
    found: list[list[Any]] = [[] for _ in left_out]
    for _ in range(turns):
        for names, runs in zip(left_out, found, strict=True):
            started = time.perf_counter()
            took = in_fresh_process(whole_command, {"words": list(words), "plain": names})
            runs.append({**took, "wall": time.perf_counter() - started})
    return found


def whole_command(given: dict[str, Any]) -> dict[str, float]:
    """Run `fedmend run` in this process; its processor seconds and peak memory."""
    from contextlib import nullcontext

    from fedmend.cli.main import app
    from fedmend.models.kernels import plain

    left_out = plain(*given["plain"]) if given["plain"] else nullcontext()
    with tempfile.TemporaryDirectory() as folder, left_out:
        out = ["--workers", "1", "--out", str(Path(folder) / "run")]
        app(["run", *given["words"], *out], standalone_mode=False)
    took = os.times()
    return {"cpu": took.user + took.system, "mb": peak_memory_mb()}


def _times(runs: Sequence[Any], usual: Sequence[Any], kind: str) -> float:
    ratios: list[float] = [one[kind] / other[kind] for one, other in zip(runs, usual, strict=True)]
    return statistics.median(ratios)
