"""HiFGL's tables 3 and 4: Local-MLP, Local, FedAvg, HiFGL and Global on random silos.

Full batch, all neighbours, the paper's sizes (two layers of 64, Adam 0.01, 50 epochs) for every
method; accuracy over all test nodes with edges between silos in use (`cross-edges`), the round
chosen on validation nodes. HiFGL stands there twice: with every neighbour heard, as in the paper,
and with fedmend's defaults, under which nodes with few hidden neighbours hear none of them.

Cells run one after the other, seed by seed, and are kept as they finish; a seed counts when all
methods have run with it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from benchmarks.accuracy import code_fingerprint
from benchmarks.common import CACHE, Measured, Options, Row, available, root_for, say
from fedmend.data.datasets import load
from fedmend.data.partition import split
from fedmend.evaluation.leakage import subgraph_leakage
from fedmend.evaluation.metrics import graph_information_gain, summarise
from fedmend.files import read_json, write_json
from fedmend.run import train

DATASETS = ("cora", "citeseer", "pubmed")
BACKBONES = ("gcn", "sage")
SILOS = 5
SEEDS = 5
COMMON: dict[str, Any] = {"hidden": 64, "lr": 0.01, "rounds": 50, "batch_size": 0, "fan_out": 0}
EVERYBODY: dict[str, Any] = {"min_neighbours": 1, "input_min_neighbours": 1}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "fedavg": ("fedavg", {}),
    "hifgl": ("hifgl", EVERYBODY),
    "hifgl-minimum": ("hifgl", {}),
    "global": ("global", {}),
}


def rows_of_table() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Name in the table, method, backbone and settings of every row."""
    rows: list[tuple[str, str, str, dict[str, Any]]] = [("local-mlp", "local", "mlp", {})]
    for backbone in BACKBONES:
        for name, (method, settings) in METHODS.items():
            rows.append((f"{name}-{backbone}", method, backbone, settings))
    return rows


def hifgl(options: Options) -> Measured:
    """All cells, and a row per dataset and line of the table."""
    datasets = options.datasets or (("cora",) if options.quick else DATASETS)
    seeds = options.seeds or (1 if options.quick else SEEDS)
    common = {**COMMON, **({"rounds": 3} if options.quick else {}), **options.settings}
    present = [name for name in datasets if available(name, options.data_root)]
    code = code_fingerprint()
    rows = []
    for dataset in present:
        found: dict[str, list[float]] = {}
        leaks = []
        for seed in range(seeds):
            for name, method, backbone, settings in rows_of_table():
                chosen = {**common, **settings, "backbone": backbone}
                row = _cell(dataset, seed, name, method, chosen, code, options.data_root)
                found.setdefault(name, []).append(row["accuracy"])
            leaks.append(row["leakage"])
        rows += _table(dataset, found, summarise(leaks).mean)
    left_out = [f"{name} was not on this machine" for name in datasets if name not in present]
    shown = {"silos": SILOS, "split": "random", "seeds": list(range(seeds)), "common": common}
    return Measured(rows, shown, left_out)


def _cell(
    dataset: str,
    seed: int,
    name: str,
    method: str,
    settings: dict[str, Any],
    code: str,
    given_root: Path | None,
) -> Row:
    what = json.dumps([dataset, seed, name, method, settings, SILOS, code], sort_keys=True)
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    file = CACHE / "cells" / f"{dataset}-{name}-{seed}-{digest}.json"
    if file.exists():
        kept: Row = read_json(file)
        return kept
    graph = load(dataset, data_root=root_for(dataset, given_root), download=False)
    silos = split(graph, SILOS, "random", seed=seed, ratio=(0.6, 0.2, 0.2))
    result = train(
        method, silos, seed=seed, evaluation="cross-edges", workers=1, dataset=dataset, **settings
    )
    row = {
        "accuracy": result.accuracy,
        "seconds": result.seconds,
        "leakage": subgraph_leakage(silos).share,
    }
    write_json(file, row)
    say(f"{dataset}, seed {seed}, {name}: {row['accuracy']:.4f} ({row['seconds']:.1f} s)")
    return row


def _table(dataset: str, found: dict[str, list[float]], leakage: float) -> list[Row]:
    means = {name: summarise(values).mean for name, values in found.items()}
    rows = []
    for name, values in found.items():
        backbone = name.rpartition("-")[2]
        gain = None
        if backbone in BACKBONES:
            gain = graph_information_gain(
                means[name], means["local-mlp"], means[f"global-{backbone}"]
            )
        rows.append(
            {
                "dataset": dataset,
                "name": name,
                **summarise(values).as_dict(),
                "by_seed": [round(value, 6) for value in values],
                "gain": gain,
                "leakage": leakage,
            }
        )
    return rows
