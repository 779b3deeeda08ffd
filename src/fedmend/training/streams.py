"""Seeded random streams: one per party and purpose, so that no draw disturbs another.

Noise that is to hide something is another matter (`privacy.noise`): all parties know the seed.
"""

from __future__ import annotations

import hashlib

import torch


def stream_seed(seed: int, *labels: str) -> int:
    """A seed for one purpose, derived from the run's seed and the purpose's labels."""
    text = "/".join((str(seed), *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(seed: int, *labels: str) -> torch.Generator:
    """A generator for one purpose: `stream(seed, silo, "batches")`."""
    return torch.Generator().manual_seed(stream_seed(seed, *labels))
