"""What mending gives: FedAvg, FedSage+, FedDEP and the true neighbours, on both splits.

All methods share splits, roles and seeds, so differences are paired. `oracle` is FedAvg with the
true cross-silo neighbours: what a perfect generator could give. The share of the lost accuracy that
a method recovers is (method - FedAvg) / (oracle - FedAvg). Cells are kept as in `accuracy`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy import Cell, code_fingerprint, run_cells, settings_of
from benchmarks.common import Measured, Options, Row, available
from fedmend.evaluation.metrics import recovered_share, summarise
from fedmend.experiments import check_settings

DATASETS = ("cora", "citeseer", "pubmed")
SPLITS = ("louvain", "random")
SILOS = (3, 5, 10)
BASE, CEILING = "fedsage", "oracle"
METHODS = (BASE, CEILING, "fedsage+", "feddep")
SEEDS = 5


def mending(options: Options) -> Measured:
    """All cells, and a row per dataset, split, number of silos and method."""
    datasets = options.datasets or (("cora",) if options.quick else DATASETS)
    silos = options.silos or ((5,) if options.quick else SILOS)
    names = tuple(dict.fromkeys((BASE, CEILING, *(options.methods or METHODS))))
    seeds = options.seeds or (2 if options.quick else SEEDS)
    overrides: dict[str, Any] = dict(options.settings)
    if options.quick:
        overrides = {"rounds": 5, "generator_epochs": 2, "generator_rounds": 1, **overrides}
    check_settings(names, overrides)
    present = [name for name in datasets if available(name, options.data_root)]
    code = code_fingerprint()

    def cell(dataset: str, split: str, count: int, method: str, seed: int) -> Cell:
        settings = settings_of(method, overrides)
        return Cell(dataset, count, method, seed, settings, code, split)

    places = [(d, s, m) for d in present for s in SPLITS for m in silos]
    wanted = [
        cell(*place, method, seed) for place in places for seed in range(seeds) for method in names
    ]
    done = run_cells(wanted, options.data_root)
    rows = []
    for place in places:
        runs = {m: [done[cell(*place, m, seed)] for seed in range(seeds)] for m in names}
        rows += [_row(place, method, runs) for method in names]
    settings = {
        "ratio": "60/20/20",
        "evaluation": "global-graph",
        "seeds": list(range(seeds)),
        "overrides": overrides,
        "methods": {name: dict(settings_of(name, overrides)) for name in names},
    }
    left_out = [name for name in datasets if name not in present]
    return Measured(rows, settings, [f"{name} was not on this machine" for name in left_out])


def _row(place: tuple[str, str, int], method: str, runs: dict[str, list[Row]]) -> Row:
    dataset, split, silos = place
    found = {name: [run["accuracy"] for run in each] for name, each in runs.items()}
    mine, base = found[method], found[BASE]
    difference = summarise([one - other for one, other in zip(mine, base, strict=True)])
    share = recovered_share(mine, base, found[CEILING])
    return {
        "dataset": dataset,
        "split": split,
        "silos": silos,
        "method": method,
        **summarise(mine).as_dict(),
        "validation": summarise([run["validation"] for run in runs[method]]).mean,
        "by_seed": [round(value, 6) for value in mine],
        "difference": difference.mean,
        "difference_interval": difference.interval,
        "recovered": None if share is None else [share.value, share.low, share.high],
        "missing_share": summarise([run["missing_share"] for run in runs[method]]).mean,
        "seconds": summarise([run["seconds"] for run in runs[method]]).mean,
    }
