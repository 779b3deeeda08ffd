"""The tests of a suite's table, against SciPy's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmend.evaluation.summary import Summary, recovered_share, summarise
from fedmend.reports.comparing import Paired, against_published, holm, paired, recovered
from fedmend.runs.record import Figures
from tests.tiny import some_figures


def runs(values: list[float], *, hash_: str | None = "h", mode: str = "m") -> list[Figures]:
    return [
        some_figures(
            seed=seed,
            split={"how": "random", "seed": seed, "hash": hash_ and f"{hash_}{seed}"},
            evaluation=mode,
            result={"mode": mode, "accuracy": value, "macro_f1": value, "test_nodes": 1},
        )
        for seed, value in enumerate(values)
    ]


ONE, OTHER = [0.80, 0.83, 0.81, 0.86], [0.79, 0.80, 0.82, 0.80]


def test_the_paired_test_is_scipys() -> None:
    found = paired("one", runs(ONE), "other", runs(OTHER))
    assert found is not None
    reference = stats.ttest_rel(ONE, OTHER)
    assert found.p == pytest.approx(reference.pvalue)
    low, high = reference.confidence_interval(0.95)
    assert found.difference.mean - found.difference.interval == pytest.approx(low)
    assert found.difference.mean + found.difference.interval == pytest.approx(high)


def test_only_shared_seeds_splits_and_modes_are_paired() -> None:
    fewer = paired("one", runs(ONE)[1:], "other", runs(OTHER))
    assert fewer is not None
    assert fewer.difference == summarise([a - b for a, b in zip(ONE[1:], OTHER[1:], strict=True)])
    assert paired("one", runs(ONE), "other", runs(OTHER, hash_="x")) is None
    assert paired("one", runs(ONE), "other", runs(OTHER, mode="x")) is None
    unseen = runs(ONE, hash_=None)  # of deployed silos nobody can tell
    assert paired("one", unseen, "other", unseen) is None
    assert paired("one", [], "other", runs(OTHER)) is None
    untested = [replace(run, result=None) for run in runs(ONE)]
    assert paired("one", untested, "other", runs(OTHER)) is None


def test_recovered_is_of_shared_seeds_only() -> None:
    top = [each + 0.1 + 0.01 * i for i, each in enumerate(OTHER)]
    whole = recovered(runs(ONE), runs(OTHER), runs(top))
    assert whole == recovered_share(ONE, OTHER, top)
    assert recovered(runs(ONE)[1:], runs(OTHER), runs(top)) == recovered_share(
        ONE[1:], OTHER[1:], top[1:]
    )
    assert recovered(runs(ONE), runs(OTHER), runs(top, hash_="x")) is None
    assert recovered([], runs(OTHER), runs(top)) is None


def test_equal_runs_and_single_seeds() -> None:
    same = paired("one", runs(ONE), "other", runs(ONE))
    assert same is not None
    assert same.p == 1.0
    shifted = paired("one", runs([0.75, 0.5]), "other", runs([0.5, 0.25]))
    assert shifted is not None
    assert shifted.p == 0.0
    single = paired("one", runs(ONE[:1]), "other", runs(OTHER[:1]))
    assert single is not None
    assert single.p is None


def test_against_a_published_figure_is_welchs_interval() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.normal(0.8, 0.01, 5)
    found = against_published(summarise(ONE), theirs.mean(), theirs.std(ddof=1), 5)
    reference = stats.ttest_ind(ONE, theirs, equal_var=False)
    low, high = reference.confidence_interval(0.95)
    assert found.interval is not None
    assert found.difference - found.interval == pytest.approx(low)
    assert found.difference + found.interval == pytest.approx(high)


def test_marks() -> None:
    ours = Summary(0.8, 0.01, 0.0124, 5)
    assert against_published(ours, 0.7, 0.01, 5).mark == "above"
    assert against_published(ours, 0.9, 0.01, 5).mark == "below"
    assert against_published(ours, 0.801, 0.01, 5).mark == "within"
    exact = against_published(ours, 0.8, None, 5)  # no deviation printed: our interval alone
    assert exact.interval == pytest.approx(stats.t.ppf(0.975, 4) * 0.01 / math.sqrt(5))
    alone = against_published(Summary(0.8, 0.0, 0.0, 1), 0.7, 0.01, 5)
    assert (alone.mark, alone.interval) == ("", None)
    assert against_published(Summary(0.8, 0.0, 0.0, 3), 0.8, None, 5).mark == "within"


def with_p(values: list[float | None]) -> list[Paired]:
    return [Paired(f"{i}", "b", Summary(0, 0, 0, 2), p) for i, p in enumerate(values)]


def test_holm_by_hand() -> None:
    adjusted = [test.adjusted for test in holm(with_p([0.01, None, 0.04, 0.03]))]
    assert adjusted == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_between_p_and_bonferroni(values: list[float]) -> None:
    adjusted = [test.adjusted for test in holm(with_p([*values]))]
    for p, q in zip(values, adjusted, strict=True):
        assert q is not None
        assert p <= q <= min(1.0, p * len(values)) or q == max(values)
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [adjusted[i] or 0.0 for i in order]
    assert found == sorted(found)
