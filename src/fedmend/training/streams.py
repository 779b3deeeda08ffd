"""Seeded random streams: one per party and purpose, so that no draw disturbs another.

Noise that is to hide something is another matter: all parties of a run know its seed.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from fedmend.privacy.masks import MaskGenerator


def stream_seed(seed: int, *labels: str) -> int:
    """A seed for one purpose, derived from the run's seed and the purpose's labels."""
    text = "/".join((str(seed), *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(seed: int, *labels: str) -> torch.Generator:
    """A generator for one purpose: `stream(seed, silo, "batches")`."""
    return torch.Generator().manual_seed(stream_seed(seed, *labels))


class DeployedSeed(int):
    """The seed of a run between organisations: what hides something is not drawn from it."""


class HidingNoise:
    """Normal noise on what leaves a silo.

    In a deployed silo it comes from a key that the operating system gives and nobody else has, so
    that no other party can draw it again and take it off. In a simulation, where all parties are
    one process and nothing is hidden from anybody, it comes from the seed: runs can be repeated.
    """

    def __init__(self, seed: int, *labels: str) -> None:
        self.stream = stream(seed, *labels)
        self._hides = isinstance(seed, DeployedSeed)
        self._key: MaskGenerator | None = None

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        if not self._hides:
            return torch.randn(shape, generator=self.stream)
        self._key = self._key or MaskGenerator()
        return torch.from_numpy(self._key.normal(*shape)).float()
