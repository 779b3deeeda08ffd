"""Sparse matrices from files: checked before anything follows their indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedmend.errors import FileFormatError
from fedmend.graph import csr_fault

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_COLUMNS = 10_000_000  # an empty matrix may claim any width; a model would allocate for it


def checked_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: Any, where: str
) -> sp.csr_matrix:
    """A CSR matrix from its parts; a FileFormatError that begins with `where` if they are wrong."""
    for name, part, kinds in (
        ("data", data, "biuf"),
        ("indices", indices, "iu"),
        ("indptr", indptr, "iu"),
    ):
        if part.ndim != 1 or part.dtype.kind not in kinds:
            raise FileFormatError(
                f"{where}: {name} is no list of numbers (got {part.dtype}, shape {part.shape})"
            )
    if (
        not isinstance(shape, tuple)
        or len(shape) != 2
        or not all(isinstance(length, int) and length >= 0 for length in shape)
    ):
        raise FileFormatError(f"{where}: shape must be two numbers, got {shape!r:.60}")
    if shape[0] != len(indptr) - 1 or shape[1] > MAX_COLUMNS:
        raise FileFormatError(
            f"{where}: shape {shape} does not fit {len(indptr) - 1} rows "
            f"of at most {MAX_COLUMNS} columns"
        )
    try:
        parts = (data, indices.astype(np.int64), indptr.astype(np.int64))
        matrix = sp.csr_matrix(parts, shape=shape)
    except ValueError as error:
        raise FileFormatError(f"{where}: not a sparse matrix: {error}") from error
    fault = csr_fault(matrix)
    if fault is not None:
        raise FileFormatError(f"{where}: not a sparse matrix: {fault}")
    return matrix
