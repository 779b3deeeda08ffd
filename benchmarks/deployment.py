"""What a deployment costs: a server and silos as processes on this machine, mutual TLS, loopback.

Beside every deployed run the same run in-process: whatever else the machine does hits both, and the
difference is what the deployment adds.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from benchmarks.common import Measured, Options, Row, say, working_on
from fedmend.data.partition import Partition, split
from fedmend.deploy import kits, submission
from fedmend.deploy.rehearsal import Stage, equal, staged
from fedmend.engines.base import Moment, Watch
from fedmend.methods import METHODS
from fedmend.runs.plan import Source
from fedmend.runs.record import WEIGHTS
from fedmend.runs.train import train

FIXED_SECONDS = 25.0
TIMES_IN_PROCESS = 3.0
RUNS = ("fedavg", "fedsage+", "feddep")
SILOS = 3
MANY = 20

EXCHANGES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "a scalar": ("local", "csbm:nodes=60,features=6", {"hidden": 8}),
    "1 MB": ("fedavg", "csbm:nodes=60,features=500", {"hidden": 256}),
    "50 MB": ("fedavg", "csbm:nodes=60,features=6100", {"hidden": 1024}),
}
"""Runs on tiny graphs whose rounds are almost nothing but one exchange of this size each way."""


def deployment(options: Options) -> Measured:
    """Rows of kind `run`, `exchange`, `memory` and `many`."""
    rounds = 3 if options.quick else 50
    exchanges = 3 if options.quick else 20
    many = 4 if options.quick else MANY
    rows: list[Row] = []
    cora = Source("cora", SILOS).partition(0)
    methods = [name for name in RUNS if name in METHODS]
    with working_on(f"cora, {SILOS} silos"), federation(cora) as (stage, connect):
        for method in methods:
            memory: dict[str, float] = {}
            row = _run(stage, cora, method, {"rounds": rounds}, memory)
            rows.append({"kind": "run", "seconds_to_connect": connect, **row})
            if method == methods[0]:
                rows += [{"kind": "memory", "what": k, "mb": v} for k, v in sorted(memory.items())]
            say(f"{method}: {row['deployed_seconds']:.1f} s")
    for what, (method, dataset, settings) in EXCHANGES.items():
        silos = _tiny(dataset)
        with working_on(f"an exchange of {what}"), federation(silos) as (stage, _):
            found = _run(
                stage,
                silos,
                method,
                {**settings, "rounds": exchanges, "batch_size": 0, "fan_out": 0},
                {},
            )
            rows.append({"kind": "exchange", "what": what, **found})
    source = Source("cora", many).partition(0)
    with working_on(f"{many} silos"), federation(source) as (stage, connect):
        memory = {}
        row = _run(stage, source, "fedavg", {"rounds": 3}, memory, answer_within=60.0)
        total = sum(memory.values())
        rows.append({"kind": "many", "seconds_to_connect": connect, "memory_mb": total, **row})
    return Measured(
        rows,
        {
            "silos": SILOS,
            "rounds": rounds,
            "exchanges": exchanges,
            "many": many,
            "targets": {"fixed": FIXED_SECONDS, "times": TIMES_IN_PROCESS},
        },
        [f"{name} is not among the methods yet" for name in RUNS if name not in METHODS],
    )


def _tiny(dataset: str) -> Partition:
    whole = Source(dataset, 1, "random").partition(0).whole
    if whole is None:
        raise ValueError("a cut graph knows its whole")
    return split(whole, SILOS, "random")


@contextmanager
def federation(silos: Partition) -> Iterator[tuple[Stage, float]]:
    """A federation on this machine, and the seconds it took until all were connected."""
    with tempfile.TemporaryDirectory(prefix="fedmend-benchmark-") as folder:
        started = time.perf_counter()
        with staged(Path(folder), silos, lambda _: None) as stage:
            yield stage, time.perf_counter() - started


def _run(
    stage: Stage,
    silos: Partition,
    method: str,
    settings: Mapping[str, Any],
    memory: dict[str, float],
    **options: Any,
) -> Row:
    """One run deployed and in-process."""
    first: list[float] = []

    def on_round(_: Moment) -> None:
        if not first:
            first.append(time.perf_counter())

    run = Path(tempfile.mkdtemp(dir=stage.root)) / "run"
    with _watching(stage, memory):
        submitted = time.perf_counter()
        record = submission.submit(
            stage.submitter, method, settings, run, Watch(on_round=on_round), **options
        )
        deployed = time.perf_counter() - submitted
    started = time.perf_counter()
    here = train(method, silos, evaluation=METHODS[method].deployed_evaluation, **settings)
    in_process = time.perf_counter() - started
    rounds = len(record.rounds["training"]) - (method != "local")
    own = record.silos_with_own_model
    same = (
        all(equal(stage.own_weights(name, record), here.own[name]) for name in own)
        if own
        else equal(load_file(run / WEIGHTS), here.weights)
    )
    return {
        "method": method,
        "silos": len(silos.silos),
        "rounds": rounds,
        "deployed_seconds": deployed,
        "in_process_seconds": in_process,
        "to_first_round": first[0] - submitted,
        "step_seconds": record.measured.steps["train"] / rounds,
        "in_process_step_seconds": here.record.measured.steps["train"] / rounds,
        "bytes_per_silo_and_round": record.bytes.up / rounds / len(silos.silos),
        "same": same,
        "lost": len(record.said),
    }


@contextmanager
def _watching(stage: Stage, peaks: dict[str, float]) -> Iterator[None]:
    """The most memory (resident) that each process of the server and of each silo held."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.5):
            for party, process in list(stage.processes.items()):
                try:
                    root = psutil.Process(process.pid)
                    family = [root, *root.children(recursive=True)]
                    sizes = [each.memory_info().rss / 2**20 for each in family]
                except psutil.NoSuchProcess:
                    continue
                who = "server" if party == kits.SERVER else f"silo {party}"
                for part, size in zip(("command", "FLARE", "job"), sizes, strict=False):
                    key = f"{who}: {part}"
                    peaks[key] = max(peaks.get(key, 0.0), size)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
