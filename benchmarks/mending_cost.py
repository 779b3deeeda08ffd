"""Seconds, memory and bytes of FedSage+ and FedDEP, by phase.

Time and memory: each run in a process of its own, with two silos side by side. Bytes: from the
ledger of a short run, since every round of a phase costs the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedmend as fm
from benchmarks.common import (
    Measured,
    Options,
    Row,
    available,
    peak_memory_mb,
    root_for,
    say,
)
from benchmarks.fresh import in_fresh_process
from fedmend import methods

SILOS = 5
# FedSage+ as OpenFGL was measured: 10 generator rounds, 90 classifier rounds.
RUNS: tuple[dict[str, Any], ...] = (
    {
        "what": "FedSage+, Cora, M=5, 10 exchanges, 90 rounds",
        "method": "fedsage+",
        "dataset": "cora",
        "silos": 5,
        "settings": {"generator_rounds": 10, "rounds": 90},
        "target": "60 s, 2000 MB in all",
    },
    {
        "what": "FedAvg, PubMed, M=5, 20 rounds",
        "method": "fedavg",
        "dataset": "pubmed",
        "silos": 5,
        "settings": {"rounds": 20},
        "target": "",
    },
    {
        "what": "FedDEP, PubMed, M=5, 20 rounds",
        "method": "feddep",
        "dataset": "pubmed",
        "silos": 5,
        "settings": {"rounds": 20, "embedding": 256},
        "target": "training 1.3 x FedAvg's",
    },
    {
        "what": "FedDEP's generators, PubMed, M=10",
        "method": "feddep",
        "dataset": "pubmed",
        "silos": 10,
        "settings": {"rounds": 1, "embedding": 256},
        "target": "generators 20 s, 1500 MB",
    },
)
COMMUNICATION = ("fedavg", "fedsage+", "feddep-no-proto", "feddep")
FORMULAS = {
    ("fedsage+", "generator exchange"): "O(M (|θ| + h)) a round and node batch",
    ("feddep-no-proto", "generator exchange"): "O(M n d_z) a round and node",
    ("feddep", "prototypes"): "C d_z up a silo",
    ("feddep", "generators"): "M C d_z down a silo",
}


def mending_cost(options: Options) -> Measured:
    """A row per run, and a row per method and phase."""
    rows: list[Row] = []
    for run in RUNS:
        if not available(run["dataset"], options.data_root):
            continue
        say(run["what"])
        root = root_for(run["dataset"], options.data_root)
        asked = {**run, "root": None if root is None else str(root)}
        if options.quick:
            asked["settings"] = {**run["settings"], "rounds": 2}
        rows.append({"kind": "run", **run, **in_fresh_process(timed_run, asked)})
    for row in rows:
        row["verdict"] = verdict(row, rows)
    rows += [each for method in COMMUNICATION for each in _bytes(method)]
    return Measured(rows, {"workers": 2})


def timed_run(asked: dict[str, Any]) -> Row:
    """One run; its seconds by phase and its peak memory."""
    graph = fm.load(asked["dataset"], data_root=asked["root"], download=False)
    silos = fm.split(graph, asked["silos"], "louvain")
    result = fm.train(asked["method"], silos, workers=2, **asked["settings"])
    measured = result.record.measured
    return {
        "seconds": measured.seconds,
        "phases": measured.phases,
        "peak_mb": peak_memory_mb(),
    }


def verdict(row: Row, rows: list[Row]) -> str:
    """Whether a run's target is met."""
    phases: Mapping[str, float] = row["phases"]
    if row["method"] == "fedsage+":
        good = row["seconds"] <= 60 and row["peak_mb"] <= 2000
    elif row["method"] == "feddep" and row["silos"] == 5:
        base = next(each for each in rows if each["method"] == "fedavg")["phases"]["training"]
        return f"{phases['training'] / base:.2f} x"
    elif row["method"] == "feddep":
        good = phases["generators"] <= 20 and row["peak_mb"] <= 1500
    else:
        return ""
    return "met" if good else "**not met**"


def _bytes(method: str) -> list[Row]:
    """What a method's phases move on Cora, per round where a phase has several."""
    short = {"rounds": 1, "generator_epochs": 1, "generator_rounds": 1}
    known = methods.find(method).settings_type.__dataclass_fields__
    settings: dict[str, Any] = {key: value for key, value in short.items() if key in known}
    result = fm.train(method, fm.split(fm.load("cora"), SILOS, "louvain"), **settings)
    moved = result.ledger.by("phase", "direction")
    phases = dict.fromkeys(phase for phase, _ in moved if not phase.startswith("after"))
    return [
        {
            "kind": "bytes",
            "method": method,
            "phase": phase,
            "up": moved.get((phase, "up"), 0),
            "down": moved.get((phase, "down"), 0),
            "formula": FORMULAS.get((method, phase), ""),
        }
        for phase in phases
    ]
