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


class SparseMatrix:
    """A constant matrix in CSR form. `reused`: keep the transpose for the backward passes."""

    def __init__(self, csr: Tensor, *, reused: bool = False) -> None:
        self.csr = csr
        self._transposed: Tensor | None = None
        if reused:
            flipped = csr_tensor(scipy_csr(csr.cpu()).T.tocsr())
            self._transposed = flipped.to(device=csr.device, dtype=csr.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.csr.shape[0]), int(self.csr.shape[1])

    def __matmul__(self, dense: Tensor) -> Tensor:
        product: Tensor = _Product.apply(dense, self)  # type: ignore[no-untyped-call]  # torch's
        return product

    def transposed_times(self, dense: Tensor) -> Tensor:
        if self._transposed is not None:
            return self._transposed @ dense
        if self.csr.device.type != "cpu":
            return self.csr.t().to_sparse_csr() @ dense
        csr = self.csr
        flipped = sp.csc_matrix(
            (csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy()),
            shape=(csr.shape[1], csr.shape[0]),
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
