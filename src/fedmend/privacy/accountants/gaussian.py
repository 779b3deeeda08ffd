"""What Gaussian noise on clipped values is worth: epsilon under composition.

The mechanism: what one node contributes is clipped to a norm of at most C, and Gaussian noise of
standard deviation `noise_multiplier` times C is added, in each of `steps` releases. Neighbouring
inputs differ by one node's contribution being there or not. The arithmetic is dp-accounting's
(privacy loss distributions, rounded up; Rényi where there is so little noise that their grid would
be huge): every figure is an upper bound.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from fedmend.errors import SettingsError

LITTLE_NOISE = 0.25
"""Below this noise in all, epsilon is beyond 50 whatever the accountant: the quick one will do."""


def gaussian_epsilon(
    noise_multiplier: float, steps: int, delta: float, sampling_rate: float = 1.0
) -> float:
    """Epsilon, at this delta, of `steps` Gaussian releases; infinite without noise.

    Args:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        steps: how many times noised values were released.
        delta: the probability with which epsilon may be exceeded.
        sampling_rate: with which probability a node takes part in a release (Poisson sampling).
    """
    steps = operator.index(steps)
    if not 0.0 <= noise_multiplier < math.inf:
        raise SettingsError(f"noise_multiplier={noise_multiplier} is not allowed: 0 or more")
    if steps < 0:
        raise SettingsError(f"steps={steps} is not allowed: 0 or more")
    if not 0.0 < delta < 1.0:
        raise SettingsError(f"delta={delta} is not allowed: between 0 and 1")
    if not 0.0 < sampling_rate <= 1.0:
        raise SettingsError(f"sampling_rate={sampling_rate} is not allowed: above 0, at most 1")
    if steps == 0:
        return 0.0
    if noise_multiplier == 0.0:
        return math.inf
    accounting = _dp_accounting()
    # Where everybody always takes part, many releases are exactly one with less noise.
    once = noise_multiplier / math.sqrt(steps)
    if sampling_rate == 1.0:
        event, steps = accounting.GaussianDpEvent(once), 1
    else:
        event = accounting.PoissonSampledDpEvent(
            sampling_rate, accounting.GaussianDpEvent(noise_multiplier)
        )
    # Sampled releases add up more slowly: there only the noise of a single one matters.
    if (once if sampling_rate == 1.0 else noise_multiplier) < LITTLE_NOISE:
        from dp_accounting.rdp import RdpAccountant as Accountant
    else:
        from dp_accounting.pld import PLDAccountant as Accountant
    accountant = Accountant()
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise SettingsError(
            "the accountant of Gaussian noise needs the package dp-accounting; install it with: "
            "pip install 'fedmend[privacy]'"
        ) from error
    return dp_accounting
