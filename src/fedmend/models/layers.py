"""The layers: each takes the input rows and one hop, and gives one row per computed node.

Compared with PyG's SAGEConv, GCNConv and GATConv in the tests. Weights are drawn from a generator
that is passed in, never from torch's global one.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.models.features import Features
from fedmend.models.propagation import heard_through, operator, own_and_heard, own_through

BLOCK = 2**26
"""Floats that attention gathers at a time when it only predicts."""


def glorot(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Parameter:
    """A weight matrix drawn uniformly within sqrt(6 / (inputs + outputs)).

    Without a generator it has a shape and no values ("meta"): to be filled from a file.
    """
    if generator is None:
        return nn.Parameter(torch.empty(inputs, outputs, device="meta"))
    bound = math.sqrt(6.0 / (inputs + outputs))
    drawn = torch.rand(inputs, outputs, generator=generator, dtype=torch.float32)
    return nn.Parameter((2.0 * drawn - 1.0) * bound)


def zeros(outputs: int, generator: torch.Generator | None) -> nn.Parameter:
    """A bias of zeros; without a generator, of no values."""
    return nn.Parameter(torch.zeros(outputs, device="meta" if generator is None else None))


class SageLayer(nn.Module):
    """GraphSAGE with the mean aggregator: own row and mean of the neighbours (FedSage, Eq. 1)."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.own = glorot(inputs, outputs, generator)
        self.neighbours = glorot(inputs, outputs, generator)
        self.bias = zeros(outputs, generator)

    def forward(self, h: Tensor | Features, hop: Hop) -> Tensor:
        return own_and_heard(h, self.own, self.neighbours, hop, "mean", self.bias)


class GcnLayer(nn.Module):
    """Graph convolution: the symmetrically normalised sum over the closed neighbourhood."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = glorot(inputs, outputs, generator)
        self.bias = zeros(outputs, generator)

    def forward(self, h: Tensor | Features, hop: Hop) -> Tensor:
        return heard_through(h, self.weight, hop, "gcn", self.bias)


class ClosedMeanLayer(nn.Module):
    """The mean over the closed neighbourhood, the node itself among its neighbours (FedDEP)."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = glorot(inputs, outputs, generator)
        self.bias = zeros(outputs, generator)

    def forward(self, h: Tensor | Features, hop: Hop) -> Tensor:
        return heard_through(h, self.weight, hop, "closed-mean") + self.bias


class GatLayer(nn.Module):
    """Graph attention over the closed neighbourhood; the heads' outputs stand side by side."""

    def __init__(
        self, inputs: int, outputs: int, heads: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.heads, self.width = heads, outputs
        self.weight = glorot(inputs, outputs, generator)
        self.as_target = glorot(heads, outputs // heads, generator)
        self.as_source = glorot(heads, outputs // heads, generator)
        self.bias = zeros(outputs, generator)

    def forward(self, h: Tensor | Features, hop: Hop) -> Tensor:
        values = (h @ self.weight).view(hop.sources, self.heads, -1)
        own = hop.own_rows(values)
        # A row of its own for every edge is much memory on a large graph: block by block where
        # nothing is kept for a backward pass.
        blocks = 1 if torch.is_grad_enabled() else 1 + len(hop.col) * self.width // BLOCK
        ends = torch.linspace(0, hop.rows, blocks + 1).long().tolist()
        heard = [
            self._attend(values, own[start:end], hop.col, hop.rowptr[start : end + 1])
            for start, end in pairwise(ends)
        ]
        return torch.cat(heard).reshape(hop.rows, -1) + self.bias

    def _attend(self, values: Tensor, own: Tensor, col: Tensor, rowptr: Tensor) -> Tensor:
        """What some rows hear: the sum over themselves and their columns, weighted by attention."""
        rows = len(own)
        listener = torch.arange(rows, device=col.device)
        target = torch.cat([torch.repeat_interleave(listener, rowptr.diff()), listener])
        told = torch.cat([values[col[rowptr[0] : rowptr[-1]]], own])
        score = (own * self.as_target).sum(-1)[target] + (told * self.as_source).sum(-1)
        attention = _softmax_per_row(F.leaky_relu(score, 0.2), target, rows)
        out = values.new_zeros(own.shape)
        return out.index_add(0, target, told * attention[..., None])


def _softmax_per_row(score: Tensor, row: Tensor, rows: int) -> Tensor:
    """Softmax of the scores that belong to the same row, per head."""
    index = row[:, None].expand_as(score)
    lowest = score.new_full((rows, score.shape[1]), -torch.inf)
    highest = lowest.scatter_reduce(0, index, score.detach(), "amax")
    power = torch.exp(score - highest[row])
    total = power.new_zeros(rows, score.shape[1]).index_add(0, row, power)
    return power / total[row]


class PageRankStep(nn.Module):
    """One hop of GPR-GNN: hears like a GCN, without weights but gamma, its share in the result."""

    def __init__(self, gamma: float, generator: torch.Generator | None) -> None:
        super().__init__()
        device = "meta" if generator is None else None
        self.gamma = nn.Parameter(torch.full((1,), gamma, device=device))

    def forward(self, h: Tensor, hop: Hop) -> Tensor:
        return operator(hop, "gcn") @ h


class DenseLayer(nn.Module):
    """A plain linear layer: hears nobody."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = glorot(inputs, outputs, generator)
        self.bias = zeros(outputs, generator)

    def forward(self, h: Tensor | Features, hop: Hop) -> Tensor:
        return own_through(h, self.weight, hop) + self.bias


class Projection(nn.Module):
    """A linear map of rows as they are, outside of any hop."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = glorot(inputs, outputs, generator)
        self.bias = zeros(outputs, generator)

    def forward(self, h: Tensor | Features) -> Tensor:
        return h @ self.weight + self.bias


class Fusion(nn.Module):
    """Adds a linear map of mended embeddings to a layer's output (FedDEP, statement 3.1)."""

    def __init__(self, embedding: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = glorot(embedding, outputs, generator)

    def forward(self, h: Tensor, mended: Tensor) -> Tensor:
        return torch.addmm(h, mended, self.weight)
