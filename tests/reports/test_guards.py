"""Guard-rails: what is not alike is told, and the split's figures are as counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedmend.reports import guards
from fedmend.runs.record import Figures
from tests.tiny import some_figures


def record(seed: int = 0, hash_: str | None = "h", silos: int = 2, **changes: Any) -> Figures:
    both = [
        silo({"a": 6, "b": 2}, train_nodes=6, val_nodes=1, test_nodes=1),
        silo({"a": 0, "b": 2}, train_nodes=0, val_nodes=1, test_nodes=1),
    ]
    data = {"silos": silos, "missing_share": None, "per_silo": both[:silos]}
    split = {"how": "random", "seed": seed, "hash": hash_ and f"{hash_}{seed}"}
    return some_figures(**{"seed": seed, "split": split, "data": data, **changes})


def silo(labels: dict[str, int], **roles: int) -> dict[str, Any]:
    return {"name": "x", "nodes": 8, "edges": 8, "labels": labels, **roles}


def test_label_skew_and_ratio_by_hand() -> None:
    assert guards.ratio(record()) == pytest.approx((0.6, 0.2, 0.2))
    # Whole: 0.6 a, 0.4 b. First silo 0.75/0.25 (0.15 off, 8 of 10 nodes), second 0/1 (0.6 off).
    assert guards.label_skew(record()) == pytest.approx(0.8 * 0.15 + 0.2 * 0.6)


def test_one_silo_has_no_skew_and_no_labels_neither() -> None:
    assert guards.label_skew(record(silos=1)) == 0.0
    nobody = silo({"a": 0, "b": 0}, train_nodes=0, val_nodes=0, test_nodes=0)
    data = {"silos": 1, "missing_share": None, "per_silo": [nobody]}
    assert guards.label_skew(record(data=data)) == 0.0


def test_alike_rows_are_not_warned_about() -> None:
    both = [record(0), record(1)]
    assert guards.warnings({"x": both, "y": both}) == []
    assert guards.warnings({"x": both, "y": []}) == []
    assert guards.warnings({}) == []


def test_each_difference_is_told() -> None:
    base = [record(0), record(1)]
    (mode,) = guards.warnings({"x": base, "y": [record(0, evaluation="own"), record(1)]})
    assert "evaluation differs" in mode
    assert "own (y)" in mode
    (cut,) = guards.warnings({"x": base, "y": [record(0, hash_="z"), record(1)]})
    assert "splits differ at seed 0" in cut
    less = silo({"a": 6, "b": 2}, train_nodes=2, val_nodes=1, test_nodes=1)
    data = {"silos": 1, "missing_share": None, "per_silo": [less]}
    other = [record(seed, data=data) for seed in (0, 1)]
    (ratio,) = guards.warnings({"x": base, "y": other})
    assert "train/val/test differ" in ratio
    assert "60/20/20 (x)" in ratio
    deployed = [record(0, hash_=None)]
    (unseen,) = guards.warnings({"x": deployed, "y": deployed})
    assert "nobody can tell" in unseen
    (seeds,) = guards.warnings({"x": base, "y": base[:1]})
    assert "same seeds" in seeds
