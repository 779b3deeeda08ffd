"""What a layer hears: sums of its neighbours' rows, weighted by the rule of the layer's kind."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedmend.data.sampling import Hop
from fedmend.models.features import Features
from fedmend.models.kernels.dense import product
from fedmend.models.kernels.sparse import SparseMatrix

Rule = Literal["mean", "gcn", "closed-mean"]


def operator(hop: Hop, rule: Rule) -> SparseMatrix:
    """The hop as a matrix (rows x sources).

    mean: 1 / (number heard) for each neighbour heard.
    gcn: 1 / sqrt((d_v + 1)(d_u + 1)) over the closed neighbourhood, the node itself included; a
        sampled neighbour stands for degree / heard of them.
    closed-mean: 1 / (number heard + 1) for each neighbour heard and for the node itself.
    """
    key = f"operator-{rule}"
    if key in hop.cache:
        matrix: SparseMatrix = hop.cache[key]
        return matrix
    heard = hop.heard
    if rule == "mean":
        rowptr, col = hop.rowptr, hop.col
        weights = torch.repeat_interleave(1.0 / heard, heard)
    elif rule == "closed-mean":
        rowptr, col, _ = _with_itself(hop)
        weights = torch.repeat_interleave(1.0 / (heard + 1), heard + 1)
    else:
        rowptr, col, neighbours = _with_itself(hop)
        weights = torch.empty(len(col), device=col.device)
        weights[~neighbours] = 1.0 / (hop.degree + 1.0)
        target = torch.repeat_interleave(hop.degree / heard / torch.sqrt(hop.degree + 1.0), heard)
        weights[neighbours] = target / torch.sqrt(hop.source_degree + 1.0)[hop.col]
    csr = torch.sparse_csr_tensor(
        rowptr, col, weights.to(torch.float32), size=(hop.rows, hop.sources)
    )
    matrix = SparseMatrix(csr, reused=hop.reused)
    if hop.reused:
        hop.cache[key] = matrix
    return matrix


def _with_itself(hop: Hop) -> tuple[Tensor, Tensor, Tensor]:
    """The hop's CSR arrays with every node first in its own row, and which entries are others."""
    device = hop.col.device
    rowptr = hop.rowptr + torch.arange(hop.rows + 1, device=device)
    neighbours = torch.ones(len(hop.col) + hop.rows, dtype=torch.bool, device=device)
    neighbours[rowptr[:-1]] = False
    col = torch.empty(len(neighbours), dtype=torch.int64, device=device)
    col[neighbours] = hop.col
    col[~neighbours] = torch.arange(hop.own, device=device) if isinstance(hop.own, int) else hop.own
    return rowptr, col, neighbours


def heard_through(
    h: Tensor | Features, weight: Tensor, hop: Hop, rule: Rule, bias: Tensor | None = None
) -> Tensor:
    """operator(hop) @ h @ weight + bias, multiplied in the order that costs least."""
    matrix = operator(hop, rule)
    if isinstance(h, Features):
        if hop.reused and not h.sparse:
            return _plus(_kept_combination(h, matrix, hop, rule) @ weight, bias)
        if h.combined_first or (hop.rows * 2 <= hop.sources and not h.stays):
            return _plus(h.combined(matrix) @ weight, bias)
        return _plus(matrix @ (h @ weight), bias)
    if weight.shape[1] <= weight.shape[0]:
        return _plus(matrix @ (h @ weight), bias)
    return product(matrix @ h, weight, bias)


def _plus(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias


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
        return hop.own_rows(h @ weight) if h.stays else h.rows(hop.own) @ weight
    if weight.shape[1] < weight.shape[0]:
        return hop.own_rows(product(h, weight))  # the narrower rows are the cheaper ones to pick
    return product(hop.own_rows(h), weight)


def own_and_heard(
    h: Tensor | Features,
    own_weight: Tensor,
    heard_weight: Tensor,
    hop: Hop,
    rule: Rule,
    bias: Tensor | None = None,
) -> Tensor:
    """own_through + heard_through, in fewer products where the hop serves many steps."""
    narrows = heard_weight.shape[1] < heard_weight.shape[0]
    if hop.reused and narrows and not isinstance(h, Features):
        # One row of h @ both is a node's own values, then the values it tells its neighbours.
        both = torch.cat([own_weight, heard_weight], dim=1)
        matrix = with_own(hop, rule)
        return _plus(matrix @ (h @ both).view(matrix.shape[1], -1), bias)
    return own_through(h, own_weight, hop) + heard_through(h, heard_weight, hop, rule, bias)


def with_own(hop: Hop, rule: Rule) -> SparseMatrix:
    """The hop as a matrix (rows x 2 sources) over pairs of rows: own values, values told."""
    key = f"with-own-{rule}"
    if key not in hop.cache:
        rowptr, col, neighbours = _with_itself(hop)
        told = operator(hop, rule).csr.values()
        weights = torch.ones(len(col), dtype=told.dtype, device=told.device)
        weights[neighbours] = told
        shape = (hop.rows, 2 * hop.sources)
        csr = torch.sparse_csr_tensor(rowptr, 2 * col + neighbours, weights, size=shape)
        hop.cache[key] = SparseMatrix(csr, reused=True)
    matrix: SparseMatrix = hop.cache[key]
    return matrix
