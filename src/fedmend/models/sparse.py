"""Products with a constant sparse matrix, differentiable in the dense factor.

torch's own backward pass of a CSR product converts the matrix each time (four times the forward
cost, measured on Cora's shapes). Here a matrix that is used again keeps its transpose; one that
is used once is multiplied from the other side by scipy, whose CSC product reads the same arrays.
"""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor

from fedmend.graph import csr_tensor, scipy_csr

FEW_PRODUCTS = 2**16
"""Up to this many products adding row by row is quicker than setting up scipy's matrix."""


class SparseMatrix:
    """A constant matrix in CSR form. `reused`: keep the transpose after the first backward pass."""

    def __init__(self, csr: Tensor, *, reused: bool = False) -> None:
        self.csr = csr
        self._reused = reused
        self._transposed: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.csr.shape[0]), int(self.csr.shape[1])

    def __matmul__(self, dense: Tensor) -> Tensor:
        product: Tensor = _Product.apply(dense, self)  # type: ignore[no-untyped-call]  # torch's
        return product

    def transposed_times(self, dense: Tensor) -> Tensor:
        csr = self.csr
        if self._reused and self._transposed is None:
            flipped = csr_tensor(scipy_csr(csr.cpu()).T.tocsr())
            self._transposed = flipped.to(device=csr.device, dtype=csr.dtype)
        if self._transposed is not None:
            return self._transposed @ dense
        values, col, rowptr = csr.values(), csr.col_indices(), csr.crow_indices()
        if csr.device.type != "cpu" or len(col) * dense.shape[1] <= FEW_PRODUCTS:
            row = torch.repeat_interleave(rowptr[1:] - rowptr[:-1])
            out = dense.new_zeros(csr.shape[1], dense.shape[1])
            return out.index_add_(0, col, values[:, None] * dense.index_select(0, row))
        flipped = sp.csc_matrix(
            (values.numpy(), col.numpy(), rowptr.numpy()), shape=(csr.shape[1], csr.shape[0])
        )
        return torch.from_numpy(flipped @ dense.numpy())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.csr @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.transposed_times(grads[0].contiguous()), None
