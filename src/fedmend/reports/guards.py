"""Guard-rails of comparisons: what must be alike, and what a reader must know of the split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmend.runs.record import Figures

UNSEEN = ""
"""In place of the hash of silos that nobody sees together."""


def ratio(run: Figures) -> tuple[float, float, float]:
    """Shares of training, validation and test nodes among those that have a role."""
    silos = run.data.per_silo
    counts = [
        sum(getattr(silo, f"{role}_nodes") for silo in silos) for role in ("train", "val", "test")
    ]
    every = max(sum(counts), 1)
    train, val, test = (count / every for count in counts)
    return train, val, test


def label_skew(run: Figures) -> float:
    """How far the silos' label shares are from the whole's: 0 the same, towards 1 disjoint.

    Half the sum of absolute differences (total variation), averaged over silos by labelled nodes.
    """
    labels = [list(silo.labels.values()) for silo in run.data.per_silo]
    whole = [sum(column) for column in zip(*labels, strict=True)]
    nodes = sum(whole)
    if not nodes:
        return 0.0
    apart = 0.0
    for silo in labels:
        own = sum(silo)
        if own:
            differences = (
                abs(count / own - every / nodes) for count, every in zip(silo, whole, strict=True)
            )
            apart += own / nodes * sum(differences) / 2
    return apart


def warnings(compared: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Why these rows (runs by label) must not be read side by side; [] if they may."""
    found = []
    every = [run for runs in compared.values() for run in runs]
    modes = sorted({run.evaluation for run in every})
    if len(modes) > 1:
        found.append(f"evaluation differs: {_who(compared, modes, lambda run: run.evaluation)}")
    ratios = sorted({_percent(run) for run in every})
    if len(ratios) > 1:
        found.append(f"train/val/test differ: {_who(compared, ratios, _percent)}")
    hashes: dict[int, dict[str, list[str]]] = {}
    for label, runs in compared.items():
        for run in runs:
            by_hash = hashes.setdefault(run.seed, {})
            by_hash.setdefault(run.split.hash or UNSEEN, []).append(label)
    for seed, by_hash in sorted(hashes.items()):
        if UNSEEN in by_hash:
            found.append(f"seed {seed}: nobody can tell whether deployed silos had the same data")
        elif len(by_hash) > 1:
            groups = " / ".join(", ".join(labels) for labels in by_hash.values())
            found.append(f"splits differ at seed {seed}: {groups} ran on different cuts")
    seeds = {label: {run.seed for run in runs} for label, runs in compared.items() if runs}
    if len({frozenset(each) for each in seeds.values()}) > 1:
        counts = ", ".join(f"{label} {len(each)}" for label, each in seeds.items())
        found.append(f"not all rows have the same seeds ({counts}): means are of different splits")
    return found


def _percent(run: Figures) -> str:
    return "/".join(f"{100 * share:.0f}" for share in ratio(run))


def _who(compared: Mapping[str, Sequence[Figures]], values: Sequence[str], read: Any) -> str:
    parts = []
    for value in values:
        labels = [label for label, runs in compared.items() if any(read(r) == value for r in runs)]
        parts.append(f"{value} ({', '.join(labels)})")
    return " / ".join(parts)
