"""A graph that is learned from embeddings, and a GCN on it (FedGGR, section 4.4): all sparse.

Of the N x N similarities only those of each node's nearest neighbours are ever computed with a
gradient: N x k dot products. The weight that the paper's dense form gives to every *other* pair is
one constant, e^-6, and comes in as an exact rank-one term beside the sparse matrix.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.models.kernels.dense import product
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.models.layers import glorot, zeros

SLOPE = 6.0
"""A pair of cosine similarity s has the weight elu(6 s - 6) + 1: 1 for equals, e^-6 at zero."""
BACKGROUND = math.exp(-SLOPE)


class Pairs:
    """The pairs of nodes of which one has chosen the other, each once, and products over them.

    Similarity has no direction, and of what nodes give to those they chose (S) only
    1/2 (S + S^T) is needed: a pair has one value, however many of the two have chosen.

    neighbours: N x m, whom each node has chosen. left, right: the pairs' ends, also of a node with
    itself. share: half of how often the one has chosen the other.
    """

    def __init__(self, neighbours: Tensor) -> None:
        self.nodes = nodes = len(neighbours)
        chooser = torch.arange(nodes)[:, None].expand_as(neighbours)
        keys = torch.minimum(chooser, neighbours) * nodes + torch.maximum(chooser, neighbours)
        keys, chosen = torch.unique_consecutive(keys.view(-1).sort().values, return_counts=True)
        self.left, self.right = keys // nodes, keys % nodes
        self.share = 0.5 * chosen
        self._left_ends = _ends(self.left, nodes)
        # Both directions, by the first end: a pair is a row's neighbour to the right or the left.
        pair = torch.arange(len(keys)).repeat(2)
        first, second = torch.cat([self.right, self.left]), torch.cat([self.left, self.right])
        # Stable, and those to the left came first: a row's columns rise.
        order = torch.argsort(first, stable=True)
        self._pair, self._columns = pair[order], second[order]
        self._row_ends = _ends(first, nodes)

    def _csr(self, ends: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        # The indices come from this class: checking them at every product costs more than it.
        return torch.sparse_csr_tensor(
            ends, columns, values, size=(self.nodes, self.nodes), check_invariants=False
        )

    def times(self, values: Tensor, dense: Tensor) -> Tensor:
        """(U + U^T) dense, for the matrix U that has these values at (left, right)."""
        matrix = self._csr(self._row_ends, self._columns, values[self._pair])
        return SparseMatrix(matrix).times(dense)

    def row_sums(self, values: Tensor) -> Tensor:
        """(U + U^T) 1."""
        zeros = values.new_zeros(self.nodes)
        return zeros.index_add(0, self.left, values).index_add(0, self.right, values)

    def dots(self, one: Tensor, other: Tensor) -> Tensor:
        """one_left . other_right of every pair."""
        empty = one.new_zeros(len(self.left))
        pattern = self._csr(self._left_ends, self.right, empty)
        values: Tensor = torch.sparse.sampled_addmm(pattern, one, other.T, beta=0.0).values()
        return values


def _ends(rows: Tensor, count: int) -> Tensor:
    """Where each row of a CSR matrix begins, and where the last one ends."""
    lengths = torch.bincount(rows, minlength=count)
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


class _Similarity(torch.autograd.Function):
    """Cosine similarity of the chosen pairs of unit rows."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(points)
        return pairs.dots(points, points)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (points,) = ctx.saved_tensors
        # d/dh of sum g_ij h_i . h_j = (G + G^T) h.
        return ctx.pairs.times(grads[0].contiguous(), points), None


class _Symmetric(torch.autograd.Function):
    """(U + U^T) x, differentiable in the values of U and in x."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(values, x)
        return pairs.times(values, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        values, x = ctx.saved_tensors
        gradient, pairs = grads[0].contiguous(), ctx.pairs
        of_values = pairs.dots(gradient, x).add_(pairs.dots(x, gradient))
        of_x = pairs.times(values, gradient) if ctx.needs_input_grad[1] else None
        return of_values, of_x, None


class Adjacency:
    """A* = D^-1/2 1/2 (P + P^T) D^-1/2 (Eq. 7): never a matrix, only its product."""

    def __init__(self, values: Tensor, pairs: Pairs, background: float) -> None:
        # P is `values` on the pairs and `background` elsewhere: a sparse part and a constant one.
        self._above, self._pairs = pairs.share * (values - background), pairs
        self._background = background
        degree = pairs.row_sums(self._above) + background * pairs.nodes
        self._scale = degree.clamp(min=torch.finfo(degree.dtype).tiny).rsqrt()[:, None]

    def __matmul__(self, x: Tensor) -> Tensor:
        scaled = self._scale * x
        heard: Tensor = _Symmetric.apply(self._above, scaled, self._pairs)  # type: ignore[no-untyped-call]  # torch's
        if self._background:
            heard = heard + self._background * scaled.sum(0)
        return self._scale * heard


class LearnedGraph(nn.Module):
    """MLP-D generator, adjacency processor and two-layer GCN: embeddings in, Z_glob out."""

    def __init__(
        self,
        embedding: int,
        hidden: int,
        outputs: int,
        generator: torch.Generator | None,
        *,
        background: bool = True,
    ) -> None:
        super().__init__()
        self.background = BACKGROUND if background else 0.0
        # MLP-D: two layers whose weights are zero but for the diagonal, ones at first.
        device = "meta" if generator is None else None
        self.first_diagonal = nn.Parameter(torch.ones(embedding, device=device))
        self.second_diagonal = nn.Parameter(torch.ones(embedding, device=device))
        self.first_weight = glorot(embedding, hidden, generator)
        self.first_bias = zeros(hidden, generator)
        self.second_weight = glorot(hidden, outputs, generator)
        self.second_bias = zeros(outputs, generator)

    def points(self, embeddings: Tensor) -> Tensor:
        """What similarity is measured between: rows of unit length, or zero."""
        mapped = torch.tanh(embeddings * self.first_diagonal) * self.second_diagonal
        return F.normalize(mapped)

    def adjacency(self, embeddings: Tensor, pairs: Pairs) -> Adjacency:
        """The refined graph on the chosen pairs."""
        similar: Tensor = _Similarity.apply(self.points(embeddings), pairs)  # type: ignore[no-untyped-call]  # torch's
        return Adjacency(F.elu(SLOPE * similar - SLOPE) + 1.0, pairs, self.background)

    def forward(
        self,
        embeddings: Tensor,
        pairs: Pairs,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Z_glob: a row for every node, from its neighbours in the learned graph.

        dropout: share of embeddings and hidden values that are dropped, drawn from the generator.
        """
        graph = self.adjacency(embeddings, pairs)
        told = product(_dropped(embeddings, dropout, generator), self.first_weight)
        hidden = torch.relu(graph @ told + self.first_bias)
        told = product(_dropped(hidden, dropout, generator), self.second_weight)
        return graph @ told + self.second_bias


def _dropped(h: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    if not rate:
        return h
    return h * (torch.rand(h.shape, generator=generator, dtype=h.dtype) >= rate) / (1.0 - rate)
