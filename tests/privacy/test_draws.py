"""Exact draws: their laws computed in whole numbers, and what is drawn compared with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from fedmend.errors import SettingsError
from fedmend.privacy import draws
from fedmend.privacy.draws import GridNormal, below, bits, exponential_coins, two_sided_geometric
from fedmend.privacy.noise import PublicNoise

WORDS = PublicNoise(0, "tests").words


def scripted(*values: int) -> Callable[[int], Any]:
    """Words that are these, in turn."""
    left = list(values)

    def words(count: int) -> Any:
        given = [left.pop(0) for _ in range(count)]
        return np.array(given, dtype=np.uint64)

    return words


def fits(observed: list[int], law: list[float]) -> bool:
    """Whether counts agree with a law; refused by chance once in a million."""
    total = sum(observed)
    return bool(chisquare(observed, [total * each for each in law]).pvalue > 1e-6)


def test_uniform_numbers_leave_no_remainder() -> None:
    top = 2**64 - 2**64 % 3 - 1
    assert below(scripted(0, 1, 2, top, 3), 3, 5).tolist() == [0, 1, 2, top % 3, 0]
    assert below(scripted(top + 1, 5), 3, 1).tolist() == [2]  # would make 0 the likelier
    assert below(scripted(2**64 - 1), 1, 1).tolist() == [0]
    assert below(scripted(2**64 - 1, 2**63), 2**63 - 1, 1).tolist() == [1]


@given(limit=st.integers(1, 2**63 - 1), count=st.integers(0, 20))
def test_uniform_numbers_stay_below(limit: int, count: int) -> None:
    drawn = below(WORDS, limit, count)
    assert len(drawn) == count
    assert all(0 <= each < limit for each in drawn.tolist())


def test_uniform_numbers_are_uniform() -> None:
    drawn = below(WORDS, 7, 70_000)
    assert fits(np.bincount(drawn, minlength=7).tolist(), [1 / 7] * 7)


def test_coins_are_fair() -> None:
    for count in (0, 1, 63, 64, 65):
        assert len(bits(WORDS, count)) == count
    drawn = bits(WORDS, 100_000)
    assert fits([int(drawn.sum()), int((~drawn).sum())], [0.5, 0.5])


@pytest.mark.parametrize("numerator", [0, 1, 3, 7, 8])
def test_exponential_coins(numerator: int) -> None:
    heads = exponential_coins(WORDS, np.full(50_000, numerator), 8)
    if numerator == 0:
        assert heads.all()
    else:
        chance = math.exp(-numerator / 8)
        assert fits([int(heads.sum()), int((~heads).sum())], [chance, 1 - chance])


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 2), (3, 1), (5, 7), (2**20, 2**20)])
def test_two_sided_geometric_law(numerator: int, denominator: int) -> None:
    drawn = two_sided_geometric(WORDS, numerator, denominator, 50_000)
    rate = numerator / denominator
    furthest = next(k for k in range(99) if 50_000 * math.exp(-rate * k) * math.tanh(rate / 2) < 10)
    inner = range(-furthest + 1, furthest)
    law = [math.tanh(rate / 2) * math.exp(-rate * abs(k)) for k in inner]
    law = [(1 - sum(law)) / 2, *law, (1 - sum(law)) / 2]
    counted = np.bincount(np.clip(drawn, -furthest, furthest) + furthest, minlength=len(law))
    assert fits(counted.tolist(), law)


def exact_normal(size: int, spread: int) -> Decimal:
    """The probability that normal noise is at most size + 1/2 steps, by its power series."""
    with localcontext(prec=120):
        x = (Decimal(size) + Decimal("0.5")) / spread / Decimal(2).sqrt()
        term, total, n = x, x, 0
        while abs(term) > Decimal(10) ** -80:
            n += 1
            term = -term * x * x / n
            total += term / (2 * n + 1)
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640629")
        return 2 * total / pi.sqrt()


@pytest.mark.parametrize("spread", [1025, 1434])
def test_rounded_normal_law_to_35_digits(spread: int) -> None:
    thresholds, high = draws._thresholds(spread)
    assert len(thresholds) == 13 * spread
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] < 2**128
    assert [each >> 64 for each in thresholds[::999]] == high[::999].tolist()
    for size in (0, 1, 100, spread, 3 * spread, 6 * spread):
        with localcontext(prec=60):
            found = Decimal(thresholds[size]) / Decimal(2**128)
            assert abs(found - exact_normal(size, spread)) < Decimal(2) ** -118


def test_what_is_drawn_follows_the_thresholds() -> None:
    grid = GridNormal.of(1.0)
    thresholds, high = draws._thresholds(grid.spread)
    fourth, place = thresholds[3], int(high[3])
    assert high[2] < place < high[4]

    def draw(*words: int) -> int:
        return int(grid.draw(scripted(*words), 1)[0])

    none, minus = 0, 2**64 - 1
    assert draw(0, none) == 0
    assert draw(place - 1, none) == 3
    assert draw(place + 1, none) == 4
    assert draw(place + 1, minus) == -4
    # Exactly the threshold's first half: 64 more places decide.
    assert draw(place, fourth % 2**64, none) == 4
    assert draw(place, fourth % 2**64 - 1, none) == 3
    assert draw(2**64 - 1, 2**64 - 1, none) == 13 * grid.spread


def test_normal_noise_is_normal() -> None:
    grid = GridNormal.of(0.7)
    drawn = grid.draw(WORDS, 100_000) * grid.step
    edges = np.linspace(-2, 2, 21)
    law = np.diff(
        norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / (grid.spread * grid.step))
    )
    counted = np.bincount(np.searchsorted(edges, drawn + grid.step / 2), minlength=len(law))
    assert fits(counted.tolist(), law.tolist())


@given(deviation=st.floats(1e-150, 1e150))
def test_noise_is_never_less_than_asked_for(deviation: float) -> None:
    grid = GridNormal.of(deviation)
    assert math.frexp(grid.step)[0] == 0.5  # a power of two
    assert 2**10 < grid.spread <= 2**11 + 1
    assert deviation * (1 + 9e-6) <= grid.spread * grid.step <= deviation * 1.002


@settings(max_examples=50)
@given(
    deviation=st.floats(1e-6, 1e6),
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9),
)
def test_rounding_makes_no_value_longer(deviation: float, values: list[float]) -> None:
    grid = GridNormal.of(deviation)
    steps = grid.rounded(np.array(values))
    assert (steps == np.round(steps)).all()
    assert (np.abs(steps * grid.step) <= np.abs(values)).all()
    assert (np.abs(steps * grid.step - values) < grid.step).all()


@pytest.mark.parametrize("deviation", [0.0, -1.0, 1e-200, 1e200, math.inf, math.nan])
def test_noise_that_cannot_be_drawn_is_refused(deviation: float) -> None:
    with pytest.raises(SettingsError, match="cannot be drawn"):
        GridNormal.of(deviation)
