"""FedAvg's rounds beside a bare loop, beside OpenFGL's figures, and beside plain PyG training.

All in one process, one torch thread, taking turns: whatever else the machine does hits all alike.
Every figure is a median over the turns, every ratio the median of the turns' own ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks import bare_loop, pyg
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
from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.files import read_json
from fedmend.run import train

DATASETS = ("cora", "citeseer")
BACKBONES = ("sage", "gcn")
SILOS = 5
FULL_BATCH: dict[str, Any] = {"batch_size": 0, "fan_out": 0, "local_epochs": 3, "hidden": 64}
MINI_BATCH: dict[str, Any] = {"batch_size": 64, "fan_out": 5, "local_epochs": 1, "hidden": 128}
LR = 1e-3
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
                row = _full_batch(dataset, silos, backbone, rounds, repeats)
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


def _full_batch(dataset: str, silos: Partition, backbone: str, rounds: int, repeats: int) -> Row:
    whole = _whole(silos)
    epochs = rounds * FULL_BATCH["local_epochs"]
    hidden = FULL_BATCH["hidden"]

    def bare() -> float:
        return bare_loop.seconds_per_round(
            silos,
            backbone,
            rounds=rounds,
            local_epochs=FULL_BATCH["local_epochs"],
            hidden=hidden,
            lr=LR,
        )

    seconds = _taking_turns(
        f"{dataset}, {backbone}, full batch",
        repeats,
        {
            "bare": bare,
            "one": lambda: _fedavg(silos, backbone, rounds, FULL_BATCH, workers=1),
            "two": lambda: _fedavg(silos, backbone, rounds, FULL_BATCH, workers=2),
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
        "bare_seconds": statistics.median(seconds["bare"]),
        "one_worker_seconds": statistics.median(seconds["one"]),
        "two_workers_seconds": statistics.median(seconds["two"]),
        "pyg_seconds": statistics.median(seconds["pyg"]),
        "of_bare": _ratio(seconds["one"], seconds["bare"]),
        "of_pyg": _ratio(seconds["one"], seconds["pyg"]),
        "openfgl_seconds": openfgl.get(dataset, {}).get(backbone),
        "node_visits_per_round": FULL_BATCH["local_epochs"] * int(whole.train_mask.sum()),
    }


def _mini_batch(dataset: str, silos: Partition, rounds: int, repeats: int) -> Row:
    whole = _whole(silos)
    epochs = rounds * MINI_BATCH["local_epochs"]
    chosen = {key: MINI_BATCH[key] for key in ("batch_size", "fan_out", "hidden")}
    seconds = _taking_turns(
        f"{dataset}, sage, mini-batch",
        repeats,
        {
            "one": lambda: _fedavg(silos, "sage", rounds, MINI_BATCH, workers=1),
            "two": lambda: _fedavg(silos, "sage", rounds, MINI_BATCH, workers=2),
            "pyg": lambda: pyg.mini_batch_seconds(whole, epochs=epochs, lr=LR, **chosen) / rounds,
        },
    )
    return {
        "kind": "mini-batch",
        "dataset": dataset,
        "backbone": "sage",
        "one_worker_seconds": statistics.median(seconds["one"]),
        "two_workers_seconds": statistics.median(seconds["two"]),
        "pyg_seconds": statistics.median(seconds["pyg"]),
        "of_pyg": _ratio(seconds["one"], seconds["pyg"]),
        "node_visits_per_round": MINI_BATCH["local_epochs"] * int(whole.train_mask.sum()),
    }


def _whole(silos: Partition) -> Any:
    if silos.whole is None:
        raise RuntimeError("these silos were not cut from a whole graph")
    return silos.whole


def _fedavg(
    silos: Partition, backbone: str, rounds: int, settings: Mapping[str, Any], *, workers: int
) -> float:
    """Seconds per round with everything a round has: messages, ledger, validation, averaging."""
    result = train(
        "fedavg", silos, workers=workers, backbone=backbone, rounds=rounds, lr=LR, **settings
    )
    return float(result.record["measured"]["phases"]["training"]) / rounds


def _taking_turns(
    what: str, repeats: int, functions: Mapping[str, Callable[[], float]]
) -> dict[str, list[float]]:
    """What each function gives, turn by turn, after a turn that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    with working_on(what):
        for turn in range(repeats + 1):
            for name, function in functions.items():
                taken = function()
                if turn:
                    seconds[name].append(taken)
    return seconds


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
