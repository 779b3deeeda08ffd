"""Epsilon of the Gaussian mechanism: against its closed form, and how it must grow and shrink."""

from __future__ import annotations

import math
import sys

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedmend.errors import SettingsError
from fedmend.privacy.accountants.gaussian import gaussian_epsilon


def closed_form(noise: float, delta: float) -> float:
    """The exact epsilon of one Gaussian release (Balle and Wang, 2018), by bisection."""

    def excess(epsilon: float) -> float:
        left = norm.cdf(0.5 / noise - epsilon * noise)
        right = norm.logcdf(-0.5 / noise - epsilon * noise)
        return float(left - math.exp(epsilon + right) - delta)

    return float(brentq(excess, 0.0, 1000.0, xtol=1e-9))


@pytest.mark.parametrize(("noise", "steps"), [(0.7, 1), (1.0, 1), (5.0, 100), (4.0, 3), (50.0, 9)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_without_sampling_it_is_the_closed_form(noise: float, steps: int, delta: float) -> None:
    exact = closed_form(noise / math.sqrt(steps), delta)
    found = gaussian_epsilon(noise, steps, delta)
    assert exact <= found <= exact * 1.001 + 1e-3


def test_little_noise_is_accounted_quickly_and_from_above() -> None:
    exact = closed_form(0.1, 1e-5)
    assert exact <= gaussian_epsilon(0.1, 1, 1e-5) <= 1.1 * exact
    assert gaussian_epsilon(0.5, 25, 1e-5) == gaussian_epsilon(0.1, 1, 1e-5)


def test_order() -> None:
    base = gaussian_epsilon(2.0, 10, 1e-5)
    assert gaussian_epsilon(3.0, 10, 1e-5) < base < gaussian_epsilon(2.0, 20, 1e-5)
    assert gaussian_epsilon(2.0, 10, 1e-7) > base
    sampled = gaussian_epsilon(2.0, 10, 1e-5, sampling_rate=0.1)
    assert 0.0 < sampled < base / 4


def test_limits() -> None:
    assert gaussian_epsilon(1.0, 0, 1e-5) == 0.0
    assert gaussian_epsilon(0.0, 1, 1e-5) == math.inf
    assert gaussian_epsilon(1e9, 1, 1e-5) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((-1.0, 1, 1e-5), "noise_multiplier=-1.0 is not allowed"),
        ((math.nan, 1, 1e-5), "noise_multiplier=nan is not allowed"),
        ((1.0, -1, 1e-5), "steps=-1 is not allowed"),
        ((1.0, 1, 0.0), "delta=0.0 is not allowed"),
        ((1.0, 1, 1.0), "delta=1.0 is not allowed"),
        ((1.0, 1, 1e-5, 0.0), "sampling_rate=0.0 is not allowed"),
        ((1.0, 1, 1e-5, 1.1), "sampling_rate=1.1 is not allowed"),
    ],
)
def test_refused(given: tuple[float, int, float], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        gaussian_epsilon(*given)


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(SettingsError, match=r"pip install 'fedmend\[privacy\]'"):
        gaussian_epsilon(1.0, 1, 1e-5)
