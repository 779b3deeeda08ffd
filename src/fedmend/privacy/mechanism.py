"""Mechanisms: they bound what one unit contributes, draw what hides it, and keep account.

A mechanism has a source of noise that its silo was handed (`privacy.noise`), and an accountant
that is told of every use, of every unit that took part (`privacy.accountants`). What it is worth
is the accountant's to say. A new mechanism is a class here and, unless one of the accountants
there does, a file in `accountants/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import SettingsError
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.accountants.pure import PureAccountant
from fedmend.privacy.draws import ALL_WORDS, below, two_sided_geometric
from fedmend.privacy.noise import NoiseSource


class Gaussian:
    """Normal noise of `multiplier` times the norm that a unit's contribution is clipped to."""

    def __init__(
        self, clip: float, multiplier: float, accountant: GaussianAccountant, source: NoiseSource
    ) -> None:
        self.clip, self.multiplier = clip, multiplier
        self.accountant, self.source = accountant, source

    def clipped(self, rows: Tensor) -> Tensor:
        """Rows as they are, those of a larger norm scaled down to it."""
        norms = rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
        shorter: Tensor = rows * (self.clip / norms).clamp(max=1.0)
        return shorter

    def noised(self, values: Tensor) -> Tensor:
        """Values with noise on each of them; without noise as they are, and nothing is drawn."""
        if not self.multiplier:
            return values
        return self.source.add_normal(values, self.multiplier * self.clip)

    def state(self) -> dict[str, Tensor]:
        """What was released, and what it takes to go on with the same draws, if anything does."""
        kept = {f"accountant/{key}": each for key, each in self.accountant.state().items()}
        return kept | {f"source/{key}": each for key, each in self.source.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        for name, part in (("accountant/", self.accountant), ("source/", self.source)):
            part.restore({k.removeprefix(name): v for k, v in state.items() if k.startswith(name)})


class GaussianRows(Gaussian):
    """For rows that each are one unit's: all are clipped, noised and released at once.

    A multiplier of 0 is no protection at all: rows are released as they are.
    """

    def release(self, rows: Tensor) -> Tensor:
        self.accountant.step(self.multiplier)
        return self.noised(self.clipped(rows)) if self.multiplier else rows


class GaussianSum(Gaussian):
    """For a sum of terms, each a unit's, over several tensors (DP-SGD's gradients).

    Clipping is left to whoever adds up, since the terms are never there one by one.
    """

    def begin(self, units: Tensor, norms: Tensor) -> Tensor:
        """A release in which these units take part: what to scale each one's term by."""
        self.accountant.step(self.multiplier, units)
        return (self.clip / norms.clamp(min=1e-12)).clamp(max=1.0)


class GaussianMessages(Gaussian):
    """For sums of rows that go to somebody each (HiFGL): every sum has noise of its own."""

    def add(self, said: Tensor, values: Tensor, rows: Tensor, messages: Tensor) -> None:
        """Add rows of `values`, clipped, to these messages of `said`, and noise to each of those.

        rows, messages: which row goes into which message, pair by pair.
        """
        self.accountant.step(self.multiplier, rows)
        if not len(rows):
            return
        said.index_add_(0, messages, self.clipped(values[rows]))
        which = torch.unique(messages)
        said[which] = self.noised(said[which])


class RandomisedResponse:
    """One symbol of several, told as it is or as another one (Warner, 1965): pure and local.

    The symbol itself is told with probability T / 2^64, else one of the others, all as likely. T
    is rounded so that the odds never are more than e^epsilon, and less by no more than 2^-30 of
    it. Whatever a unit's symbol depends on, nobody can tell one symbol from another better than by
    that factor. A unit whose symbol is drawn again has spent epsilon again.
    """

    def __init__(
        self, epsilon: float, symbols: int, accountant: PureAccountant, source: NoiseSource
    ) -> None:
        if not 0.0 < epsilon <= 20.0:
            raise SettingsError(f"epsilon={epsilon} is not allowed: above 0, at most 20")
        if not 2 <= symbols <= 2**16:
            raise SettingsError(f"{symbols} symbols are not allowed: 2 to {2**16}")
        self.epsilon, self.symbols = epsilon, symbols
        self.accountant, self._source = accountant, source
        odds = _exp_from_below(epsilon)
        self._threshold = int(ALL_WORDS * odds / (odds + symbols - 1))

    @property
    def odds(self) -> Fraction:
        """How much likelier the symbol itself is than any other: at most e^epsilon."""
        return Fraction(self._threshold * (self.symbols - 1), ALL_WORDS - self._threshold)

    def release(self, symbols: Tensor, units: Tensor | None = None) -> Tensor:
        """What is told for these symbols.

        units: whose they are, as the accountant numbers them; None = everybody's, in its order.
        """
        given = symbols.cpu().numpy()
        if given.dtype != np.int64 or given.ndim != 1:
            raise SettingsError(f"symbols are whole numbers in a row, not {symbols.dtype}")
        if len(given) and not 0 <= given.min() <= given.max() < self.symbols:
            raise SettingsError(f"a symbol is not among the {self.symbols} there are")
        self.accountant.step(self.epsilon, units)
        words = self._source.words
        honest = words(len(given)) < np.uint64(self._threshold)
        others = below(words, self.symbols - 1, len(given))
        others += others >= given
        return torch.from_numpy(np.where(honest, given, others))


class TwoSidedGeometric:
    """Whole numbers with two-sided geometric noise (Ghosh et al., STOC 2009): pure.

    sensitivity: by how much one unit may change the numbers that are released together, in sum.
    The noise's scale is a fraction of 2^20, rounded so that it is never too little.
    """

    _DENOMINATOR = 2**20

    def __init__(
        self, epsilon: float, sensitivity: int, accountant: PureAccountant, source: NoiseSource
    ) -> None:
        if sensitivity < 1:
            raise SettingsError(f"sensitivity={sensitivity} is not allowed: at least 1")
        if not (epsilon <= 64.0 and epsilon * self._DENOMINATOR >= sensitivity):
            least = sensitivity / self._DENOMINATOR
            raise SettingsError(f"epsilon={epsilon} is not allowed: {least:g} to 64")
        self.epsilon, self.sensitivity = epsilon, sensitivity
        self.accountant, self._source = accountant, source
        self._numerator = int(Fraction(epsilon) * self._DENOMINATOR / sensitivity)

    @property
    def ratio(self) -> Fraction:
        """The logarithm of how much likelier a number is than the next one further out."""
        return Fraction(self._numerator, self._DENOMINATOR)

    def release(self, counts: Tensor, units: Tensor | None = None) -> Tensor:
        """The counts with noise.

        units: those who took part; None = everybody, once.
        """
        if counts.dtype != torch.int64:
            raise SettingsError(f"counts are whole numbers, not {counts.dtype}")
        self.accountant.step(self.epsilon, units)
        drawn = two_sided_geometric(
            self._source.words, self._numerator, self._DENOMINATOR, counts.numel()
        )
        return counts + torch.from_numpy(drawn).reshape(counts.shape).to(counts.device)


def _exp_from_below(exponent: float) -> Fraction:
    """e to the exponent, rounded down by less than 1e-48 of it."""
    with localcontext(prec=60):
        found = Decimal(exponent).exp()
    return Fraction(found) * (1 - Fraction(1, 10**49))
