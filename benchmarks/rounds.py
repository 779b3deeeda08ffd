"""Seconds of FedAvg's rounds, and of a bare loop's by turns. Imports only what a user's run does.

Another library's training in the same process leaves caches and the memory allocator in another
state: after PyG's turns the same rounds take about a sixth longer (measured).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks import bare_loop
from benchmarks.common import Row, working_on
from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.runs.train import train

LR = 1e-3


def seconds_per_round(
    silos: Partition, backbone: str, rounds: int, settings: Mapping[str, Any], *, workers: int
) -> float:
    """With everything a round has: messages, ledger, validation, averaging."""
    result = train(
        "fedavg", silos, workers=workers, backbone=backbone, rounds=rounds, lr=LR, **settings
    )
    return float(result.record.measured.phases["training"]) / rounds


def beside_a_bare_loop(given: dict[str, Any]) -> Row:
    """Full-batch rounds with one and two workers, and the bare loop; one torch thread."""
    torch.set_num_threads(1)
    graph = load(given["dataset"], data_root=given["root"], download=False)
    silos = split(graph, given["silos"], "louvain")
    backbone, rounds, settings = given["backbone"], given["rounds"], given["settings"]

    def bare() -> float:
        return bare_loop.seconds_per_round(
            silos,
            backbone,
            rounds=rounds,
            local_epochs=settings["local_epochs"],
            hidden=settings["hidden"],
            lr=LR,
        )

    seconds = taking_turns(
        f"{given['dataset']}, {backbone}, full batch",
        given["repeats"],
        {
            "bare": bare,
            "one": lambda: seconds_per_round(silos, backbone, rounds, settings, workers=1),
            "two": lambda: seconds_per_round(silos, backbone, rounds, settings, workers=2),
        },
    )
    return {
        "bare_seconds": statistics.median(seconds["bare"]),
        "one_worker_seconds": statistics.median(seconds["one"]),
        "two_workers_seconds": statistics.median(seconds["two"]),
        "quickest_seconds": min(seconds["one"] + seconds["two"]),
        "of_bare": ratio(seconds["one"], seconds["bare"]),
    }


def taking_turns(
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


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the turns' own ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
