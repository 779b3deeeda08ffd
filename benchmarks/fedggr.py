"""FedGGR: table 2 of its paper beside FedAvg of three backbones, and what a round costs.

Random silos, 60/20/20, each silo's test nodes on its own graph, full batches, training that ends
early. The sizes and step sizes of each dataset are those of the paper's runs, the same for FedAvg.
Cells are kept as they finish. Costs are measured in a process of its own each, with two threads.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import fedmend as fm
from benchmarks.accuracy import best_validation, code_fingerprint
from benchmarks.common import (
    CACHE,
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
from fedmend.data.partition import Partition
from fedmend.evaluation.metrics import summarise
from fedmend.files import read_json, write_json

DATASETS = ("cora", "citeseer", "pubmed")
SILOS = (3, 5, 10)
SEEDS = 5
FEDAVG = ("fedavg-gcn", "fedavg-gat", "fedavg-sage")
METHODS = (*FEDAVG, "fedggr")
TRAINING: dict[str, Any] = {"rounds": 200, "patience": 40, "batch_size": 0, "fan_out": 0}
PAPER: dict[str, dict[str, Any]] = {
    "cora": {"hidden": 256, "lr": 0.01, "dropout": 0.5},
    "citeseer": {"hidden": 64, "lr": 0.001, "dropout": 0.5, "local_epochs": 2},
    "pubmed": {"hidden": 64, "lr": 0.03, "dropout": 0.0},
}
"""What the paper's runs trained all silos with."""
GLOBAL: dict[str, dict[str, Any]] = {
    "cora": {"embedding": 64, "neighbours": 15, "local_width": 256, "global": 256},
    "citeseer": {"embedding": 64, "neighbours": 15, "local_width": 64, "global": 64},
    "pubmed": {"embedding": 256, "neighbours": 30, "local_width": 64, "global": 256},
}
"""... and the sizes of FedGGR; `global` is the server's hidden width and F_g."""
PRETRAINING = ("autoencoders", "embeddings")
COSTS: tuple[dict[str, Any], ...] = (
    {
        "what": "PubMed, M=5, p=256, k=30",
        "dataset": "pubmed",
        "silos": 5,
        "rounds": 5,
        "target": {"seconds": 2.5, "memory_mb": 1536.0},
    },
    {
        "what": "PubMed, the same, neighbours every 5 rounds",
        "dataset": "pubmed",
        "silos": 5,
        "rounds": 5,
        "settings": {"refresh": 5},
    },
    {
        "what": "csbm, 200,000 nodes, M=10, p=64, k=15, exact search",
        "nodes": 200_000,
        "silos": 10,
        "rounds": 1,
        "target": {"seconds": 60.0, "memory_mb": 6144.0},
    },
    {
        "what": "csbm, the same, by index",
        "nodes": 200_000,
        "silos": 10,
        "rounds": 1,
        "settings": {"search": "index"},
        "target": {"seconds": 60.0, "memory_mb": 6144.0},
    },
)


def settings_for(dataset: str, method: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The settings of a cell."""
    chosen = {**TRAINING, **PAPER[dataset]}
    if method != "fedggr":
        return {**chosen, "backbone": method.removeprefix("fedavg-"), **_common(overrides)}
    sizes = dict(GLOBAL[dataset])
    width = sizes.pop("global")
    return {**chosen, **sizes, "global_width": width, "global_hidden": width, **overrides}


def _common(overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides that FedAvg knows as well."""
    known = fm.methods.find("fedavg").settings_type.__dataclass_fields__
    return {key: value for key, value in overrides.items() if key in known and key != "backbone"}


def fedggr(options: Options) -> Measured:
    """A row per cost, and a row per dataset, number of silos and method."""
    overrides = {key.replace("-", "_"): value for key, value in options.settings.items()}
    rows: list[Row] = []
    if not options.exploring:
        for cost in COSTS[:2] if options.quick else COSTS:
            if "dataset" in cost and not available(cost["dataset"], options.data_root):
                continue
            say(cost["what"])
            root = root_for("pubmed", options.data_root)
            given = {**cost, "root": None if root is None else str(root)}
            rows.append({"kind": "cost", **in_fresh_process(measure_cost, given)})
    datasets = options.datasets or (("cora",) if options.quick else DATASETS)
    present = [name for name in datasets if available(name, options.data_root)]
    silos = options.silos or ((5,) if options.quick else SILOS)
    names = options.methods or METHODS
    seeds = options.seeds or (1 if options.quick else SEEDS)
    for dataset in present:
        for count in silos:
            runs: dict[str, list[Row]] = {name: [] for name in names}
            for seed in range(seeds):
                for name in names:
                    found = run_cell(dataset, count, name, seed, overrides, options)
                    runs[name].append(found)
            rows += [_row(dataset, count, name, runs) for name in names]
    shown = {
        "split": "random",
        "ratio": "60/20/20",
        "evaluation": "own-subgraph",
        "seeds": list(range(seeds)),
        "training": TRAINING,
        "overrides": overrides,
        "settings": {
            dataset: {name: settings_for(dataset, name, overrides) for name in names}
            for dataset in present
        },
    }
    left_out = [name for name in datasets if name not in present]
    return Measured(rows, shown, [f"{name} was not on this machine" for name in left_out])


def run_cell(
    dataset: str, silos: int, name: str, seed: int, overrides: dict[str, Any], options: Options
) -> Row:
    """One run, from the cache or computed."""
    settings = settings_for(dataset, name, overrides)
    if options.quick:
        settings |= {"rounds": 5}
    key = json.dumps([dataset, silos, name, seed, settings, code_fingerprint()])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    file: Path = CACHE / "cells" / f"fedggr-{dataset}-{silos}-{name}-{seed}-{digest}.json"
    if file.exists():
        kept: Row = read_json(file)
        return kept
    partition = _cut(dataset, silos, seed, options)
    with working_on(f"{name} on {dataset}, {silos} silos, seed {seed}"):
        result = fm.train(
            name.partition("-")[0],
            partition,
            seed=seed,
            evaluation="own-subgraph",
            workers=1,
            **settings,
        )
    history = result.history["training"]
    row = {
        "accuracy": result.accuracy,
        "validation": best_validation(history),
        "seconds": result.seconds,
        "rounds": max(history),
        "crossing": history[0].get("crossing_edges"),
        "settings": settings,
    }
    say(f"  {row['accuracy']:.4f}, validation {row['validation']:.4f}, {row['rounds']} rounds")
    write_json(file, row)
    return row


def _cut(dataset: str, silos: int, seed: int, options: Options) -> Partition:
    graph = fm.load(dataset, data_root=root_for(dataset, options.data_root), download=False)
    return fm.split(graph, silos, "random", seed=seed, ratio=(0.6, 0.2, 0.2))


def _row(dataset: str, silos: int, name: str, runs: dict[str, list[Row]]) -> Row:
    mine = [run["accuracy"] for run in runs[name]]
    row: Row = {
        "kind": "cell",
        "dataset": dataset,
        "silos": silos,
        "method": name,
        **summarise(mine).as_dict(),
        "validation": summarise([run["validation"] for run in runs[name]]).mean,
        "by_seed": [round(value, 6) for value in mine],
        "seconds": summarise([run["seconds"] for run in runs[name]]).mean,
        "rounds": summarise([run["rounds"] for run in runs[name]]).mean,
        "crossing": runs[name][0]["crossing"],
    }
    if "fedggr" in runs and name != "fedggr":
        ours = [run["accuracy"] for run in runs["fedggr"]]
        difference = summarise([one - other for one, other in zip(ours, mine, strict=True)])
        row["fedggr_above"] = difference.mean
        row["fedggr_above_interval"] = difference.interval
    return row


def measure_cost(given: dict[str, Any]) -> Row:
    """Seconds of a round and memory of the whole run."""
    if "nodes" in given:
        graph = fm.load("csbm", nodes=given["nodes"], degree=10, features=64)
        settings: dict[str, Any] = {"autoencoder_epochs": 5}
    else:
        graph = fm.load(given["dataset"], data_root=given["root"], download=False)
        settings = settings_for(given["dataset"], "fedggr", {})
        settings |= {"autoencoder_epochs": 20}
    settings |= {"patience": 0, "rounds": given["rounds"], **given.get("settings", {})}
    partition = fm.split(graph, given["silos"], "random")
    started = time.process_time()
    with working_on("  training"):
        result = fm.train("fedggr", partition, workers=1, threads=2, **settings)
    measured = result.record["measured"]
    return {
        "what": given["what"],
        "target": given.get("target"),
        "rounds": given["rounds"],
        "round_seconds": measured["phases"]["training"] / given["rounds"],
        "silos_seconds": measured["steps"]["train_split"] / given["rounds"],
        "pretraining_seconds": sum(measured["phases"][name] for name in PRETRAINING),
        "cpu_seconds": time.process_time() - started,
        "peak_mb": peak_memory_mb(),
    }
