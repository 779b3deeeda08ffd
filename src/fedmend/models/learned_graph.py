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

from fedmend.models.layers import glorot, zeros
from fedmend.models.sparse import SparseMatrix

SLOPE = 6.0
"""A pair of cosine similarity s has the weight elu(6 s - 6) + 1: 1 for equals, e^-6 at zero."""
BACKGROUND = math.exp(-SLOPE)


class Pairs:
    """The chosen pairs (node, neighbour) as a fixed pattern, and products of matrices on it.

    neighbours: N x m, whom each node has chosen. A matrix on the pattern is its N x m values.
    """

    def __init__(self, neighbours: Tensor) -> None:
        self.nodes, self.count = neighbours.shape
        # Sorted columns: what the kernels read in order they read faster.
        self.columns = neighbours.sort(dim=1).values
        self._ends = torch.arange(0, self.nodes * self.count + 1, self.count)
        flat = self.columns.reshape(-1)
        self._flipped = torch.argsort(flat, stable=True)
        self._flipped_columns = self._flipped // self.count
        chosen_by = torch.bincount(flat, minlength=self.nodes)
        self._flipped_ends = torch.cat([chosen_by.new_zeros(1), chosen_by.cumsum(0)])

    def _csr(self, ends: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        # The indices come from this class: checking them at every product costs more than it.
        return torch.sparse_csr_tensor(
            ends, columns, values, size=(self.nodes, self.nodes), check_invariants=False
        )

    def times(self, values: Tensor, dense: Tensor) -> Tensor:
        """1/2 (S + S^T) dense, for the matrix S of these values."""
        flat = values.reshape(-1)
        straight = SparseMatrix(self._csr(self._ends, self.columns.reshape(-1), flat))
        flipped = self._csr(self._flipped_ends, self._flipped_columns, flat[self._flipped])
        return straight.times(dense).add_(SparseMatrix(flipped).times(dense)).mul_(0.5)

    def row_sums(self, values: Tensor) -> Tensor:
        """1/2 (S + S^T) 1."""
        received = values.new_zeros(self.nodes).index_add(
            0, self.columns.reshape(-1), values.reshape(-1)
        )
        return 0.5 * (values.sum(1) + received)

    def dots(self, left: Tensor, right: Tensor) -> Tensor:
        """left_i . right_j of every pair."""
        empty = left.new_zeros(self.nodes * self.count)
        pattern = self._csr(self._ends, self.columns.reshape(-1), empty)
        product = torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0)
        values: Tensor = product.values()
        return values.view(self.nodes, self.count)


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
        return 2.0 * ctx.pairs.times(grads[0].contiguous(), points), None


class _Symmetric(torch.autograd.Function):
    """1/2 (S + S^T) x, differentiable in the values of S and in x."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(values, x)
        return pairs.times(values, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        values, x = ctx.saved_tensors
        gradient, pairs = grads[0].contiguous(), ctx.pairs
        of_values = 0.5 * (pairs.dots(gradient, x) + pairs.dots(x, gradient))
        of_x = pairs.times(values, gradient) if ctx.needs_input_grad[1] else None
        return of_values, of_x, None


class Adjacency:
    """A* = D^-1/2 1/2 (P + P^T) D^-1/2 (Eq. 7): never a matrix, only its product."""

    def __init__(self, values: Tensor, pairs: Pairs, background: float) -> None:
        # P is `values` on the pairs and `background` elsewhere: a sparse part and a constant one.
        self._above, self._pairs, self._background = values - background, pairs, background
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
        told = _dropped(embeddings, dropout, generator) @ self.first_weight
        hidden = torch.relu(graph @ told + self.first_bias)
        told = _dropped(hidden, dropout, generator) @ self.second_weight
        return graph @ told + self.second_bias


def _dropped(h: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    if not rate:
        return h
    return h * (torch.rand(h.shape, generator=generator, dtype=h.dtype) >= rate) / (1.0 - rate)
