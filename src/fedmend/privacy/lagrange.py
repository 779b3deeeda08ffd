"""Lagrange coding of a message into shares (HiFGL, section 4.2.2), in matrix form.

A message h becomes the polynomial g of degree T with g(beta_1) = h and g(beta_j) = z_j, T fresh
masks; its shares are g(alpha_1), ..., g(alpha_n). Any T of them are uniform, whatever h is; T + 1
give h by interpolation at beta_1. Here every share is multiplied at once by its own coefficient of
that interpolation, so that the shares of a message, and of a sum of messages, simply add up to it.

With n = T + 1 + checks shares there are `checks` linear combinations that are zero for shares of a
polynomial of degree T: one wrong share is then noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedmend.privacy.field import PRIME, add, subtract, times

if TYPE_CHECKING:
    from fedmend.privacy.field import Elements

Matrix = list[list[int]]


def basis(points: list[int], at: int) -> list[int]:
    """The Lagrange basis of `points`, each polynomial at one place."""
    values = []
    for i, own in enumerate(points):
        numerator, denominator = 1, 1
        for k, other in enumerate(points):
            if k != i:
                numerator = numerator * (at - other) % PRIME
                denominator = denominator * (own - other) % PRIME
        values.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return values


def determinant(matrix: Matrix) -> int:
    """Of a small square matrix over the field, by elimination."""
    rows = [[value % PRIME for value in row] for row in matrix]
    result = 1
    for column in range(len(rows)):
        pivot: int | None = next((r for r in range(column, len(rows)) if rows[r][column]), None)
        if pivot is None:
            return 0
        if pivot != column:
            rows[column], rows[pivot] = rows[pivot], rows[column]
            result = -result
        result = result * rows[column][column] % PRIME
        inverse: int = pow(rows[column][column], -1, PRIME)
        for row in rows[column + 1 :]:
            factor = row[column] * inverse % PRIME
            for k in range(column, len(rows)):
                row[k] = (row[k] - factor * rows[column][k]) % PRIME
    return result % PRIME


@dataclass(frozen=True)
class LagrangeCode:
    """A code that hides a message from any `threshold` (T) holders of shares.

    checks: shares beyond the T + 1 that are needed; each is one test for wrong shares.
    """

    threshold: int
    checks: int = 0

    def __post_init__(self) -> None:
        if self.threshold < 1 or self.checks < 0:
            raise ValueError("a code needs threshold >= 1 and checks >= 0")
        # Lemma 5.1, for the columns that any T holders of these shares see first.
        bottom = [row[: self.threshold] for row in self.encoding[1:]]
        if determinant(bottom) == 0:
            raise ArithmeticError("the encoding matrix has a singular bottom: not a secret")

    @property
    def shares(self) -> int:
        """How many shares a message has."""
        return self.threshold + 1 + self.checks

    @cached_property
    def hidden_points(self) -> list[int]:
        """beta: the message's place, then the masks'."""
        return list(range(1, self.threshold + 2))

    @cached_property
    def share_points(self) -> list[int]:
        """alpha: the shares' places, none of them a beta."""
        return list(range(self.threshold + 2, self.threshold + 2 + self.shares))

    @cached_property
    def encoding(self) -> Matrix:
        """U of Eq. (5): row i is the message or a mask, column j a share."""
        columns = [basis(self.hidden_points, alpha) for alpha in self.share_points]
        return [list(row) for row in zip(*columns, strict=True)]

    @cached_property
    def decoding(self) -> list[int]:
        """The coefficient of each share in the interpolation at beta_1, through all of them."""
        return basis(self.share_points, self.hidden_points[0])

    @cached_property
    def premultiplied(self) -> Matrix:
        """`encoding` with every column multiplied by its coefficient of `decoding`."""
        return [
            [value * each % PRIME for value, each in zip(row, self.decoding, strict=True)]
            for row in self.encoding
        ]

    def encode(self, message: Elements, masks: Elements) -> Elements:
        """The premultiplied shares, share by share; `masks` are T fresh uniform arrays.

        They add up to the message, so the last one is what is missing from the others' sum.
        """
        shares = np.empty((self.shares, *message.shape), dtype=np.uint64)
        rest = message
        for j in range(self.shares - 1):
            share = times(self.premultiplied[0][j], message)
            for i in range(self.threshold):
                share = add(share, times(self.premultiplied[i + 1][j], masks[i]))
            shares[j] = share
            rest = subtract(rest, share)
        shares[-1] = rest
        return shares

    def decode(self, shares: Elements) -> Elements:
        """The message (or sum of messages) from its premultiplied shares (or sums of them)."""
        total: Elements = shares[0]
        for share in shares[1:]:
            total = add(total, share)
        return total

    def consistent(self, shares: Elements) -> bool:
        """Whether the shares lie on one polynomial of degree T; always so without `checks`."""
        for extra in range(self.threshold + 1, self.shares):
            # The first T + 1 shares foretell each one more.
            known = self.share_points[: self.threshold + 1]
            foretold = basis(known, self.share_points[extra])
            expected = np.zeros_like(shares[0])
            for k, coefficient in enumerate(foretold):
                plain = coefficient * pow(self.decoding[k], -1, PRIME) % PRIME
                expected = add(expected, times(plain, shares[k]))
            given = times(pow(self.decoding[extra], -1, PRIME), shares[extra])
            if not np.array_equal(expected, given):
                return False
        return True
