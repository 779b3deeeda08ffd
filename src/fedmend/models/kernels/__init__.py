"""Fast paths behind one interface, each tested equal to the plain one.

Every kernel has a name and a plain path: documented operations of torch and its autograd. `fast`
tells which path to take; `plain` is how tests and `benchmarks/kernels.py` take the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedmend.errors import UnknownNameError

KERNELS = {
    "onednn": "large dense products by oneDNN where MKL leaves vector units idle",
    "sparse": "products with a constant sparse matrix as bags of rows, their way back kept",
    "by_hand": "full-batch steps of two layers, derivatives written out",
}

_plain: frozenset[str] = frozenset()


def fast(kernel: str) -> bool:
    """Whether a kernel is to be used."""
    return kernel not in _plain


@contextmanager
def plain(*kernels: str) -> Iterator[None]:
    """Compute the plain way what these kernels compute, all of them if none is named.

    For the whole process: silos train in threads.
    """
    global _plain
    for name in kernels:
        if name not in KERNELS:
            raise UnknownNameError("kernel", name, KERNELS)
    before, _plain = _plain, _plain | frozenset(kernels or KERNELS)
    try:
        yield
    finally:
        _plain = before
