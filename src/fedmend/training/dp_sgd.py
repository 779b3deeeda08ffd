"""DP-SGD: steps along per-node gradients, each clipped, with Gaussian noise on their sum.

One loss term (a training node's cross-entropy) can then change a step by no more than the clipping
norm, and the noise hides that. It is *not* a guarantee per edge or per node of the graph: a node
and its edges enter the loss terms of all nodes around it.

Per-node gradients are never built. Every batch node gets a neighbourhood of its own (a node that
two of them hear is computed twice), so that each row of each layer belongs to one loss term. A
weight's gradient for one term is then the sum over the term's rows of (input row) x (gradient of
the output row), whose squared norm is the sum over pairs of its rows of the two inner products; a
second backward pass, through the loss with each term scaled down to the norm, gives the clipped
sum (Abadi et al., CCS 2016, for the mechanism). What the first layer hears are constants, which
all terms share; their inner products within a term are kept from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.sampling import Edges, Hop, every_neighbour
from fedmend.graph import offsets, scipy_csr, spans
from fedmend.mending.nearest import inner_products
from fedmend.models.backbones import Backbone
from fedmend.models.features import Features
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.models.layers import ClosedMeanLayer, Fusion, Projection, SageLayer
from fedmend.models.propagation import operator
from fedmend.privacy.mechanism import GaussianSum

MOST_KEPT = 2**25
"""Inner products that a silo keeps."""


@dataclass(frozen=True)
class Forest:
    """Neighbourhoods that share no computed row.

    batch: the nodes themselves.
    nodes: the node of every input row; None = the graph's nodes as they are.
    tree: the batch node that each row belongs to, for the rows of the first layer and, where the
        input rows are the forest's own, for those.
    """

    batch: Tensor
    hops: Sequence[Hop]
    nodes: Tensor | None
    tree: Tensor


def forest(graph: Edges, batch: Tensor, layers: int, *, own_inputs: bool) -> Forest:
    """The whole neighbourhood of each batch node, computed apart from those of the others.

    own_inputs: also the input rows stand in one neighbourhood only, for a model that computes
        something of them before anybody hears it.
    """
    degree = graph.degree
    nodes, tree = batch, torch.arange(len(batch))
    hops: list[Hop] = []
    for above in range(layers):
        heard = every_neighbour(graph, nodes)
        if above == layers - 1 and not own_inputs:
            hops.insert(0, Hop(heard.rowptr, heard.col, nodes, degree[nodes], degree))
            return Forest(batch, hops, None, tree)
        count = heard.rowptr.diff()
        col = torch.arange(len(nodes), len(nodes) + len(heard.col))
        sources = torch.cat([nodes, heard.col])
        hops.insert(0, Hop(heard.rowptr, col, len(nodes), degree[nodes], degree[sources]))
        nodes, tree = sources, torch.cat([tree, torch.repeat_interleave(tree, count)])
    return Forest(batch, hops, nodes, tree)


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


Rows: TypeAlias = Tensor | sp.csr_matrix


def _linear_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> list[Rows]:
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
            return [_rows(inputs[0])]


def _rows(h: Tensor | Features) -> Rows:
    if not isinstance(h, Features):
        return h
    return scipy_csr(h.x.cpu()) if h.sparse else h.x


def _own(h: Tensor | Features, hop: Hop) -> Rows:
    rows = _rows(h)
    if isinstance(rows, Tensor):
        return hop.own_rows(rows)
    return rows[: hop.own] if isinstance(hop.own, int) else rows[hop.own.cpu().numpy()]


def _heard(h: Tensor | Features, matrix: SparseMatrix) -> Rows:
    rows = _rows(h)
    return matrix @ rows if isinstance(rows, Tensor) else scipy_csr(matrix.csr.cpu()) @ rows


class InputProducts:
    """Inner products of what the first layer hears, for the rows of every node's loss term.

    They depend on the graph alone: worked out when a node is first in a batch, and kept up to
    `MOST_KEPT` numbers (a term of n rows has n^2).
    """

    def __init__(self, nodes: int) -> None:
        self._start = torch.full((nodes,), -1)
        self._kept = torch.zeros(0)

    def forget(self) -> None:
        """The graph has changed."""
        self._start.fill_(-1)
        self._kept = torch.zeros(0)

    def of(self, around: Forest, rows: _Terms, given: Callable[[], list[Rows]]) -> Tensor:
        """A square per term, one after another; `given`: the layer's inputs."""
        sizes = rows.count**2
        start = self._start[around.batch]
        if bool((start >= 0).all()):
            return self._kept[spans(start, sizes)]
        found = _inner_products(given(), rows)
        if len(self._kept) + len(found) <= MOST_KEPT:
            self._start[around.batch] = len(self._kept) + offsets(sizes)[:-1]
            self._kept = torch.cat([self._kept, found])
        return found


class _Terms:
    """Rows that belong to one term each, put in order: term by term.

    order: the rows. tree: the term of each row, as given. count: how many rows each term has.
    partners: for one row in order after another, the places of all rows of its term; `rowptr`
        says where each one's begin.
    """

    def __init__(self, tree: Tensor, terms: int) -> None:
        self.tree = tree
        self.order = torch.argsort(tree, stable=True)
        self.count = torch.bincount(tree, minlength=terms)
        width = torch.repeat_interleave(self.count, self.count)
        first = torch.repeat_interleave(offsets(self.count)[:-1], self.count)
        self.rowptr, self.partners = offsets(width), spans(first, width)

    def squared_norms(self, products: Tensor, gradient: Tensor) -> Tensor:
        """For every term sum_ij products_ij (gradient_i . gradient_j) over pairs of its rows."""
        rows = len(self.order)
        csr = torch.sparse_csr_tensor(self.rowptr, self.partners, products, size=(rows, rows))
        gradient = gradient.index_select(0, self.order.to(gradient.device))
        each = (gradient * SparseMatrix(csr.to(gradient.device)).times(gradient)).sum(1)
        squares = gradient.new_zeros(len(self.count))
        return squares.index_add_(0, self.tree[self.order].to(gradient.device), each)


def _inner_products(given: list[Rows], rows: _Terms) -> Tensor:
    """The inner products of each term's rows, over all inputs: a square per term."""
    squares = offsets(rows.count**2)
    place = torch.empty_like(rows.order)  # a row's place within its term
    place[rows.order] = spans(torch.zeros_like(rows.count), rows.count)
    total = torch.zeros(int(squares[-1]))
    for each in given:
        if isinstance(each, Tensor):
            one = torch.repeat_interleave(rows.order, rows.rowptr.diff())
            total += inner_products(each.cpu(), one, each.cpu(), rows.order[rows.partners])
            continue
        shared = _within_terms(each, rows.tree, len(rows.count)).tocoo()
        row, column = (torch.from_numpy(at).long() for at in (shared.row, shared.col))
        term = rows.tree[row]
        at = squares[term] + place[row] * rows.count[term] + place[column]
        total.index_add_(0, at, torch.from_numpy(shared.data))
    return total


def term_norms(
    seen: list[Any], losses: Tensor, around: Forest, products: InputProducts | None
) -> Tensor:
    """The norm of every loss term's gradient over all weights that were watched."""
    outputs = [output for _, _, output in seen]
    gradients = torch.autograd.grad(losses.sum(), outputs, retain_graph=True)
    squares = losses.new_zeros(len(losses))
    with torch.no_grad():
        for (module, inputs, _), gradient in zip(seen, gradients, strict=True):
            mine = around.tree[: len(gradient)]
            given = partial(_linear_inputs, module, inputs)
            if products is not None and around.nodes is None and isinstance(inputs[0], Features):
                rows = _Terms(mine, len(losses))
                found = products.of(around, rows, given)
                squares += rows.squared_norms(found, gradient)
            else:
                squares += _squared_norms(given(), gradient, mine, len(losses))
            if hasattr(module, "bias"):
                of_bias = gradient.new_zeros(len(losses), gradient.shape[1])
                squares += of_bias.index_add_(0, mine, gradient).square().sum(1)
    return squares.clamp(min=0.0).sqrt()


def _squared_norms(given: list[Rows], gradient: Tensor, tree: Tensor, terms: int) -> Tensor:
    """For every term, |sum over its rows of (input row) x (gradient row)|^2, over all inputs."""
    if len(tree) == terms and all(isinstance(rows, Tensor) for rows in given):
        # As in the last layer: a row each.
        inputs = sum(rows.square().sum(1) for rows in given if isinstance(rows, Tensor))
        squares = gradient.new_zeros(terms)
        return squares.index_add_(0, tree, inputs * gradient.square().sum(1))
    rows = _Terms(tree, terms)
    return rows.squared_norms(_inner_products(given, rows), gradient)


def _within_terms(rows: sp.csr_matrix, tree: Tensor, terms: int) -> sp.csr_matrix:
    """The inner products of a term's rows, of those that share a feature.

    With columns of its own for every term, rows of two terms have nothing in common.
    """
    width = rows.shape[1]
    shift = np.repeat(tree.cpu().numpy() * width, np.diff(rows.indptr))
    shape = (rows.shape[0], terms * width)
    apart = sp.csr_matrix((rows.data, rows.indices + shift, rows.indptr), shape=shape)
    return apart @ apart.T


def private_gradients(
    model: Backbone,
    features: Features,
    around: Forest,
    labels: Tensor,
    *,
    mechanism: GaussianSum,
    dropout: torch.Generator | None = None,
    mended: Tensor | None = None,
    products: InputProducts | None = None,
) -> Tensor:
    """Give the model the gradients of a DP-SGD step; returns the batch's mean loss, unclipped.

    mechanism: says how far terms are scaled down, and adds the noise. dropout: draws what is
    dropped. products: what earlier steps on this graph have worked out.
    """
    with _Watching(model) as watching:
        scores = model(features, around.hops, dropout, mended)
    losses = F.cross_entropy(scores, labels, reduction="none")
    norms = term_norms(watching.seen, losses, around, products)
    scale = mechanism.begin(around.batch, norms)
    (losses * scale).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    for parameter in model.parameters():
        total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = mechanism.noised(total).div_(len(labels))
    return losses.detach().mean()
