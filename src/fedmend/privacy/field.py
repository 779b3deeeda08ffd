"""Arithmetic in the prime field of 2^61 - 1 elements, exact, on whole arrays of uint64.

Numbers become field elements as fixed-point integers (negative ones from above), so that sums of
elements are sums of numbers as long as they stay below half of the prime: `limit` is the check
that makes an overflow an error before it can become a wrong number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import FederationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Elements = NDArray[np.uint64]

BITS = 61
PRIME: int = 2**BITS - 1
_P = np.uint64(PRIME)
_SHIFT = np.uint64(BITS)
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_MIDDLE = np.uint64(29)  # BITS - 32
_MIDDLE_LOW = np.uint64(2**29 - 1)
_EIGHT = np.uint64(3)  # 2^64 is 8 here: a shift by 3


def limit(fraction_bits: int, summands: int) -> float:
    """The largest |number| of which `summands` can be added without leaving the field's range."""
    return float((PRIME // 2) // max(summands, 1)) / 2.0**fraction_bits


def to_field(values: NDArray[Any], fraction_bits: int, summands: int, whose: str) -> Elements:
    """Numbers as fixed-point elements, of which `summands` may be added up.

    A number that is not finite, or so large that a sum could leave the range, is an error: nothing
    has been sent by then.
    """
    with np.errstate(over="ignore"):  # becomes infinite, which is found below
        scaled = np.multiply(values, 2.0**fraction_bits, dtype=np.float64)
    largest = float(np.abs(scaled).max(initial=0.0))
    allowed = limit(fraction_bits, summands)
    # One unit of room for rounding; written so that NaN fails too.
    if not largest + 1.0 <= allowed * 2.0**fraction_bits:
        raise FederationError(
            f"{whose} has a value of size {largest / 2.0**fraction_bits:.4g}, and sums of "
            f"{summands} such values do not fit: at most {allowed:.4g} at "
            f"fraction_bits={fraction_bits}; scale the features down or use fewer fraction_bits"
        )
    whole = np.rint(scaled, out=scaled).astype(np.int64)
    whole += (whole < 0) * np.int64(PRIME)
    elements: Elements = whole.view(np.uint64)
    return elements


def from_field(elements: Elements, fraction_bits: int) -> NDArray[np.float64]:
    """The numbers that elements stand for."""
    signed = elements.astype(np.int64)
    signed -= (signed > PRIME // 2) * np.int64(PRIME)
    return signed / 2.0**fraction_bits


def reduced(values: Elements) -> Elements:
    """Any 64-bit values as elements below the prime."""
    folded = (values & _P) + (values >> _SHIFT)
    folded -= (folded >= _P) * _P
    return folded


def add(one: Elements, other: Elements) -> Elements:
    """Sum of elements."""
    total = one + other
    total -= (total >= _P) * _P
    return total


def subtract(one: Elements, other: Elements) -> Elements:
    """Difference of elements."""
    return add(one, _P - other)


def times(factor: int, elements: Elements) -> Elements:
    """A constant times elements: products of 32-bit halves, folded by 2^61 = 1."""
    factor %= PRIME
    if factor == 1:
        return elements.copy()
    low, high = np.uint64(factor & (2**32 - 1)), np.uint64(factor >> 32)
    element_low, element_high = elements & _LOW, elements >> _HALF
    bottom = element_low * low
    middle = element_low * high + element_high * low  # below 2^62
    total = (element_high * high) << _EIGHT
    total += bottom & _P
    total += bottom >> _SHIFT
    total += middle >> _MIDDLE
    total += (middle & _MIDDLE_LOW) << _HALF
    return reduced(total)


def add_rows(rows: Elements, group: NDArray[np.int64], groups: int) -> Elements:
    """Sums of the rows that belong to the same group."""
    out = np.zeros((groups, *rows.shape[1:]), dtype=np.uint64)
    if not len(rows):
        return out
    import torch

    most = int(np.bincount(group, minlength=1).max())
    index = torch.from_numpy(group)

    def added(values: Elements) -> Elements:
        total = torch.zeros(out.shape, dtype=torch.int64)
        total.index_add_(0, index, torch.from_numpy(values.view(np.int64)))
        return total.numpy().view(np.uint64)

    if most <= 4:  # sums of four elements fit into 63 bits
        return reduced(added(rows))
    # Halves apart, so that even a million rows cannot overflow.
    high, low = reduced(added(rows >> _HALF)), reduced(added(rows & _LOW))
    return add(times(2**32, high), low)
