"""What several seeds say together: means, intervals, and shares of what was lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass


def graph_information_gain(accuracy: float, local_mlp: float, whole_graph: float) -> float:
    """HiFGL's Graph Information Gain: how far from Local-MLP (0) to Global (1) a method gets.

    Below 0 it does worse than without any edge, above 1 better than with all of them. Not a number
    where the two ends are the same.
    """
    span = whole_graph - local_mlp
    return (accuracy - local_mlp) / span if span else math.nan


@dataclass(frozen=True)
class Summary:
    """A figure over several seeds: mean, standard deviation, half-width of the 95% interval."""

    mean: float
    std: float
    interval: float
    count: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarise(values: Sequence[float]) -> Summary:
    """Mean, sample standard deviation and Student's 95% interval; both 0 for a single value."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Summary(mean, 0.0, 0.0, 1)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Summary(mean, std, student_quantile(count - 1) * std / math.sqrt(count), count)


def student_quantile(freedom: float) -> float:
    """How many standard errors reach to either end of a 95% interval (Student's t)."""
    # scipy.stats has it too, and takes more than a second to import.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def student_p(statistic: float, freedom: float) -> float:
    """The probability of a t at least as far from zero, on either side."""
    from scipy.special import stdtr

    return 2.0 * float(stdtr(freedom, -abs(statistic)))


@dataclass(frozen=True)
class Share:
    """A ratio of two mean differences over the same seeds, and its 95% interval."""

    value: float
    low: float
    high: float


def recovered_share(
    method: Sequence[float], base: Sequence[float], ceiling: Sequence[float]
) -> Share | None:
    """(method - base) / (ceiling - base), of figures paired by seed.

    The interval is Fieller's, for the ratio of two means of paired values. None where the interval
    of ceiling - base contains zero: there is nothing to recover that these seeds could tell.
    """
    count = len(base)
    if count < 2:
        return None
    won = [one - other for one, other in zip(method, base, strict=True)]
    lost = [one - other for one, other in zip(ceiling, base, strict=True)]
    a, b = math.fsum(won) / count, math.fsum(lost) / count
    scale = (count - 1) * count  # variances of means
    vaa = math.fsum((x - a) ** 2 for x in won) / scale
    vbb = math.fsum((y - b) ** 2 for y in lost) / scale
    vab = math.fsum((x - a) * (y - b) for x, y in zip(won, lost, strict=True)) / scale
    quantile = student_quantile(count - 1) ** 2
    room = b * b - quantile * vbb
    if room <= 0.0:
        return None
    middle = a * b - quantile * vab
    root = math.sqrt(max(middle * middle - room * (a * a - quantile * vaa), 0.0))
    return Share(a / b, (middle - root) / room, (middle + root) / room)
