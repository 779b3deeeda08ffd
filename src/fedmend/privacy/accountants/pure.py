"""Pure differential privacy: what is released adds up, and holds without exception (delta 0)."""

from __future__ import annotations

from collections.abc import Mapping

from fedmend.privacy.account import Account
from fedmend.privacy.accountants.history import History


class PureAccountant(History):
    """Releases of which each is private with an epsilon of its own."""

    @staticmethod
    def price(parameter: float) -> float:
        return parameter

    @property
    def epsilon(self) -> float:
        """What the unit that took part most is left with."""
        return composed_epsilon(self.worst)


def composed_epsilon(uses: Mapping[float, int]) -> float:
    """Epsilon of several releases together: their sum."""
    return float(sum(epsilon * steps for epsilon, steps in uses.items()))


def pure_account(mechanism: str, per: str, uses: Mapping[float, int]) -> Account:
    """The account of a mechanism that is private with these epsilons, each so many times."""
    epsilon, times = composed_epsilon(uses), sum(uses.values())
    return Account(
        mechanism=mechanism,
        per=per,
        epsilon=epsilon,
        delta=0.0,
        uses=times,
        sentence=f"{mechanism}: epsilon {epsilon:.4g} at delta 0 ({per}, uses: {times}).",
        details={"epsilons": {repr(each): steps for each, steps in uses.items()}},
        drawn=times > 0,
    )
