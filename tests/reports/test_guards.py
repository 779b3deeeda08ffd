"""Guard-rails: what is not alike is told, and the split's figures are as counted by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fedmend.reports import guards


def record(seed: int = 0, **changes: Any) -> dict[str, Any]:
    silos = [
        {"labels": {"a": 6, "b": 2}, "train_nodes": 6, "val_nodes": 1, "test_nodes": 1},
        {"labels": {"a": 0, "b": 2}, "train_nodes": 0, "val_nodes": 1, "test_nodes": 1},
    ]
    found = {
        "seed": seed,
        "split": {"hash": f"h{seed}"},
        "evaluation": "global-graph",
        "data": {"per_silo": silos},
    }
    return {**copy.deepcopy(found), **changes}


def test_label_skew_and_ratio_by_hand() -> None:
    assert guards.ratio(record()) == pytest.approx((0.6, 0.2, 0.2))
    # Whole: 0.6 a, 0.4 b. First silo 0.75/0.25 (0.15 off, 8 of 10 nodes), second 0/1 (0.6 off).
    assert guards.label_skew(record()) == pytest.approx(0.8 * 0.15 + 0.2 * 0.6)


def test_one_silo_has_no_skew_and_no_labels_neither() -> None:
    one = record()
    one["data"]["per_silo"] = one["data"]["per_silo"][:1]
    assert guards.label_skew(one) == 0.0
    one["data"]["per_silo"][0]["labels"] = {"a": 0, "b": 0}
    assert guards.label_skew(one) == 0.0


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
    (cut,) = guards.warnings({"x": base, "y": [record(0, split={"hash": "z"}), record(1)]})
    assert "splits differ at seed 0" in cut
    other = copy.deepcopy(base)
    for each in other:
        each["data"]["per_silo"][0]["train_nodes"] = 2
    (ratio,) = guards.warnings({"x": base, "y": other})
    assert "train/val/test differ" in ratio
    assert "60/20/20 (x)" in ratio
    (seeds,) = guards.warnings({"x": base, "y": base[:1]})
    assert "same seeds" in seeds
