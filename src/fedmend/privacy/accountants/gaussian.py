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
from collections.abc import Mapping
from typing import Any

from fedmend.errors import SettingsError
from fedmend.privacy.account import Account, finite
from fedmend.privacy.accountants.history import History

DELTA = 1e-5
"""The delta of accounts for which no setting says another."""

_BEYOND = 1e250
"""The price of no noise: finite, so that without any it still counts who took part most."""

LITTLE_NOISE = 0.25
"""Below this noise in all, epsilon is beyond 50 whatever the accountant: the quick one will do."""


class GaussianAccountant(History):
    """Gaussian releases, each with its noise multiplier."""

    @staticmethod
    def price(parameter: float) -> float:
        return min(1.0 / parameter / parameter, _BEYOND) if parameter else _BEYOND

    def epsilon(self, delta: float) -> float:
        """What the unit that took part most is left with; infinite without noise."""
        return composed_epsilon(self.worst, delta)


def composed_epsilon(uses: Mapping[float, int], delta: float) -> float:
    """Epsilon of releases of several noise multipliers: together they are one with less noise."""
    uses = {each: steps for each, steps in uses.items() if steps}
    if len(uses) == 1:
        ((noise_multiplier, steps),) = uses.items()
        return gaussian_epsilon(noise_multiplier, steps, delta)
    if 0.0 in uses:
        return math.inf
    spent = sum(steps * GaussianAccountant.price(each) for each, steps in uses.items())
    return gaussian_epsilon(1.0 / math.sqrt(spent) if spent else 1.0, int(spent > 0), delta)


def gaussian_account(
    what: str,
    per: str,
    uses: Mapping[float, int],
    delta: float = DELTA,
    details: Mapping[str, Any] | None = None,
) -> Account:
    """The account of Gaussian noise on something.

    uses: how often the unit that took part most did, by noise multiplier: the noise's standard
        deviation over what one unit may change the release by.
    """
    epsilon = composed_epsilon(uses, delta)
    capital = what[:1].upper() + what[1:]
    worth = f"epsilon {epsilon:.3g} at delta {delta:g}"
    if not math.isfinite(epsilon):
        worth = "no noise, no protection"
    times = sum(uses.values())
    often = {0: "never released", 1: "released once"}.get(times, f"released {times} times")
    return Account(
        mechanism=f"Gaussian noise on {what}",
        per=per,
        epsilon=finite(epsilon),
        delta=delta,
        uses=times,
        sentence=f"{capital}: {worth} ({per}, {often}).",
        details={
            "noise_multipliers": {repr(each): steps for each, steps in uses.items()},
            **(details or {}),
        },
        drawn=any(each > 0 and steps > 0 for each, steps in uses.items()),
    )


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
