"""Exact draws: whole numbers from uniform words, compared with whole numbers, and no float.

What is proved about a mechanism is proved about its law. A law that is only nearly drawn (by
logarithms of floats, say) can be told apart by the last digits of what comes out (Mironov, CCS
2012), so here a draw is a comparison of uniform 64-bit words with whole numbers. A `Words` gives
such words: as many as it is asked for, whichever way the source draws them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedmend.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

Words: TypeAlias = "Callable[[int], NDArray[np.uint64]]"

ALL_WORDS = 2**64


def below(words: Words, limit: int, count: int) -> Numbers:
    """Uniform whole numbers from 0 to `limit` - 1, at most 2^63 - 1: words that fit, drawn anew."""
    top = np.uint64(ALL_WORDS - ALL_WORDS % limit - 1)  # of the words, the last that is as likely
    drawn = words(count).copy()
    again = np.flatnonzero(drawn > top)
    while len(again):
        drawn[again] = words(len(again))
        again = again[drawn[again] > top]
    return (drawn % np.uint64(limit)).view(np.int64)


def bits(words: Words, count: int) -> Mask:
    """Fair coins."""
    drawn = words(-(-count // 64)).view(np.uint8)
    return np.unpackbits(drawn, count=count).view(np.bool_)


def exponential_coins(words: Words, numerators: Numbers, denominator: int) -> Mask:
    """Coins that show heads with probability e^-g, for each g = numerator/denominator up to 1.

    Coins of probability g/1, g/2, g/3 ... are thrown until one shows tails: the chance that it is
    one of those with an odd number is 1 - g + g^2/2 - ... (von Neumann).
    """
    heads = np.zeros(len(numerators), dtype=np.bool_)
    going = np.arange(len(numerators))
    number = 1
    while len(going):
        on = below(words, denominator * number, len(going)) < numerators[going]
        heads[going[~on]] = number % 2 == 1
        going = going[on]
        number += 1
    return heads


def geometric_of_e(words: Words, count: int) -> Numbers:
    """How often in a row a coin of probability 1/e shows heads."""
    found = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while len(going):
        going = going[exponential_coins(words, np.ones(len(going), dtype=np.int64), 1)]
        found[going] += 1
    return found


def two_sided_geometric(words: Words, numerator: int, denominator: int, count: int) -> Numbers:
    """Whole numbers k with a probability in proportion to e^-(|k| numerator/denominator).

    The way of Canonne, Kamath and Steinke (NeurIPS 2020, section 5): a geometric number of steps
    1/denominator, `numerator` of them together, and a sign; minus zero is drawn anew.
    """
    found = np.zeros(count, dtype=np.int64)
    open_ = np.arange(count)
    while len(open_):
        rest = below(words, denominator, len(open_))
        kept = exponential_coins(words, rest, denominator)
        open_kept, rest = open_[kept], rest[kept]
        size = (rest + denominator * geometric_of_e(words, len(rest))) // numerator
        minus = bits(words, len(rest))
        taken = ~(minus & (size == 0))
        found[open_kept[taken]] = np.where(minus, -size, size)[taken]
        open_ = np.setdiff1d(open_, open_kept[taken], assume_unique=True)
    return found


# Normal noise on a grid

_FINEST = 2**10
"""The standard deviation is this many to twice as many steps of the grid."""

_MORE = 1.0 + 1e-5
"""So much more noise than asked for: more than rounding can add to a norm that was clipped."""

_REACH = 13
"""Standard deviations beyond which nothing is drawn: a normal number is there once in 2^125."""

_PLACES = 128
"""Binary places of the probabilities."""


@dataclass(frozen=True)
class GridNormal:
    """Normal noise of standard deviation `spread` steps, rounded to whole steps of a grid.

    Values on the grid plus this noise are what values on the grid plus normal noise are when they
    are rounded afterwards: what is proved of normal noise holds to the last digit. The law of a
    number is off by less than 2^-110 (the reach, and the places of the probabilities).

    step: a power of two, so that floats are divided by it exactly.
    """

    step: float
    spread: int

    @classmethod
    def of(cls, deviation: float) -> GridNormal:
        """The grid for noise of this standard deviation, or up to a thousandth more."""
        if not 1e-150 <= deviation <= 1e150:
            raise SettingsError(
                f"noise of standard deviation {deviation:g} cannot be drawn: from 1e-150 to 1e150"
            )
        step = math.ldexp(1.0, math.frexp(deviation)[1] - 1) / _FINEST
        return cls(step, math.ceil(deviation / step * _MORE))

    def rounded(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values in whole steps, towards zero: no norm grows."""
        return np.trunc(values / self.step)

    def draw(self, words: Words, count: int) -> Numbers:
        """Noise in whole steps."""
        thresholds, high = _thresholds(self.spread)
        first = words(count)
        size = np.searchsorted(high, first, side="right")
        # Words that agree with a threshold's first 64 places need 64 more of their own.
        for at in np.flatnonzero(high[np.maximum(size - 1, 0)] == first):
            drawn = int(first[at]) * ALL_WORDS + int(words(1)[0])
            size[at] = bisect_right(thresholds, drawn)
        return np.where(bits(words, count), -size, size)


@lru_cache(maxsize=8)
def _thresholds(spread: int) -> tuple[list[int], NDArray[np.uint64]]:
    """2^128 times the probabilities that the rounded noise is at most 0, 1, 2 ... in size.

    The second holds their first 64 places.
    """
    masses = _masses(spread)
    whole = 2 * sum(masses) - masses[0]
    thresholds, total = [], -masses[0]
    for mass in masses[:-1]:
        total += 2 * mass
        thresholds.append((total << _PLACES) // whole)
    return thresholds, np.array([each >> 64 for each in thresholds], dtype=np.uint64)


def _masses(spread: int) -> list[int]:
    """What the normal law has around each whole number from 0 up, times any number.

    Around u = k/spread it is e^(-u^2/2) times the integral of e^(-uv - v^2/2) over |v| up to half
    a step, whose series has Hermite's polynomials as coefficients: He_2j(u) v^2j / (2j)!.
    """
    places = _PLACES + 64
    square = spread * spread
    # e^(-1/(2 spread^2)), the ratio of the first two weights, by its series.
    ratio, term, number = 0, 1 << places, 0
    while term:
        ratio += term if number % 2 == 0 else -term
        number += 1
        term //= 2 * square * number
    growth = ratio * ratio >> places
    below_ = [(2 * square) ** (2 * j) * math.factorial(2 * j) * (2 * j + 1) for j in range(7)]
    masses, weight = [], 1 << places
    for k in range(_REACH * spread + 1):
        before, now = 1, k  # He_0 and He_1, times powers of `spread`
        total = (1 << places) // below_[0]
        for n in range(1, 13):
            before, now = now, k * now - n * square * before
            if n % 2 == 1:
                total += (now << places) // below_[(n + 1) // 2]
        masses.append(weight * total >> places)
        weight = weight * ratio >> places
        ratio = ratio * growth >> places
    return masses
