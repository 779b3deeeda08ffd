"""The weighted mean against a plain loop, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmend.errors import FederationError
from fedmend.training.aggregation import added_up, weighted_mean


def weights(*values: float) -> dict[str, Tensor]:
    return {"a": torch.tensor(values), "b": torch.tensor([[values[0]], [1.0]])}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.tuples(
            st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=2), st.integers(1, 99)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_is_a_plain_loop(silos: dict[str, tuple[list[float], int]]) -> None:
    updates = {name: {"w": torch.tensor(values)} for name, (values, _) in silos.items()}
    importance = {name: float(nodes) for name, (_, nodes) in silos.items()}
    found = weighted_mean(updates, importance)["w"].tolist()
    total = sum(nodes for _, nodes in silos.values())
    for place in range(2):
        expected = 0.0
        for values, nodes in silos.values():
            expected += values[place] * nodes / total
        assert found[place] == pytest.approx(expected, abs=1e-5)


def test_order_of_arrival_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    updates = {f"s{i}": {"w": torch.rand(50, generator=generator)} for i in range(9)}
    importance = {name: 1.0 + i for i, name in enumerate(updates)}
    backwards = dict(reversed(list(updates.items())))
    one, other = weighted_mean(updates, importance), weighted_mean(backwards, importance)
    assert torch.equal(one["w"], other["w"])


def test_one_silo_is_itself_to_the_bit() -> None:
    alone = weights(0.1, 1 / 3)
    for importance in (1.0, 7.0, 1e-3):
        mean = weighted_mean({"a": alone}, {"a": importance})
        assert all(torch.equal(mean[key], alone[key]) for key in alone)
        assert all(mean[key] is not alone[key] for key in alone)


def test_what_is_sent_is_left_alone() -> None:
    first, second = weights(1.0, 2.0), weights(3.0, 4.0)
    weighted_mean({"a": first, "b": second}, {"a": 1.0, "b": 1.0})
    assert first["a"].tolist() == [1.0, 2.0]
    assert second["a"].tolist() == [3.0, 4.0]


GOOD = weights(1.0, 2.0)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (weights(math.nan, 1.0), r"bad sent weights that are NaN or infinite \(a\).*smaller lr"),
        (weights(math.inf, 1.0), "bad sent weights that are NaN or infinite"),
        (weights(1.0), r"bad sent a as \(1,\) of torch.float32, expected \(2,\)"),
        ({**GOOD, "a": GOOD["a"].double()}, "bad sent a as .* of torch.float64, expected"),
        ({"a": GOOD["a"]}, "bad sent the weights of another model"),
        ({**GOOD, "c": GOOD["a"]}, "bad sent the weights of another model"),
    ],
)
@pytest.mark.parametrize("others", ["a good one", "nobody"])
def test_refuses_naming_the_silo(bad: dict[str, Tensor], text: str, others: str) -> None:
    """Also where the bad silo's name comes first, or it is the only one that answered."""
    updates = {"bad": bad} if others == "nobody" else {"bad": bad, "good": GOOD}
    with pytest.raises(FederationError, match=text):
        weighted_mean(updates, dict.fromkeys(updates, 1.0), like=GOOD)


def test_large_finite_weights_are_no_mistake() -> None:
    """Their sum overflows, they themselves do not."""
    large = {"w": torch.tensor([3e38, 3e38])}
    assert torch.equal(weighted_mean({"a": large}, {"a": 1.0})["w"], large["w"])


@pytest.mark.parametrize("count", [-1.0, math.nan, math.inf])
def test_impossible_importance_is_refused(count: float) -> None:
    with pytest.raises(FederationError, match="bad cannot count"):
        weighted_mean({"bad": GOOD, "good": GOOD}, {"bad": count, "good": 5.0})


def test_no_weight_at_all() -> None:
    with pytest.raises(FederationError, match="no silo has any weight"):
        weighted_mean({"a": GOOD}, {"a": 0.0})


def test_sum_is_a_plain_loop_in_the_order_of_names() -> None:
    generator = torch.Generator().manual_seed(0)
    updates = {f"s{i}": {"w": torch.rand(50, generator=generator)} for i in (3, 1, 2)}
    like = {"w": torch.zeros(50)}
    expected = torch.zeros(50)
    for name in ("s1", "s2", "s3"):
        expected = expected + updates[name]["w"]
    before = {name: each["w"].clone() for name, each in updates.items()}
    assert torch.equal(added_up(updates, like)["w"], expected)
    assert torch.equal(added_up(dict(reversed(list(updates.items()))), like)["w"], expected)
    assert all(torch.equal(updates[name]["w"], before[name]) for name in updates)
    assert added_up({}, like) == {}


def test_sum_refuses_what_the_mean_refuses() -> None:
    for bad in (weights(math.nan, 1.0), weights(1.0), {"a": GOOD["a"]}):
        with pytest.raises(FederationError, match="bad sent"):
            added_up({"bad": bad, "good": GOOD}, GOOD)
