"""FedSage, Local and Global on the papers' citation graphs, beside the published figures.

Louvain silos, 60/20/20, test nodes queried on the global graph, every method with its default
settings. A cell is one dataset, number of silos, method and seed. Cells run two at a time, one
torch thread each, and are kept as they finish: an interrupted benchmark goes on where it stood,
unless code or settings that decide a result have changed since.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import CACHE, REPOSITORY, Measured, Options, Row, available, root_for, say
from fedmend import methods
from fedmend.config import make
from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.evaluation.metrics import summarise
from fedmend.experiments import check_settings
from fedmend.files import read_json, write_json
from fedmend.graph import Graph
from fedmend.run import train

DATASETS = ("cora", "citeseer", "pubmed")
SILOS = (3, 5, 10)
METHODS = ("fedsage", "local", "global")
SEEDS = 5
SIDE_BY_SIDE = 2


@dataclass(frozen=True)
class Cell:
    """One run; `settings` are the method's own after defaults and overrides."""

    dataset: str
    silos: int
    method: str
    seed: int
    settings: tuple[tuple[str, Any], ...]
    code: str
    split: str = "louvain"

    @property
    def file(self) -> Path:
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]
        name = f"{self.dataset}-{self.split}-{self.silos}-{self.method}-{self.seed}-{digest}.json"
        return CACHE / "cells" / name

    def __str__(self) -> str:
        cut = f"{self.silos} {self.split} silos"
        return f"{self.method} on {self.dataset}, {cut}, seed {self.seed}"


def accuracy(options: Options) -> Measured:
    """All cells, and a row per dataset, number of silos and method."""
    datasets = options.datasets or (("cora",) if options.quick else DATASETS)
    silos = options.silos or ((5,) if options.quick else SILOS)
    names = options.methods or METHODS
    seeds = options.seeds or (1 if options.quick else SEEDS)
    overrides: dict[str, Any] = dict(options.settings)
    if options.quick:
        overrides = {"rounds": 5, **overrides}
    check_settings(names, overrides)
    present = [name for name in datasets if available(name, options.data_root)]
    code = code_fingerprint()

    def cell(dataset: str, count: int, method: str, seed: int) -> Cell:
        return Cell(dataset, count, method, seed, settings_of(method, overrides), code)

    wanted = [
        # Global trains on the whole graph and sees the cut only through the seed's roles, which
        # are drawn before cutting: one run serves every number of silos (`_check_roles`).
        cell(dataset, silos[0] if method == "global" else count, method, seed)
        for dataset in present
        for seed in range(seeds)
        for count in silos
        for method in names
    ]
    done = run_cells(list(dict.fromkeys(wanted)), options.data_root)
    _check_roles(done)
    rows = [
        _row(
            dataset,
            count,
            method,
            [
                done[cell(dataset, silos[0] if method == "global" else count, method, seed)]
                for seed in range(seeds)
            ],
        )
        for dataset in present
        for count in silos
        for method in names
    ]
    left_out = [name for name in datasets if name not in present]
    settings = {
        "split": "louvain",
        "ratio": "60/20/20",
        "evaluation": "global-graph",
        "seeds": list(range(seeds)),
        "overrides": overrides,
        "methods": {name: dict(settings_of(name, overrides)) for name in names},
    }
    return Measured(rows, settings, [f"{name} was not on this machine" for name in left_out])


def code_fingerprint() -> str:
    """Of all code that decides a result; what only shows or stores one does not count."""
    source = REPOSITORY / "src" / "fedmend"
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sorted(source.rglob("*.py")):
        if path.relative_to(source).parts[0] not in ("cli", "reports", "privacy"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def settings_of(method: str, overrides: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    chosen = methods.find(method)
    known = chosen.settings_type.__dataclass_fields__
    fitting = {
        name: value
        for key, value in overrides.items()
        if (name := key.replace("-", "_")) in known and name not in chosen.fixed
    }
    return tuple(sorted(asdict(make(chosen.settings_type, {**fitting, **chosen.fixed})).items()))


# Running


def run_cells(cells: Sequence[Cell], root: Path | None) -> dict[Cell, Row]:
    """Every cell's result, from the cache or computed."""
    done = dict(_kept(cells))
    missing = [cell for cell in cells if cell not in done]
    if done:
        say(f"{len(done)} of {len(cells)} cells were there already")
    if not missing:
        return done
    # spawn: a forked child would share torch's thread pools with its parent, and hang.
    with ProcessPoolExecutor(
        SIDE_BY_SIDE, get_context("spawn"), initializer=_start_process
    ) as pool:
        waiting = {pool.submit(run_cell, cell, root): cell for cell in missing}
        try:
            for future in as_completed(waiting):
                cell, result = waiting[future], future.result()
                done[cell] = result
                say(
                    f"[{len(done)}/{len(cells)}] {cell}: {result['accuracy']:.4f} "
                    f"({result['seconds']:.1f} s)"
                )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def _start_process() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # on Ctrl-C end at once, without a traceback


def _kept(cells: Iterable[Cell]) -> Iterator[tuple[Cell, Row]]:
    for cell in cells:
        if cell.file.exists():
            yield cell, read_json(cell.file)


def run_cell(cell: Cell, root: Path | None) -> Row:
    """One run, kept in the cache when it is finished."""
    silos = _silos(cell, root_for(cell.dataset, root))
    result = train(
        cell.method,
        silos,
        seed=cell.seed,
        evaluation="global-graph",
        workers=1,
        threads=1,
        dataset=cell.dataset,
        **dict(cell.settings),
    )
    row = {
        "accuracy": result.accuracy,
        "macro_f1": result.macro_f1,
        "seconds": result.seconds,
        "missing_share": result.record["data"]["missing_share"],
        "validation": best_validation(result.history["training"]),
        "roles": _roles(silos),
        "dataset": cell.dataset,
        "seed": cell.seed,
    }
    write_json(cell.file, row)
    return row


@lru_cache(maxsize=1)
def _graph(dataset: str, root: Path | None) -> Graph:
    return load(dataset, data_root=root, download=False)


def best_validation(rounds: dict[int, dict[str, float]]) -> float:
    """The validation accuracy of the round that was kept."""
    return max(each.get("validation_accuracy", 0.0) for each in rounds.values())


def _silos(cell: Cell, root: Path | None) -> Partition:
    return _cut(cell.dataset, cell.split, cell.silos, cell.seed, root)


@lru_cache(maxsize=1)
def _cut(dataset: str, how: str, count: int, seed: int, root: Path | None) -> Partition:
    return split(_graph(dataset, root), count, how, seed=seed, ratio=(0.6, 0.2, 0.2))


def _roles(silos: Partition) -> str:
    """A hash of who trains, validates and tests in the whole graph."""
    digest = hashlib.sha256()
    if silos.whole is not None:
        for mask in (silos.whole.train_mask, silos.whole.val_mask, silos.whole.test_mask):
            digest.update(mask.numpy().tobytes())
    return digest.hexdigest()[:16]


def _check_roles(done: dict[Cell, Row]) -> None:
    """Methods and numbers of silos must have been tested on the same nodes, seed by seed."""
    first: dict[tuple[str, int], str] = {}
    for cell, row in done.items():
        if first.setdefault((cell.dataset, cell.seed), row["roles"]) != row["roles"]:
            raise RuntimeError(f"{cell} has other train, val or test nodes than the other cells")


def _row(dataset: str, silos: int, method: str, runs: Sequence[Row]) -> Row:
    found = summarise([run["accuracy"] for run in runs])
    f1 = summarise([run["macro_f1"] for run in runs])
    # Global's runs were cut into another number of silos: their share is not this row's.
    share = None if method == "global" else summarise([run["missing_share"] for run in runs]).mean
    return {
        "dataset": dataset,
        "silos": silos,
        "method": method,
        **found.as_dict(),
        "macro_f1": f1.mean,
        "by_seed": [round(run["accuracy"], 6) for run in runs],
        "seconds": summarise([run["seconds"] for run in runs]).mean,
        "missing_share": share,
    }
