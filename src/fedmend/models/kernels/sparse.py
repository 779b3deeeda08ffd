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
from fedmend.models.kernels.dense import gains, multiply

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
        return sum_of_products(([self], dense))

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


def sum_of_products(
    *terms: tuple[Sequence[SparseMatrix], Tensor], bias: Tensor | None = None
) -> Tensor:
    """The sum of the terms' A @ (B @ ... dense) and a bias, differentiable in all but the matrices.

    All of it is one node of the backward pass: on graphs of a few hundred nodes autograd spends
    as long on a node as the product takes.
    """
    chains = [chain for chain, _ in terms]
    total: Tensor = _SumOfProducts.apply(chains, bias, *(dense for _, dense in terms))  # type: ignore[no-untyped-call]  # torch's
    return total


class _SumOfProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chains: Sequence[Sequence[SparseMatrix]],
        bias: Tensor | None,
        *factors: Tensor,
    ) -> Tensor:
        ctx.chains = chains
        total, *others = [chained(*term) for term in zip(chains, factors, strict=True)]
        for other in others if bias is None else [*others, bias]:
            total.add_(other)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = [None, grads[0].sum(0) if ctx.needs_input_grad[1] else None]
        for chain, needed in zip(ctx.chains, ctx.needs_input_grad[2:], strict=True):
            found.append(chained_transposed(chain, grads[0]) if needed else None)
        return tuple(found)


def narrow_product(h: Tensor, weight: Tensor) -> Tensor:
    """h @ weight for a weight of few columns, of which torch makes three times the work.

    The same with few rows is quick (measured: 19 in place of 67 µs for 540 x 64 times 64 x 7).
    """
    if gains(h, weight):
        return multiply(h, weight)
    return (weight.t() @ h.t()).t().contiguous()


def weighted_product(
    matrix: SparseMatrix, h: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """matrix @ (h @ weight) + bias, differentiable in all but the matrix; one node as well.

    Where `matrix` has k times as many columns as h has rows, a row of h @ weight is k rows of it.
    """
    product: Tensor = _WeightedProduct.apply(matrix, h, weight, bias)  # type: ignore[no-untyped-call]  # torch's
    return product


class _WeightedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: SparseMatrix, h: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(h, weight)
        product = matrix.times(narrow_product(h, weight).view(matrix.shape[1], -1))
        return product if bias is None else product.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        told = ctx.matrix.transposed_times(grads[0]).view(len(h), -1)
        _, for_h, for_weight, for_bias = ctx.needs_input_grad
        return (
            None,
            multiply(told, weight.t()) if for_h else None,
            narrow_product(h.t(), told) if for_weight else None,
            grads[0].sum(0) if for_bias else None,
        )
