"""Where a silo's noise comes from: a source that is handed over, and by nothing else.

Whoever builds a silo hands it a `NoiseSource`: a deployment `SecretNoise`, which nobody can draw
again; a simulation `PublicNoise`, which can be repeated and hides nothing. A silo that was handed
none has `NO_NOISE`, which refuses. What a source is does not depend on the run's seed, so nothing
that is done to a seed can make secret noise public.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import FederationError
from fedmend.privacy.draws import GridNormal
from fedmend.training.streams import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NoiseSource(ABC):
    """Draws what hides something on its way out of a silo."""

    @abstractmethod
    def words(self, count: int) -> NDArray[np.uint64]:
        """Uniform words of 64 bits, for draws that are exact."""

    @abstractmethod
    def add_normal(self, values: Tensor, deviation: float) -> Tensor:
        """The values with normal noise of (at least) this standard deviation on each of them."""

    def under(self, purpose: str) -> NoiseSource:  # noqa: ARG002  # one purpose is like another
        """The source of one purpose, so that repeated draws do not depend on other purposes'."""
        return self

    def state(self) -> dict[str, Tensor]:
        """What it takes to go on with the same draws: nothing where nobody may draw them again."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027  # nothing to take back
        """Take back what `state` gave."""


class SecretNoise(NoiseSource):
    """Noise from the operating system's generator: nobody draws it again, the silo neither.

    Normal noise is that of `privacy.draws.GridNormal`: values and noise are whole numbers of a
    grid, so that no last binary digit tells what was added to what.
    """

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

    def add_normal(self, values: Tensor, deviation: float) -> Tensor:
        grid = GridNormal.of(deviation)
        drawn = grid.draw(self.words, values.numel())
        noised = grid.rounded(values.detach().cpu().double().numpy().reshape(-1)) + drawn
        told = torch.from_numpy(noised * grid.step).reshape(values.shape)
        return told.to(dtype=values.dtype, device=values.device)


class PublicNoise(NoiseSource):
    """Noise from a seed, for simulations: whoever knows the seed can take it off again.

    It hides nothing, and in a simulation there is nobody to hide anything from.
    """

    def __init__(self, seed: int, *labels: str) -> None:
        self._seed, self._labels = seed, labels
        self._stream = stream(seed, *labels)

    def under(self, purpose: str) -> PublicNoise:
        return PublicNoise(self._seed, *self._labels, purpose)

    def words(self, count: int) -> NDArray[np.uint64]:
        drawn = torch.empty(count, dtype=torch.int64)
        drawn.random_(-(2**63), None, generator=self._stream)  # None: up to the largest
        return drawn.numpy().view(np.uint64)

    def add_normal(self, values: Tensor, deviation: float) -> Tensor:
        drawn = torch.randn(values.shape, generator=self._stream).mul_(deviation)
        return drawn.to(device=values.device, dtype=values.dtype).add_(values.detach())

    def state(self) -> dict[str, Tensor]:
        return {"stream": self._stream.get_state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._stream.set_state(state["stream"])


class NoNoise(NoiseSource):
    """In place of a source that was not handed over: refuses as soon as it is asked."""

    def words(self, count: int) -> NDArray[np.uint64]:  # noqa: ARG002  # it has none to give
        raise FederationError(_REFUSAL)

    def add_normal(self, values: Tensor, deviation: float) -> Tensor:  # noqa: ARG002
        raise FederationError(_REFUSAL)


_REFUSAL = (
    "this silo is to hide something with noise but was handed no source of it: build it with "
    "noise=SecretNoise(), or noise=PublicNoise(seed, name) in a simulation"
)

NO_NOISE = NoNoise()
