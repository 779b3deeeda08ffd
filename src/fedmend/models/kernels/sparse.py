"""Products with a constant sparse matrix, differentiable in the dense factor.

On the CPU a product is computed as torch's embedding bag (each row of the matrix is a bag of
weighted rows of the dense factor): it takes 64-bit indices as they are and is compiled for the
processor's vector units, where a CSR product first copies the indices and then runs a generic
kernel (measured on Cora's shapes, 64 columns: less than half the time).

torch's own backward pass of a CSR product converts the matrix each time (four times the forward
cost, measured on Cora's shapes). Here a matrix that is used again keeps its transpose; one that
is used once is multiplied from the other side by scipy, whose CSC product reads the same arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedmend.graph import csr_tensor, scipy_csr
from fedmend.models.kernels import fast

FEW_PRODUCTS = 2**16
"""Up to this many products adding row by row is quicker than setting up scipy's matrix."""


class SparseMatrix:
    """A constant matrix in CSR form. `reused`: keep the transpose after the first backward pass."""

    def __init__(self, csr: Tensor, *, reused: bool = False) -> None:
        self.csr = csr
        self._rowptr, self._col, self._values = csr.crow_indices(), csr.col_indices(), csr.values()
        self.reused = reused
        self._transposed: SparseMatrix | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.csr.shape[0]), int(self.csr.shape[1])

    def __matmul__(self, dense: Tensor) -> Tensor:
        if not fast("sparse"):
            return self.csr @ dense
        found: Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]  # torch's
        return found

    def times(self, dense: Tensor) -> Tensor:
        """The product of constants; a weight is taken as one."""
        values = self._values
        if dense.device.type != "cpu" or not dense.dtype == values.dtype == torch.float32:
            return self.csr @ dense
        # For a factor with a gradient torch would prepare a backward pass that nobody runs.
        bags = dense.detach().contiguous(), self._col, self._rowptr
        found = torch.embedding_bag(*bags, per_sample_weights=values, include_last_offset=True)
        return found[0]

    def transposed_times(self, dense: Tensor) -> Tensor:
        """The transpose times a constant."""
        if self.reused and self._transposed is None:
            flipped = csr_tensor(scipy_csr(self.csr.cpu()).T.tocsr())
            self._transposed = SparseMatrix(flipped.to(self.csr.device, self.csr.dtype))
        if self._transposed is not None:
            return self._transposed.times(dense)
        rowptr, col, values = self._rowptr, self._col, self._values
        rows, columns = self.shape
        if col.device.type != "cpu" or len(col) * dense.shape[1] <= FEW_PRODUCTS:
            row = torch.repeat_interleave(rowptr[1:] - rowptr[:-1])
            out = dense.new_zeros(columns, dense.shape[1])
            return out.index_add_(0, col, values[:, None] * dense.index_select(0, row))
        flipped = sp.csc_matrix((columns, rows), dtype=np.float32)
        # Set one by one, because the constructor looks at every index first, which takes as long
        # as the product.
        flipped.data, flipped.indices, flipped.indptr = values.numpy(), col.numpy(), rowptr.numpy()
        return torch.from_numpy(flipped @ dense.contiguous().numpy())


def chained(matrices: Sequence[SparseMatrix], dense: Tensor) -> Tensor:
    """A @ (B @ ... dense), of constants."""
    for matrix in reversed(matrices):
        dense = matrix.times(dense)
    return dense


def chained_transposed(matrices: Sequence[SparseMatrix], dense: Tensor) -> Tensor:
    """The transpose of A @ B @ ... times a constant."""
    for matrix in matrices:
        dense = matrix.transposed_times(dense)
    return dense


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(dense)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transposed_times(grads[0])
