"""What hiding costs HiFGL: seconds, memory and bytes per epoch, with secret sharing on and off.

On and off take turns in one process, one worker, so that whatever else the machine does hits both
alike. Beside wall time stands processor time, which a busy machine distorts less. An epoch is a
whole round: forward and backward pass through the relays, validation, the optimiser's step.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import (
    Measured,
    Options,
    Row,
    available,
    peak_memory_mb,
    root_for,
    working_on,
)
from benchmarks.fresh import in_fresh_process
from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.engines.base import Moment, Watch
from fedmend.runs.train import Result, train

DATASETS = ("cora", "citeseer", "pubmed")
SILOS = 5
HIDDEN = 64
TARGETS = {"cora": 0.06, "citeseer": 0.08, "pubmed": 0.5}
MEMORY_MB = 1000.0
TIMES = 4.0
EVERYBODY: dict[str, Any] = {"min_neighbours": 1, "input_min_neighbours": 1}
RELEASE = {"cora": 0.87, "citeseer": 1.1}
"""Seconds per epoch of the authors' release, in clear, measured earlier on such a machine."""


def hifgl_speed(options: Options) -> Measured:
    """A row per dataset: seconds, processor seconds, memory and bytes per epoch."""
    datasets = options.datasets or (("cora",) if options.quick else DATASETS)
    epochs, turns = (3, 1) if options.quick else (12, 3)
    present = [name for name in datasets if available(name, options.data_root)]
    rows = []
    for dataset in present:
        root = root_for(dataset, options.data_root)
        silos = split(load(dataset, data_root=root, download=False), SILOS, "random", seed=0)
        with working_on(f"{dataset}: secret sharing on and off"):
            row = _row(dataset, silos, epochs, turns)
        with working_on(f"{dataset}: memory"):
            given = {"dataset": dataset, "root": None if root is None else str(root)}
            row["memory_mb"] = in_fresh_process(hifgl_memory, given)["peak_mb"]
        rows.append(row)
    left_out = [f"{name} was not on this machine" for name in datasets if name not in present]
    shown = {
        "silos": SILOS,
        "hidden": HIDDEN,
        "epochs": epochs,
        "turns": turns,
        "targets": {"seconds": TARGETS, "memory_mb": MEMORY_MB, "times": TIMES},
        "release": RELEASE,
    }
    return Measured(rows, shown, left_out)


def _row(dataset: str, silos: Partition, epochs: int, turns: int) -> Row:
    wall: dict[str, list[float]] = {"relay": [], "clear": []}
    processor: dict[str, list[float]] = {"relay": [], "clear": []}
    results: dict[str, Result] = {}
    for _ in range(turns):
        for routing in wall:
            seconds, cpu, results[routing] = _timed(silos, routing, epochs)
            wall[routing] += seconds
            processor[routing] += cpu
    bytes_on = _bytes_per_epoch(results["relay"])
    messages, edges = _messages(silos)
    classes = next(iter(silos.silos.values())).num_classes
    return {
        "dataset": dataset,
        "seconds_on": statistics.median(wall["relay"]),
        "seconds_off": statistics.median(wall["clear"]),
        "quickest_on": min(wall["relay"]),
        "quickest_off": min(wall["clear"]),
        "processor_on": statistics.median(processor["relay"]),
        "processor_off": statistics.median(processor["clear"]),
        "times": statistics.median(processor["relay"]) / statistics.median(processor["clear"]),
        "bytes_on": bytes_on,
        "bytes_off": _bytes_per_epoch(results["clear"]),
        "messages": messages,
        "share_bytes": 2 * messages * 2 * classes * 8,
        "paper_bytes": 2 * edges * 2 * HIDDEN * 8,
        "input_seconds": results["relay"].record.measured.phases["preparation"],
    }


def _timed(silos: Partition, routing: str, epochs: int) -> tuple[list[float], list[float], Result]:
    """Seconds of every epoch but the first, on the clock and of the processor."""
    marks: list[tuple[float, float]] = []

    def on_round(moment: Moment) -> None:
        if moment.phase == "training":
            marks.append((time.perf_counter(), time.process_time()))

    result = train(
        "hifgl",
        silos,
        workers=1,
        rounds=epochs,
        hidden=HIDDEN,
        routing=routing,
        watch=Watch(on_round=on_round),
        **EVERYBODY,
    )
    pairs = list(pairwise(marks))
    return (
        [after[0] - before[0] for before, after in pairs],
        [after[1] - before[1] for before, after in pairs],
        result,
    )


def _bytes_per_epoch(result: Result) -> dict[str, int]:
    """Of the last round, both ways, by kind."""
    last = result.record.settings["rounds"]
    sums: dict[str, int] = {}
    for entry in result.ledger.entries:
        if entry.phase == "training" and entry.round == last:
            sums[entry.kind] = sums.get(entry.kind, 0) + entry.bytes
    return sums


def _messages(silos: Partition) -> tuple[int, int]:
    """Messages of one pass between silos (pairs of a silo and a node), and directed edges."""
    pairs = 0
    for border in silos.borders.values():
        pairs += len(set(zip(border.silos.tolist(), border.rows.tolist(), strict=True)))
    edges = 0 if silos.whole is None else 2 * silos.whole.num_edges
    return pairs, edges


def hifgl_memory(given: dict[str, Any]) -> Row:
    """Load, cut, train with secret sharing; the peak of it all."""
    root = None if given["root"] is None else Path(given["root"])
    silos = split(load(given["dataset"], data_root=root, download=False), SILOS, "random", seed=0)
    train("hifgl", silos, rounds=3, hidden=HIDDEN, **EVERYBODY)
    return {"peak_mb": peak_memory_mb()}
