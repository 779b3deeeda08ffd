"""Mechanisms: bounds that hold, laws that are those claimed, uses that are counted."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedmend.errors import FederationError, SettingsError
from fedmend.privacy.accountants.gaussian import GaussianAccountant, gaussian_epsilon
from fedmend.privacy.accountants.pure import PureAccountant, pure_account
from fedmend.privacy.mechanism import (
    GaussianMessages,
    GaussianRows,
    GaussianSum,
    RandomisedResponse,
    TwoSidedGeometric,
)
from fedmend.privacy.noise import NO_NOISE, PublicNoise, SecretNoise

rows_of_numbers = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=width, max_size=width),
        min_size=1,
        max_size=6,
    )
)


# Gaussian noise


def test_rows_are_clipped_and_then_noised() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    accountant = GaussianAccountant(3)
    plain = GaussianRows(1.0, 0.0, accountant, NO_NOISE)
    assert plain.release(rows) is rows  # no noise, no protection: nothing is clipped either
    clipped = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(plain.clipped(rows), clipped)
    noisy = GaussianRows(1.0, 0.5, accountant, PublicNoise(1))
    drawn = PublicNoise(1).add_normal(torch.zeros(3, 2), 1.0)
    torch.testing.assert_close(noisy.release(rows), clipped + 0.5 * drawn)
    assert accountant.worst == {0.0: 1, 0.5: 1}


@given(rows=rows_of_numbers, clip=st.floats(1e-3, 1e3))
def test_no_row_is_longer_than_the_clipping_norm(rows: list[list[float]], clip: float) -> None:
    given_rows = torch.tensor(rows)
    mechanism = GaussianRows(clip, 1.0, GaussianAccountant(len(rows)), NO_NOISE)
    clipped = mechanism.clipped(given_rows).double()
    # The noise of a secret source is larger by more than what rounding adds here.
    assert bool((clipped.norm(dim=1) <= clip * (1 + 9e-6)).all())
    short = given_rows.double().norm(dim=1) < clip * 0.999
    assert torch.equal(clipped[short], given_rows.double()[short])


@given(
    norms=st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=20), clip=st.floats(1e-3, 1e3)
)
def test_terms_of_a_sum_are_scaled_to_the_clipping_norm(norms: list[float], clip: float) -> None:
    accountant = GaussianAccountant(len(norms))
    found = GaussianSum(clip, 2.0, accountant, NO_NOISE).begin(
        torch.arange(len(norms)), torch.tensor(norms)
    )
    lengths = found.double() * torch.tensor(norms).double()
    assert bool((lengths <= clip * (1 + 9e-6)).all())
    assert bool((found <= 1).all())
    assert accountant.worst == {2.0: 1}


def test_messages_with_noise_count_for_each_row_in_them() -> None:
    accountant = GaussianAccountant(4)
    mechanism = GaussianMessages(1.0, 0.0, accountant, NO_NOISE)
    said, values = torch.zeros(3, 1), torch.tensor([[2.0], [0.5], [-0.25], [9.0]])
    mechanism.add(said, values, torch.tensor([0, 1, 1]), torch.tensor([0, 0, 2]))
    assert said.tolist() == [[1.5], [0.0], [0.5]]
    assert accountant.worst == {0.0: 2}  # row 1
    noisy = GaussianMessages(1.0, 5.0, accountant, SecretNoise())
    noisy.add(said, values, torch.tensor([3]), torch.tensor([2]))
    assert said[:2].tolist() == [[1.5], [0.0]]
    assert said[2] != 1.5
    empty = torch.zeros(0, dtype=torch.int64)
    GaussianMessages(1.0, 5.0, accountant, NO_NOISE).add(said, values, empty, empty)


@pytest.mark.parametrize(
    "release",
    [
        lambda: GaussianRows(1.0, 1.0, GaussianAccountant(2), NO_NOISE).release(torch.ones(2, 2)),
        lambda: GaussianSum(1.0, 1.0, GaussianAccountant(2), NO_NOISE).noised(torch.ones(2)),
        lambda: RandomisedResponse(1.0, 3, PureAccountant(2), NO_NOISE).release(
            torch.tensor([0, 1])
        ),
        lambda: TwoSidedGeometric(1.0, 1, PureAccountant(2), NO_NOISE).release(torch.tensor([0])),
    ],
)
def test_without_a_source_nothing_is_released(release: Any) -> None:
    with pytest.raises(FederationError, match="handed no source"):
        release()


# Randomised response


def e_to(exponent: float) -> Fraction:
    with localcontext(prec=80):
        return Fraction(Decimal(exponent).exp())


@given(epsilon=st.floats(0, 20, exclude_min=True), symbols=st.integers(2, 2**16))
def test_odds_are_never_more_than_claimed(epsilon: float, symbols: int) -> None:
    odds = RandomisedResponse(epsilon, symbols, PureAccountant(1), NO_NOISE).odds
    claimed = e_to(epsilon)
    assert claimed * (1 - Fraction(1, 2**30)) <= odds <= claimed


def test_the_law_of_every_word() -> None:
    """With words of all kinds: below the threshold the symbol, else one of the others."""
    mechanism = RandomisedResponse(1.5, 4, PureAccountant(1), NO_NOISE)
    threshold = mechanism._threshold
    assert mechanism.odds == Fraction(threshold, (2**64 - threshold)) * 3

    class Scripted(PublicNoise):
        left: list[int]

        def words(self, count: int) -> Any:
            given, self.left = self.left[:count], self.left[count:]
            return np.array(given, dtype=np.uint64)

    for symbol in range(4):
        for word, other in [(0, 0), (threshold - 1, 2), (threshold, 0), (threshold, 1), (-1, 2)]:
            source = Scripted(0)
            source.left = [word % 2**64, other]
            told = RandomisedResponse(1.5, 4, PureAccountant(1), source)
            found = int(told.release(torch.tensor([symbol]))[0])
            others = [each for each in range(4) if each != symbol]
            assert found == (symbol if 0 <= word < threshold else others[other])


@pytest.mark.parametrize(("epsilon", "symbols"), [(0.1, 2), (1.0, 3), (2.0, 7), (4.0, 2)])
def test_symbols_are_told_by_that_law(epsilon: float, symbols: int) -> None:
    mechanism = RandomisedResponse(epsilon, symbols, PureAccountant(60_000), PublicNoise(2))
    true = torch.arange(60_000) % symbols
    told = mechanism.release(true)
    honest = math.exp(epsilon) / (math.exp(epsilon) + symbols - 1)
    counts = np.bincount(((told - true) % symbols).numpy(), minlength=symbols)
    law = [honest, *[(1 - honest) / (symbols - 1)] * (symbols - 1)]
    assert chisquare(counts, [60_000 * each for each in law]).pvalue > 1e-6


def test_a_secret_symbol_differs_between_two_runs() -> None:
    true = torch.zeros(200, dtype=torch.int64)
    mechanism = RandomisedResponse(0.5, 5, PureAccountant(200), SecretNoise())
    assert not torch.equal(mechanism.release(true), mechanism.release(true))
    assert mechanism.accountant.epsilon == 1.0  # told twice


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: RandomisedResponse(0.0, 3, PureAccountant(1), NO_NOISE), "epsilon=0.0"),
        (lambda: RandomisedResponse(21.0, 3, PureAccountant(1), NO_NOISE), "epsilon=21.0"),
        (lambda: RandomisedResponse(math.nan, 3, PureAccountant(1), NO_NOISE), "epsilon=nan"),
        (lambda: RandomisedResponse(1.0, 1, PureAccountant(1), NO_NOISE), "1 symbols"),
        (lambda: TwoSidedGeometric(1.0, 0, PureAccountant(1), NO_NOISE), "sensitivity=0"),
        (lambda: TwoSidedGeometric(1e-7, 1, PureAccountant(1), NO_NOISE), "epsilon=1e-07"),
        (lambda: TwoSidedGeometric(65.0, 1, PureAccountant(1), NO_NOISE), "epsilon=65.0"),
        (lambda: TwoSidedGeometric(math.nan, 1, PureAccountant(1), NO_NOISE), "epsilon=nan"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        make()


@pytest.mark.parametrize("symbols", [[0, 3], [-1], [0.5]])
def test_symbols_that_are_none_are_refused(symbols: list[Any]) -> None:
    with pytest.raises(SettingsError, match="symbol"):
        RandomisedResponse(1.0, 3, PureAccountant(2), SecretNoise()).release(torch.tensor(symbols))


# Two-sided geometric noise


@given(epsilon=st.floats(1e-3, 64), sensitivity=st.integers(1, 1000))
def test_noise_on_counts_is_never_too_little(epsilon: float, sensitivity: int) -> None:
    ratio = TwoSidedGeometric(epsilon, sensitivity, PureAccountant(1), NO_NOISE).ratio
    exact = Fraction(epsilon) / sensitivity
    assert exact - Fraction(1, 2**20) <= ratio <= exact


@pytest.mark.parametrize("source", [SecretNoise(), PublicNoise(4)])
def test_counts_are_told_by_that_law(source: Any) -> None:
    mechanism = TwoSidedGeometric(2.0, 2, PureAccountant(1), source)
    told = mechanism.release(torch.full((100, 300), 7))
    assert told.shape == (100, 300)
    off = (told - 7).flatten().clamp(-6, 6) + 6
    law = [math.tanh(0.5) * math.exp(-abs(k)) for k in range(-5, 6)]
    law = [(1 - sum(law)) / 2, *law, (1 - sum(law)) / 2]
    counts = np.bincount(off.numpy(), minlength=13)
    assert chisquare(counts, [30_000 * each for each in law]).pvalue > 1e-6
    with pytest.raises(SettingsError, match="counts are whole numbers"):
        mechanism.release(torch.ones(3))


# Accountants


@settings(max_examples=8)
@given(steps=st.lists(st.sampled_from([3.0, 5.0]), max_size=3))
def test_gaussian_uses_compose_in_squares(steps: list[float]) -> None:
    delta = 1e-5
    accountant = GaussianAccountant(2)
    for noise in steps:
        accountant.step(noise, torch.tensor([1]))
    assert accountant.uses == len(steps)
    if not steps:
        assert accountant.epsilon(delta) == 0.0
        return
    once = 1 / math.sqrt(sum(1 / noise**2 for noise in steps))
    assert accountant.epsilon(delta) == pytest.approx(gaussian_epsilon(once, 1, delta), rel=1e-6)


@given(
    batches=st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=9),
    epsilon=st.floats(0.01, 5),
)
def test_the_account_is_that_of_the_unit_that_took_part_most(
    batches: list[list[int]], epsilon: float
) -> None:
    accountant = PureAccountant(7)
    for batch in batches:
        accountant.step(epsilon, torch.tensor(batch, dtype=torch.int64))
    every = [unit for batch in batches for unit in batch]
    most = max((every.count(unit) for unit in range(7)), default=0)
    assert accountant.uses == most
    assert accountant.epsilon == pytest.approx(most * epsilon)
    account = pure_account("Randomised response", "a node", accountant.worst)
    assert (account.epsilon, account.delta) == (accountant.epsilon, 0.0)
    assert (account.uses, account.drawn) == (most, most > 0)


def test_what_was_released_cannot_be_taken_back() -> None:
    accountant = GaussianAccountant(3)
    accountant.step(2.0)
    saved = accountant.state()
    accountant.step(2.0, torch.tensor([0, 0, 2]))
    accountant.restore(saved)  # by a silo that goes on from an earlier state
    assert accountant.worst == {2.0: 3}
    anew = GaussianAccountant(3)
    anew.restore(saved)
    assert anew.worst == {2.0: 1}
    anew.step(0.0)
    assert anew.epsilon(1e-5) == math.inf


def test_no_units_have_no_account() -> None:
    accountant = GaussianAccountant(0)
    accountant.step(1.0)
    assert (accountant.worst, accountant.uses, accountant.epsilon(1e-5)) == ({}, 0, 0.0)
