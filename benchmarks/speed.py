"""FedAvg's rounds beside a bare loop, beside OpenFGL's steps, and beside plain PyG training.

What is compared takes turns in one process, one torch thread: whatever else the machine does hits
all alike. FedAvg and the bare loop have a process of their own (`rounds.py` says why), FedAvg and
OpenFGL's steps another, FedAvg and PyG a third. Every figure is a median over the turns, every
ratio the median of the turns' own.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks import pyg
from benchmarks.common import (
    HERE,
    Measured,
    Options,
    Row,
    available,
    root_for,
    working_on,
)
from benchmarks.fresh import in_fresh_process
from benchmarks.memory import fedavg_memory
from benchmarks.openfgl_steps import beside_openfgl_steps
from benchmarks.rounds import LR, beside_a_bare_loop, ratio, seconds_per_round, taking_turns
from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.files import read_json

DATASETS = ("cora", "citeseer")
BACKBONES = ("sage", "gcn")
SILOS = 5
FULL_BATCH: dict[str, Any] = {"batch_size": 0, "fan_out": 0, "local_epochs": 3, "hidden": 64}
MINI_BATCH: dict[str, Any] = {"batch_size": 64, "fan_out": 5, "local_epochs": 1, "hidden": 128}
OF_OPENFGL = 0.2
OF_PYG = 1.3
MEMORY_MB = 600.0


def speed(options: Options) -> Measured:
    """Rows of kind `full batch` (one per dataset and backbone) and `mini-batch` (one each)."""
    rounds, repeats = (3, 2) if options.quick else (30, 7)
    datasets = options.datasets or (("cora",) if options.quick else DATASETS)
    present = [name for name in datasets if available(name, options.data_root)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for dataset in present:
            root = root_for(dataset, options.data_root)
            silos = split(load(dataset, data_root=root, download=False), SILOS, "louvain")
            for backbone in BACKBONES:
                row = _full_batch(dataset, root, silos, backbone, rounds, repeats)
                with working_on(f"{dataset}, {backbone}: memory"):
                    settings = {"backbone": backbone, "rounds": rounds, **FULL_BATCH}
                    given = {"dataset": dataset, "silos": SILOS, "settings": settings}
                    given["root"] = None if root is None else str(root)
                    row["memory_mb"] = in_fresh_process(fedavg_memory, given)["peak_mb"]
                rows.append(row)
            rows.append(_mini_batch(dataset, silos, rounds, repeats))
    finally:
        torch.set_num_threads(before)
    shown = {
        "silos": SILOS,
        "split": "louvain",
        "rounds": rounds,
        "repeats": repeats,
        "full_batch": FULL_BATCH,
        "mini_batch": MINI_BATCH,
        "lr": LR,
        "targets": {"of_openfgl": OF_OPENFGL, "of_pyg": OF_PYG, "memory_mb": MEMORY_MB},
    }
    left_out = [f"{name} was not on this machine" for name in datasets if name not in present]
    return Measured(rows, shown, left_out)


def _full_batch(
    dataset: str, root: Path | None, silos: Partition, backbone: str, rounds: int, repeats: int
) -> Row:
    whole = _whole(silos)
    epochs = rounds * FULL_BATCH["local_epochs"]
    hidden = FULL_BATCH["hidden"]
    given = {
        "dataset": dataset,
        "root": None if root is None else str(root),
        "silos": SILOS,
        "backbone": backbone,
        "rounds": rounds,
        "repeats": repeats,
        "settings": FULL_BATCH,
    }
    alone = in_fresh_process(beside_a_bare_loop, given)
    fewer = {**given, "rounds": max(1, rounds // 3)}  # its rounds take eight times as long
    beside_steps = in_fresh_process(beside_openfgl_steps, fewer)
    seconds = taking_turns(
        f"{dataset}, {backbone}, full batch, beside PyG",
        repeats,
        {
            "one": lambda: seconds_per_round(silos, backbone, rounds, FULL_BATCH, workers=1),
            "pyg": lambda: (
                pyg.full_batch_seconds(whole, backbone, epochs=epochs, hidden=hidden, lr=LR)
                / rounds
            ),
        },
    )
    openfgl = read_json(HERE / "published.json")["openfgl"]["seconds_per_round"]
    return {
        "kind": "full batch",
        "dataset": dataset,
        "backbone": backbone,
        **alone,
        **beside_steps,
        "beside_pyg_seconds": statistics.median(seconds["one"]),
        "pyg_seconds": statistics.median(seconds["pyg"]),
        "of_pyg": ratio(seconds["one"], seconds["pyg"]),
        "openfgl_seconds": openfgl.get(dataset, {}).get(backbone),
        "node_visits_per_round": FULL_BATCH["local_epochs"] * int(whole.train_mask.sum()),
    }


def _mini_batch(dataset: str, silos: Partition, rounds: int, repeats: int) -> Row:
    whole = _whole(silos)
    epochs = rounds * MINI_BATCH["local_epochs"]
    chosen = {key: MINI_BATCH[key] for key in ("batch_size", "fan_out", "hidden")}
    seconds = taking_turns(
        f"{dataset}, sage, mini-batch",
        repeats,
        {
            "one": lambda: seconds_per_round(silos, "sage", rounds, MINI_BATCH, workers=1),
            "pyg": lambda: pyg.mini_batch_seconds(whole, epochs=epochs, lr=LR, **chosen) / rounds,
        },
    )
    return {
        "kind": "mini-batch",
        "dataset": dataset,
        "backbone": "sage",
        "beside_pyg_seconds": statistics.median(seconds["one"]),
        "pyg_seconds": statistics.median(seconds["pyg"]),
        "of_pyg": ratio(seconds["one"], seconds["pyg"]),
        "node_visits_per_round": MINI_BATCH["local_epochs"] * int(whole.train_mask.sum()),
    }


def _whole(silos: Partition) -> Any:
    if silos.whole is None:
        raise RuntimeError("these silos were not cut from a whole graph")
    return silos.whole
