"""How far generated neighbours are from true ones: the generators' loss terms.

FedSage+ Eq. (4) and (6), FedDEP's loss of section 3.2. The distances are sums over all generated
neighbours; whoever asks for them divides by the number of nodes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.graph import is_sparse, offsets, row_entries, select_rows
from fedmend.mending.hiding import Impaired
from fedmend.mending.nearest import Groups, nearest_listed, nearest_rows


def number_loss(predicted: Tensor, missing: Tensor) -> Tensor:
    """L^d: smooth L1 between predicted and true numbers of missing neighbours."""
    return F.smooth_l1_loss(predicted, missing.to(predicted.dtype))


def rows_as_dense(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of a feature matrix, dense."""
    chosen = select_rows(x, rows)
    return chosen.to_dense() if is_sparse(chosen) else chosen


def lost_neighbour_loss(made: Tensor, owner: Tensor, impaired: Impaired, x: Tensor) -> Tensor:
    """L^f: each generated neighbour against the nearest of those its node really lost.

    made: generated rows; owner: the impaired graph's node each belongs to, which lost at least
    one. x: what the rows of the whole silo graph are compared by (features or embeddings).
    """
    if not len(made):
        return made.sum()
    at, count = row_entries(impaired.rowptr, owner)
    found = nearest_listed(made.detach(), x, impaired.lost[at], offsets(count))
    return squared_distance(made, rows_as_dense(x, found))


def own_row_loss(made: Tensor, owner: Tensor, x: Tensor) -> Tensor:
    """Each generated neighbour against the row of the node it was made for."""
    return squared_distance(made, rows_as_dense(x, owner))


def nearest_loss(made: Tensor, x: Tensor) -> Tensor:
    """Each generated neighbour against the nearest of all rows of x."""
    if not len(made):
        return made.sum()
    return squared_distance(made, rows_as_dense(x, nearest_rows(made.detach(), x)))


def nearest_of_each_loss(made: Tensor, groups: Groups) -> Tensor:
    """Each generated neighbour against the nearest row of every group.

    sum_g |m - t_g|^2 = G |m|^2 - 2 m sum_g t_g + sum_g |t_g|^2: one difference in place of G.
    """
    if not len(made):
        return made.sum()
    found = groups.nearest(made.detach())
    added = F.embedding_bag(found, groups.rows, mode="sum")
    theirs = groups.squared_norms.view(-1)[found].sum()
    flat = made.view(-1)
    own = found.shape[1] * torch.dot(flat, flat)
    return own - 2.0 * torch.dot(flat, added.view(-1)) + theirs


def squared_distance(made: Tensor, target: Tensor) -> Tensor:
    """The sum of squared differences."""
    difference = made - target
    return torch.dot(difference.view(-1), difference.view(-1))
