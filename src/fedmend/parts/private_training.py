"""DP-SGD: steps along per-node gradients, each clipped, with Gaussian noise on their sum.

One loss term (a training node's cross-entropy) can then change a step by no more than the clipping
norm, and the noise hides that. It is *not* a guarantee per edge or per node of the graph: a node
and its edges enter the loss terms of all nodes around it.

Per-node gradients are never built. Every batch node gets a neighbourhood of its own (a node that
two of them hear is computed twice), so that each row of each layer belongs to one loss term. A
weight's gradient for one term is then the sum over the term's rows of (input row) x (gradient of
the output row), whose squared norm is the sum over pairs of its rows of the two inner products; a
second backward pass, through the loss with each term scaled down to the norm, gives the clipped
sum (Abadi et al., CCS 2016, for the mechanism).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.sampling import Hop, every_neighbour
from fedmend.graph import Graph
from fedmend.models.backbones import Backbone
from fedmend.models.features import Features
from fedmend.models.layers import ClosedMeanLayer, Fusion, Projection, SageLayer
from fedmend.models.propagation import operator
from fedmend.models.sparse import SparseMatrix


@dataclass(frozen=True)
class Forest:
    """Neighbourhoods that share nothing: hops, the node of every input row, and its tree."""

    hops: Sequence[Hop]
    nodes: Tensor
    tree: Tensor


def forest(graph: Graph, batch: Tensor, layers: int) -> Forest:
    """The whole neighbourhood of each batch node, computed apart from those of the others."""
    degree = graph.degree
    nodes, tree = batch, torch.arange(len(batch))
    hops: list[Hop] = []
    for _ in range(layers):
        heard = every_neighbour(graph, nodes)
        count = heard.rowptr.diff()
        col = torch.arange(len(nodes), len(nodes) + len(heard.col))
        sources = torch.cat([nodes, heard.col])
        hops.insert(0, Hop(heard.rowptr, col, len(nodes), degree[nodes], degree[sources]))
        nodes, tree = sources, torch.cat([tree, torch.repeat_interleave(tree, count)])
    return Forest(hops, nodes, tree)


class _Watching:
    """Remembers what went into and came out of every linear map of a model."""

    def __init__(self, model: Backbone) -> None:
        self.seen: list[tuple[nn.Module, tuple[Any, ...], Tensor]] = []
        watched = (SageLayer, ClosedMeanLayer, Projection, Fusion)
        self._hooks = [
            module.register_forward_hook(self._remember)
            for module in model.modules()
            if isinstance(module, watched)
        ]

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self.seen.append((module, inputs, output))

    def __enter__(self) -> _Watching:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _linear_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor | Features]:
    """What each weight matrix of a module is multiplied with: a row per output row."""
    match module:
        case SageLayer():
            h, hop = inputs
            return [_own(h, hop), _heard(h, operator(hop, "mean"))]
        case ClosedMeanLayer():
            h, hop = inputs
            return [_heard(h, operator(hop, "closed-mean"))]
        case Fusion():
            return [inputs[1]]
        case _:
            return [inputs[0]]


def _own(h: Tensor | Features, hop: Hop) -> Tensor | Features:
    return h.rows(hop.own) if isinstance(h, Features) else hop.own_rows(h)


def _heard(h: Tensor | Features, matrix: SparseMatrix) -> Tensor | Features:
    return h.combined(matrix) if isinstance(h, Features) else matrix @ h


def _gram(rows: Tensor | Features) -> Tensor:
    """The inner products of all pairs of rows."""
    x = rows.x if isinstance(rows, Features) else rows
    dense = x.to_dense() if x.layout != torch.strided else x
    return x @ dense.T


def term_norms(seen: list[Any], losses: Tensor, tree: Tensor) -> Tensor:
    """The norm of every loss term's gradient over all weights that were watched."""
    outputs = [output for _, _, output in seen]
    gradients = torch.autograd.grad(losses.sum(), outputs, retain_graph=True)
    squares = losses.new_zeros(len(losses))
    with torch.no_grad():
        for (module, inputs, _), gradient in zip(seen, gradients, strict=True):
            mine = tree[: len(gradient)]
            same = mine[:, None] == mine[None, :]
            pairs = (gradient @ gradient.T) * same
            products = sum((_gram(rows) for rows in _linear_inputs(module, inputs)), 0.0)
            if hasattr(module, "bias"):
                products = products + 1.0
            squares.index_add_(0, mine, (pairs * products).sum(1))
    return squares.clamp(min=0.0).sqrt()


def private_gradients(
    model: Backbone,
    features: Features,
    around: Forest,
    labels: Tensor,
    *,
    clip: float,
    noise: float,
    generator: torch.Generator,
    dropout: torch.Generator | None = None,
    mended: Tensor | None = None,
) -> Tensor:
    """Give the model the gradients of a DP-SGD step; returns the batch's mean loss, unclipped.

    noise: standard deviation of the noise in units of the clipping norm. generator, dropout: draw
    the noise, and what is dropped.
    """
    with _Watching(model) as watching:
        scores = model(features, around.hops, dropout, mended)
    losses = F.cross_entropy(scores, labels, reduction="none")
    norms = term_norms(watching.seen, losses, around.tree)
    scale = (clip / norms.clamp(min=1e-12)).clamp(max=1.0)
    (losses * scale).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator) * (noise * clip)
        total = drawn if parameter.grad is None else parameter.grad + drawn
        parameter.grad = total / len(labels)
    return losses.detach().mean()
