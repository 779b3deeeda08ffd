"""How a step computes: with a fixed number of torch threads, in memory that stays with the process.

Steps allocate and free the same few megabytes over and over. By default the C library gives them
back to the system each time and gets them again page by page, zeroed: a tenth of the time a
generator's step takes (measured).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

KEPT = 2**28
"""Bytes of freed memory that a process keeps."""

FROM_THE_SYSTEM = 2**25
"""From this many bytes on a block comes from the system and goes back to it (the most there is)."""

# glibc's numbers of the two (malloc.h).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute with this many torch threads inside the block; the caller's number comes back."""
    _keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _keep_freed_memory() -> None:
    """Once per process; where the C library is not glibc, nothing is changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_TRIM_THRESHOLD, KEPT)
    mallopt(_MMAP_THRESHOLD, FROM_THE_SYSTEM)
