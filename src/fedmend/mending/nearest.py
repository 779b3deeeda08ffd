"""Which row of a matrix, sparse or dense, is nearest to each point: exact, and in blocks.

|a - b|^2 = |a|^2 + |b|^2 - 2 ab, and |a|^2 is the same for all rows b: one product per block, and
never an array of (points x rows x features).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmend.graph import is_sparse, row_entries
from fedmend.models.kernels.dense import product
from fedmend.models.kernels.sparse import SparseMatrix

BLOCK = 2**22
"""Distances held at a time."""


def squared_norms(x: Tensor) -> Tensor:
    """|x_u|^2 of every row."""
    if not is_sparse(x):
        return (x * x).sum(1)
    rows = torch.repeat_interleave(torch.arange(x.shape[0]), x.crow_indices().diff())
    return x.values().new_zeros(x.shape[0]).index_add_(0, rows, x.values() ** 2)


@torch.no_grad()
def nearest_rows(points: Tensor, x: Tensor) -> Tensor:
    """For each point the index of the nearest row of x; of equally near ones the first."""
    half_norms = squared_norms(x)[:, None] / 2
    matrix = SparseMatrix(x) if is_sparse(x) else None
    size = max(1, BLOCK // max(1, x.shape[0]))
    found = []
    for block in torch.split(points, size):
        products = product(x, block.T) if matrix is None else matrix.times(block.T)
        found.append(_first_smallest(torch.sub(half_norms, products, out=products)))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def _first_smallest(costs: Tensor) -> Tensor:
    """The row of every column's smallest entry, the first of equal ones; 0 where one is NaN.

    torch's `argmin` reads column by column, which takes more than twice as long.
    """
    if costs.device.type != "cpu":
        return costs.argmin(0)
    columns = costs.shape[1]
    row, column = np.divmod(np.flatnonzero((costs == costs.amin(0)).numpy()), columns)
    first = np.zeros(columns, dtype=np.int64)
    first[column[::-1]] = row[::-1]  # the last one written stays
    return torch.from_numpy(first)


class Groups:
    """A few dense rows in several groups, of each of which the nearest one is asked for."""

    def __init__(self, groups: Sequence[Tensor]) -> None:
        most = max(len(group) for group in groups)
        room = [group.new_zeros(most - len(group), group.shape[1]) for group in groups]
        self.rows = torch.cat([part for pair in zip(groups, room, strict=True) for part in pair])
        self.squared_norms = squared_norms(self.rows).view(len(groups), most)
        self._cost = self.squared_norms.clone()
        for cost, group in zip(self._cost, groups, strict=True):
            cost[len(group) :] = math.inf  # room is nobody's nearest

    @torch.no_grad()
    def nearest(self, points: Tensor) -> Tensor:
        """Each point's nearest row of every group (points x groups), of equally near the first."""
        groups, most = self._cost.shape
        size = max(1, BLOCK // len(self.rows))
        found = [
            (self._cost - 2.0 * product(block, self.rows.T).view(-1, groups, most)).argmin(2)
            for block in torch.split(points, size)
        ]
        return torch.cat(found) + torch.arange(groups) * most


@torch.no_grad()
def nearest_listed(points: Tensor, x: Tensor, listed: Tensor, rowptr: Tensor) -> Tensor:
    """Like `nearest_rows`, but point i chooses only from the rows listed[rowptr[i]:rowptr[i+1]].

    Every point needs at least one row to choose from.
    """
    count = rowptr[1:] - rowptr[:-1]
    point = torch.repeat_interleave(torch.arange(len(points)), count)
    distance = squared_norms(x)[listed] - 2.0 * inner_products(points, point, x, listed)
    # The first of the smallest in every list: sorted by distance, then stably by point.
    order = torch.argsort(distance, stable=True)
    order = order[torch.argsort(point[order], stable=True)]
    return listed[order[rowptr[:-1]]]


def inner_products(points: Tensor, point: Tensor, x: Tensor, row: Tensor) -> Tensor:
    """points[point[i]] . x[row[i]] for every pair i, in blocks."""
    out = []
    size = max(1, BLOCK // max(1, points.shape[1]))
    for which, rows in zip(torch.split(point, size), torch.split(row, size), strict=True):
        if not is_sparse(x):
            out.append((points[which] * x[rows]).sum(1))
            continue
        at, count = row_entries(x.crow_indices(), rows)
        pair = torch.repeat_interleave(torch.arange(len(rows)), count)
        terms = points[which[pair], x.col_indices()[at]] * x.values()[at]
        out.append(terms.new_zeros(len(rows)).index_add_(0, pair, terms))
    return torch.cat(out) if out else points.new_zeros(0)
