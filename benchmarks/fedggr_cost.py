"""What a round of FedGGR costs: seconds and memory, each run in a process of its own.

Its accuracy beside the published is `fedmend bench fedggr-table2`.
"""

from __future__ import annotations

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
    working_on,
)
from benchmarks.fresh import in_fresh_process

# The paper's sizes for PubMed.
PUBMED: dict[str, Any] = {
    "batch_size": 0,
    "fan_out": 0,
    "hidden": 64,
    "lr": 0.03,
    "dropout": 0.0,
    "embedding": 256,
    "neighbours": 30,
    "local_width": 64,
    "global_width": 256,
    "global_hidden": 256,
    "autoencoder_epochs": 20,
}
CSBM: dict[str, Any] = {"autoencoder_epochs": 5}
PRETRAINING = ("autoencoders", "embeddings")
COSTS: tuple[dict[str, Any], ...] = (
    {
        "what": "PubMed, M=5, p=256, k=30",
        "dataset": "pubmed",
        "silos": 5,
        "rounds": 5,
        "settings": PUBMED,
        "target": {"seconds": 2.5, "memory_mb": 1536.0},
    },
    {
        "what": "PubMed, the same, neighbours every 5 rounds",
        "dataset": "pubmed",
        "silos": 5,
        "rounds": 5,
        "settings": {**PUBMED, "refresh": 5},
    },
    {
        "what": "csbm, 200,000 nodes, M=10, p=64, k=15, exact search",
        "dataset": "csbm",
        "silos": 10,
        "rounds": 2,
        "settings": CSBM,
        "target": {"seconds": 60.0, "memory_mb": 6144.0},
    },
    {
        "what": "csbm, the same, by index",
        "dataset": "csbm",
        "silos": 10,
        "rounds": 2,
        "settings": {**CSBM, "search": "index"},
        "target": {"seconds": 60.0, "memory_mb": 6144.0},
    },
)


def fedggr_cost(options: Options) -> Measured:
    """A row per run."""
    rows: list[Row] = []
    left_out = []
    for cost in COSTS[:2] if options.quick else COSTS:
        made_here = cost["dataset"] == "csbm"
        if not made_here and not available(cost["dataset"], options.data_root):
            left_out.append(f"{cost['dataset']} was not on this machine")
            continue
        say(cost["what"])
        root = None if made_here else root_for(cost["dataset"], options.data_root)
        given = {**cost, "root": None if root is None else str(root)}
        rows.append({**cost, **in_fresh_process(timed_rounds, given)})
    return Measured(rows, {"workers": 1, "threads": 2}, left_out)


def timed_rounds(given: dict[str, Any]) -> Row:
    """Seconds of a round, the search after the last one included, and memory of the whole run."""
    if given["dataset"] == "csbm":
        graph = fm.load("csbm", nodes=200_000, degree=10, features=64)
    else:
        graph = fm.load(given["dataset"], data_root=given["root"], download=False)
    partition = fm.split(graph, given["silos"], "random")
    settings = {**given["settings"], "patience": 0, "rounds": given["rounds"]}
    with working_on("  training"):
        result = fm.train("fedggr", partition, workers=1, threads=2, **settings)
    measured = result.record.measured
    return {
        "round_seconds": measured.phases["training"] / given["rounds"],
        "silos_seconds": measured.steps["train_split"] / given["rounds"],
        "pretraining_seconds": sum(measured.phases[name] for name in PRETRAINING),
        "peak_mb": peak_memory_mb(),
    }
