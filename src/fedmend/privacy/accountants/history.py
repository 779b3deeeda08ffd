"""What an accountant remembers: how often each unit took part in a release, and in which kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


class History(ABC):
    """The uses of mechanisms on units (rows, loss terms), of which the account is the worst one's.

    A kind of release is told by its parameter, on which alone its price depends.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        self._uses: dict[float, NDArray[np.int64]] = {}

    @staticmethod
    @abstractmethod
    def price(parameter: float) -> float:
        """What one release costs a unit, a finite number; prices add up."""

    def step(self, parameter: float, units: Tensor | None = None) -> None:
        """A release in which these units took part, as often as they are named; None: all, once."""
        uses = self._uses.setdefault(parameter, np.zeros(self._units, dtype=np.int64))
        if units is None:
            uses += 1
        else:
            uses += np.bincount(units.cpu().numpy(), minlength=self._units)

    @property
    def worst(self) -> dict[float, int]:
        """The uses of the unit that they cost most, by parameter."""
        if not self._uses or not self._units:
            return {}
        at = int(np.argmax(sum(self.price(each) * uses for each, uses in self._uses.items())))
        return {each: int(uses[at]) for each, uses in sorted(self._uses.items()) if uses[at]}

    @property
    def uses(self) -> int:
        """How often that unit took part."""
        return sum(self.worst.values())

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {repr(each): torch.from_numpy(uses.copy()) for each, uses in self._uses.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave; what was released since cannot be taken back."""
        for key, saved in state.items():
            parameter = float(key)
            uses = self._uses.get(parameter, np.zeros(self._units, dtype=np.int64))
            self._uses[parameter] = np.maximum(uses, saved.numpy())
