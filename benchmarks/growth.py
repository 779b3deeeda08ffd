"""Seconds and memory from ten thousand to a million nodes; every size in a process of its own."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.common import Measured, Options, Row, peak_memory_mb, say, working_on
from benchmarks.fresh import in_fresh_process

SIZES = (10_000, 100_000, 1_000_000)
DEGREE = 20
FEATURES = 32
SILOS = 10
ROUNDS = 2
MODES: dict[str, dict[str, int]] = {
    "mini-batch": {},
    "full batch": {"batch_size": 0, "fan_out": 0},
}
ROUND_TARGET = {"seconds": 120.0, "memory_mb": 8192.0}
CSBM_TARGET = {"seconds": 30.0, "memory_mb": 4096.0}
TARGETS_AT = 1_000_000


def growth(options: Options) -> Measured:
    """A row per size and mode."""
    sizes = SIZES[:2] if options.quick else SIZES
    rows = []
    for nodes in sizes:
        for mode, settings in MODES.items():
            say(f"{nodes:,} nodes, {mode}")
            given = {"nodes": nodes, "settings": {**settings, **options.settings}}
            rows.append({"mode": mode, **in_fresh_process(measure, given)})
    shown = {
        "degree": DEGREE,
        "features": FEATURES,
        "silos": SILOS,
        "split": "random",
        "method": "fedsage",
        "rounds": int(options.settings.get("rounds", ROUNDS)),
        "modes": MODES,
        "overrides": dict(options.settings),
        "targets": {"at": TARGETS_AT, "round": ROUND_TARGET, "csbm": CSBM_TARGET},
    }
    return Measured(rows, shown)


def measure(given: dict[str, Any]) -> Row:
    """One size: generate, cut, train, test. Peaks are since the start of the process."""
    import fedmend as fm

    nodes: int = given["nodes"]
    # A tiny run first: what torch imports when it is first used is not growth.
    fm.train("fedsage", fm.split(fm.load("csbm", nodes=200), 2, "random"), rounds=1)
    base = peak_memory_mb()
    started = time.perf_counter()
    with working_on("  generating"):
        graph = fm.load("csbm", nodes=nodes, degree=DEGREE, features=FEATURES)
    generated = time.perf_counter()
    generated_mb = peak_memory_mb()
    with working_on("  cutting"):
        silos = fm.split(graph, SILOS, "random")
    cut = time.perf_counter()
    with working_on("  training and testing"):
        # Workers as a user has them: one per core.
        result = fm.train("fedsage", silos, **{"rounds": ROUNDS, **given["settings"]})
    phases = result.record.measured.phases
    rounds = result.record.settings["rounds"]
    return {
        "nodes": nodes,
        "edges": graph.num_edges,
        "edges_in_silos": sum(silo.num_edges for silo in silos.silos.values()),
        "import_mb": base,
        "generate_seconds": generated - started,
        "generate_mb": generated_mb,
        "cut_seconds": cut - generated,
        "set_up_seconds": phases["set-up"],
        "round_seconds": phases["training"] / rounds,
        "evaluation_seconds": phases["evaluation"],
        "total_seconds": time.perf_counter() - started,
        "peak_mb": peak_memory_mb(),
        "workers": result.record.measured.workers,
        "accuracy": result.accuracy,
    }
