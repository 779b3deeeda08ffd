"""What a layer hears: sums of its neighbours' rows, weighted by the rule of the layer's kind."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedmend.data.sampling import Hop
from fedmend.models.features import Features
from fedmend.models.sparse import SparseMatrix

Rule = Literal["mean", "gcn"]


def operator(hop: Hop, rule: Rule) -> SparseMatrix:
    """The hop as a matrix (rows x sources).

    mean: 1 / (number heard). gcn: 1 / sqrt((d_v + 1)(d_u + 1)) for the neighbours, where a sampled
    neighbour stands for degree / heard of them; the node itself is added by the layer.
    """
    key = f"operator-{rule}"
    if key in hop.cache:
        matrix: SparseMatrix = hop.cache[key]
        return matrix
    heard = hop.heard
    if rule == "mean":
        weights = torch.repeat_interleave(1.0 / heard, heard)
    else:
        target = hop.degree / heard / torch.sqrt(hop.degree + 1.0)
        weights = torch.repeat_interleave(target, heard)
        weights = weights / torch.sqrt(hop.source_degree + 1.0)[hop.col]
    csr = torch.sparse_csr_tensor(
        hop.rowptr, hop.col, weights.to(torch.float32), size=(hop.rows, hop.sources)
    )
    matrix = SparseMatrix(csr, reused=hop.reused)
    if hop.reused:
        hop.cache[key] = matrix
    return matrix


def heard_through(h: Tensor | Features, weight: Tensor, hop: Hop, rule: Rule) -> Tensor:
    """operator(hop) @ h @ weight, multiplied in the order that costs least."""
    matrix = operator(hop, rule)
    if isinstance(h, Features):
        if hop.reused and not h.sparse:
            return _kept_combination(h, matrix, hop, rule) @ weight
        if hop.rows * 2 <= hop.sources:
            return h.combined(matrix) @ weight
        return matrix @ (h @ weight)
    if weight.shape[1] <= weight.shape[0]:
        return matrix @ (h @ weight)
    return (matrix @ h) @ weight


def _kept_combination(h: Features, matrix: SparseMatrix, hop: Hop, rule: Rule) -> Features:
    """What the first layer hears does not depend on the weights: computed once per graph."""
    key = f"combined-{rule}"
    kept = hop.cache.get(key)
    if kept is None or kept[0] is not h:
        hop.cache[key] = kept = (h, h.combined(matrix))
    combination: Features = kept[1]
    return combination


def own_through(h: Tensor | Features, weight: Tensor, hop: Hop) -> Tensor:
    """The computed nodes' own rows of h, times weight."""
    if isinstance(h, Features):
        return h.rows(hop.own) @ weight
    if weight.shape[1] < weight.shape[0]:
        return hop.own_rows(h @ weight)  # the narrower rows are the cheaper ones to pick
    return hop.own_rows(h) @ weight
