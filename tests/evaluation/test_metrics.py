"""Metrics against scikit-learn, summaries against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from fedmend import register
from fedmend.errors import FederationError, SettingsError, UnknownNameError
from fedmend.evaluation.metrics import (
    METRICS,
    Accuracy,
    checked,
    figures,
    metric,
    statistics,
)
from fedmend.evaluation.summary import graph_information_gain, recovered_share, summarise

labels = st.integers(0, 6)


def one_hot(found: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(found, 7).float()


@given(st.lists(st.tuples(labels, labels), min_size=1, max_size=60))
def test_accuracy_and_macro_f1_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    found, true = ([pair[place] for pair in pairs] for place in range(2))
    given = figures(statistics(one_hot(torch.tensor(found)), torch.tensor(true)))
    assert given["accuracy"] == pytest.approx(accuracy_score(true, found), abs=1e-12)
    expected = f1_score(true, found, average="macro", zero_division=0.0)
    assert given["macro_f1"] == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.lists(st.tuples(labels, labels), min_size=0, max_size=20), min_size=1))
def test_statistics_of_silos_add_up_to_the_figures_of_all(
    silos: list[list[tuple[int, int]]],
) -> None:
    pairs = [torch.tensor(each, dtype=torch.int64).reshape(-1, 2).T for each in silos]
    everyone = torch.cat(pairs, dim=1)
    for each in METRICS.values():
        sent = {f"silo-{i}": each.statistic(one_hot(p[0]), p[1]) for i, p in enumerate(pairs)}
        whole = each.statistic(one_hot(everyone[0]), everyone[1])
        total = each.total(sent, 7)
        assert torch.equal(total, whole)
        assert each.nodes(total) == everyone.shape[1]
        assert each.fits(total, 7)
        assert 0.0 <= each.figure(total) <= 1.0
        assert each.figure(torch.zeros_like(total)) == 0.0, "of no nodes at all"


@pytest.mark.parametrize(
    "sent",
    [
        torch.tensor([-(2**60), 3]),
        torch.tensor([4, 3]),
        torch.tensor([1, 2**62]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([1, 2, 3]),
        torch.tensor(1),
    ],
)
def test_counts_that_cannot_be_name_their_silo(sent: torch.Tensor) -> None:
    good = torch.tensor([1, 3])
    with pytest.raises(FederationError, match=r"silo-1 sent figures .* that cannot be"):
        metric("accuracy").total({"silo-0": good, "silo-1": sent}, 3)


@pytest.mark.parametrize(
    "sent",
    [
        torch.tensor([[2, 0], [1, 1], [1, 1]]),  # more right than there are
        torch.tensor([[1, 0], [1, 1], [1, 0]]),  # more nodes than were classified
        torch.tensor([[-1, 0], [1, 1], [1, 1]]),
        torch.zeros(3, 3, dtype=torch.int64),
        torch.zeros(3, 2),
    ],
)
def test_counts_by_class_that_cannot_be(sent: torch.Tensor) -> None:
    assert not metric("macro_f1").fits(sent, 2)
    assert metric("macro_f1").fits(torch.tensor([[1, 0], [1, 1], [1, 1]]), 2)


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        metric("acuracy")


def test_extremes() -> None:
    true = torch.tensor([0, 1, 2])
    assert figures(statistics(one_hot(true), true)) == {"accuracy": 1.0, "macro_f1": 1.0}
    wrong = torch.tensor([1, 2, 0])
    assert figures(statistics(one_hot(wrong), true)) == {"accuracy": 0.0, "macro_f1": 0.0}


def test_what_a_silo_sends_of_other_nodes_than_it_has_names_it() -> None:
    true = torch.tensor([0, 1, 2])
    sent = statistics(one_hot(true), true)
    assert checked("silo-1", {**sent, "unheard_of": true}, 7, 3).keys() == sent.keys()
    with pytest.raises(FederationError, match="silo-1 sent accuracy of other nodes than it has"):
        checked("silo-1", sent, 7, 4)
    with pytest.raises(FederationError, match="silo-1 sent figures"):
        checked("silo-1", sent, 6, 3)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
def test_summary_is_scipys(values: list[float]) -> None:
    found = summarise(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-7)
    spread = scipy.stats.sem(values)
    if spread > 1e-9:
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, found.mean, spread)
        assert found.mean - found.interval == pytest.approx(low, abs=1e-6)
        assert found.mean + found.interval == pytest.approx(high, abs=1e-6)


def test_one_value_has_no_spread() -> None:
    alone = summarise([0.5])
    assert alone.as_dict() == {"mean": 0.5, "std": 0.0, "interval": 0.0, "count": 1}


def test_equal_values_have_none_either() -> None:
    assert summarise([0.1] * 7).std == pytest.approx(0.0, abs=1e-15)
    assert math.isfinite(summarise([0.1] * 7).interval)


def test_recovered_share_of_exact_halves() -> None:
    base = [0.80, 0.82, 0.81, 0.79]
    ceiling = [0.84, 0.86, 0.85, 0.83]
    half = [one + 0.02 for one in base]
    found = recovered_share(half, base, ceiling)
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5), abs=1e-6)


def test_recovered_share_is_undefined_where_nothing_is_lost() -> None:
    base = [0.80, 0.82, 0.81, 0.79]
    assert recovered_share(base, base, [0.81, 0.80, 0.82, 0.78]) is None
    assert recovered_share(base, base, base) is None
    assert recovered_share([0.8], [0.7], [0.9]) is None  # one seed says nothing of the spread


@given(st.integers(3, 8), st.integers(0, 10**6))
def test_recovered_interval_by_its_definition(count: int, seed: int) -> None:
    """Inside the interval, and only there, won - share * lost does not differ from zero."""
    draw = np.random.default_rng(seed)
    base = draw.normal(0.8, 0.01, count)
    ceiling = base + draw.normal(0.03, 0.005, count)
    method = base + draw.normal(0.01, 0.01, count)
    found = recovered_share(method.tolist(), base.tolist(), ceiling.tolist())
    lost = summarise((ceiling - base).tolist())
    assert (found is None) == (abs(lost.mean) <= lost.interval)
    if found is None or found.high - found.low > 1e3:
        return
    for edge in (found.low, found.high):
        rest = summarise((method - base - edge * (ceiling - base)).tolist())
        assert abs(rest.mean) == pytest.approx(rest.interval, rel=1e-6, abs=1e-9)
    assert found.low <= found.value <= found.high


def test_graph_information_gain() -> None:
    # HiFGL's table 3: GCN on Cora, and GraphSAGE on CiteSeer, which does worse than the MLP.
    assert graph_information_gain(0.8555, 0.5698, 0.8689) == pytest.approx(0.9552, abs=1e-4)
    assert graph_information_gain(0.6125, 0.6450, 0.7748) == pytest.approx(-0.2504, abs=1e-4)
    assert math.isnan(graph_information_gain(0.9, 0.8, 0.8))


# From outside


class Rounded(Accuracy):
    """Something about it cannot be summed up over silos."""

    name = "rounded"


class Mean(Rounded):
    def statistic(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = super().statistic(scores, targets)
        return found // found[1].clamp(min=1)


class Growing(Rounded):
    def statistic(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return targets


class Trusting(Rounded):
    def fits(self, statistic: torch.Tensor, classes: int) -> bool:
        return True


class Strict(Rounded):
    def fits(self, statistic: torch.Tensor, classes: int) -> bool:
        return False


class Endless(Rounded):
    def figure(self, statistic: torch.Tensor) -> float:
        return float(statistic[0]) / float(statistic[1]) if statistic[1] else math.nan


class Countless(Rounded):
    def nodes(self, statistic: torch.Tensor) -> int:
        return 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Mean, "must give statistics that add up"),
        (Growing, "must give statistics of one shape"),
        (Trusting, "takes any numbers for its statistics"),
        (Strict, "does not take its own statistics"),
        (Endless, "must give a finite figure"),
        (Countless, "must know of how many nodes"),
        (Accuracy, "must be a fedmend.evaluation.metrics.Metric of that name"),
    ],
)
def test_a_metric_that_silos_cannot_sum_up_is_refused(given: type[Accuracy], said: str) -> None:
    with pytest.raises(SettingsError, match=f"metric 'rounded' {said}"):
        register("metric", "rounded", given)
    assert "rounded" not in METRICS


def test_what_is_in_use_is_in_the_figures() -> None:
    assert set(METRICS.built_in) <= set(METRICS.in_use())
    scores, targets = torch.eye(3), torch.tensor([0, 1, 1])
    assert statistics(scores, targets).keys() == METRICS.in_use().keys()
