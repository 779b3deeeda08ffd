"""A graph's constant input features, ready to be multiplied by a layer's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedmend.graph import csr_tensor, is_sparse, scipy_csr, select_rows
from fedmend.models.kernels.dense import product
from fedmend.models.kernels.sparse import SparseMatrix

DENSE_ENOUGH = 0.05
"""From this share of non-zeros on, a dense product is quicker than a sparse one (measured)."""


class Features:
    """Constant features, sparse or dense, that know how to select, average and project rows.

    `reused`: the same object serves many steps, so a sparse matrix keeps its transpose.
    """

    combined_first = False
    """Whether what a layer hears is always put together before it meets the weights."""

    def __init__(self, x: Tensor, *, reused: bool = False) -> None:
        self.x = x
        self.matrix = SparseMatrix(x, reused=reused) if is_sparse(x) else None

    @property
    def sparse(self) -> bool:
        return self.matrix is not None

    @property
    def stays(self) -> bool:
        """Whether products with all rows are the cheap ones: sparse, and multiplied many times."""
        return self.matrix is not None and self.matrix.reused

    @property
    def num_features(self) -> int:
        return int(self.x.shape[1])

    @cached_property
    def dense(self) -> Tensor:
        """The features as a plain matrix."""
        return self.x.to_dense() if self.sparse else self.x

    def to(self, device: torch.device) -> Features:
        """The same features on another device; themselves if they are there already."""
        return self if self.x.device == device else Features(self.x.to(device))

    def __matmul__(self, weight: Tensor) -> Tensor:
        return product(self.x, weight) if self.matrix is None else self.matrix @ weight

    def rows(self, own: int | Tensor) -> Features:
        """Some rows: the first `own`, or those with these indices."""
        if isinstance(own, int):
            if own == self.x.shape[0]:
                return self
            if not self.sparse:
                return Features(self.x[:own])
            own = torch.arange(own, device=self.x.device)
        return Features(in_quicker_form(select_rows(self.x, own)))

    def combined(self, operator: SparseMatrix) -> Features:
        """`operator` times these features, as constants."""
        if not self.sparse or self.x.device.type != "cpu":
            return Features(operator @ self.dense)
        return Features(in_quicker_form(csr_tensor(scipy_csr(operator.csr) @ scipy_csr(self.x))))


class MendedFeatures(Features):
    """Constant features of a graph's own nodes, then rows that a generator is trained through.

    Nothing of what layers derive from them can be kept: it depends on the generator's weights.
    Generated rows are dense and wide, and products with them are most of a generator's training:
    they are picked and added up first, so that as few as possible meet the weights.
    """

    combined_first = True

    def __init__(self, own: Features, generated: Tensor) -> None:
        self.matrix = None
        self._own, self._generated = own, generated
        self._total = own.x.shape[0] + len(generated)

    @cached_property
    def dense(self) -> Tensor:
        return torch.cat([self._own.dense, self._generated])

    @property
    def sparse(self) -> bool:
        return True  # like sparse ones: multiplied by the weights first

    def __matmul__(self, weight: Tensor) -> Tensor:
        return torch.cat([self._own @ weight, product(self._generated, weight)])

    def rows(self, own: int | Tensor) -> Features:
        if isinstance(own, int):
            own = torch.arange(own)
        first = self._total - len(self._generated)
        picked = MendedFeatures(
            self._own, self._generated.index_select(0, own[own >= first] - first)
        )
        place = own.clone()
        place[own >= first] = torch.arange(first, picked._total)
        return _Later(lambda weight: (picked @ weight).index_select(0, place))

    def combined(self, operator: SparseMatrix) -> Features:
        matrix = scipy_csr(operator.csr)
        first = self._total - len(self._generated)
        of_own = SparseMatrix(csr_tensor(matrix[:, :first]))
        of_generated = matrix[:, first:]
        hearing = np.flatnonzero(np.diff(of_generated.indptr))
        heard = SparseMatrix(csr_tensor(of_generated[hearing])) @ self._generated
        at = torch.from_numpy(hearing)
        return _Later(lambda w: (of_own @ (self._own @ w)).index_add(0, at, product(heard, w)))


class _Later(Features):
    """Features that exist only as what comes out when they are multiplied by weights."""

    def __init__(self, times: Callable[[Tensor], Tensor]) -> None:
        self.matrix = None
        self._times = times

    def __matmul__(self, weight: Tensor) -> Tensor:
        return self._times(weight)


def in_quicker_form(x: Tensor) -> Tensor:
    """A feature matrix, dense where it has enough non-zeros for that to be the quicker form."""
    if is_sparse(x) and x.values().numel() >= DENSE_ENOUGH * x.shape[0] * x.shape[1]:
        return x.to_dense()
    return x
