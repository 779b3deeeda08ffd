"""Full-batch steps of two-layer GraphSAGE and GCN, with the derivatives written out.

On silos of a few hundred nodes autograd's own work takes a third of a step. Kernels and their order
are those of `layers.py`, and losses and gradients are the same to the bit (test); whatever does not
fit goes the usual way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.models.backbones import Backbone
from fedmend.models.features import Features
from fedmend.models.kernels import fast
from fedmend.models.kernels.loss import Targets, loss_and_gradient
from fedmend.models.kernels.sparse import SparseMatrix, chained, chained_transposed
from fedmend.models.layers import GcnLayer, SageLayer
from fedmend.models.propagation import operator, with_own

_relu_backward = torch.ops.aten.threshold_backward.default  # looked up once, which takes as long


class FullBatch:
    """A model and a graph that stays: scores, and loss and gradients, of any of its nodes.

    whole: the hop from everybody to everybody, which the first layer hears through.
    """

    def __init__(self, model: Backbone, x: Features, whole: Hop) -> None:
        first, last = model.layers
        if x.matrix is None or not isinstance(first, SageLayer | GcnLayer):
            raise TypeError("the derivatives of this model are not written out: ask `fits` first")
        self._first = _FromFeatures(first, x.matrix, whole)
        self._last = _FromHidden(last)
        self._parameters = list(model.parameters())
        self._kept: tuple[list[int], tuple[Tensor, Tensor]] | None = None

    @staticmethod
    def fits(model: Backbone, x: Features) -> bool:
        """Whether the derivatives of this model are written out here."""
        shape = model.shape
        return (
            fast("by_hand")
            and shape.backbone in ("sage", "gcn")
            and shape.layers == 2
            and shape.dropout == 0.0
            and shape.outputs < shape.hidden
            and not shape.joined
            and x.matrix is not None
            and x.x.device.type == "cpu"
        )

    @torch.no_grad()
    def scores(self, hop: Hop) -> Tensor:
        """Class scores of the nodes that the hop computes."""
        return self._last.heard(self._below()[1], hop)

    @torch.no_grad()
    def loss_and_gradients(self, hop: Hop, targets: Targets) -> Tensor:
        """Cross entropy of the nodes that the hop computes; leaves gradients in the parameters."""
        hidden, told = self._below()
        loss, gradient = loss_and_gradient(self._last.heard(told, hop), targets)
        gradient = self._last.backward(gradient, hidden, hop)
        self._first.backward(_relu_backward(gradient, hidden, 0))
        return loss

    def _below(self) -> tuple[Tensor, Tensor]:
        """What goes into the last layer, and what its nodes tell each other there.

        Computed again only where a weight has changed since: a silo validates the weights it
        received and then trains from them, which is one pass less.
        """
        weights = [parameter._version for parameter in self._parameters]
        if self._kept is None or self._kept[0] != weights:
            hidden = self._first.forward().relu_()
            self._kept = weights, (hidden, self._last.told(hidden))
        return self._kept[1]


class _FromFeatures:
    """The first layer: products of constant matrices with each of its weights, added up."""

    def __init__(self, layer: SageLayer | GcnLayer, x: SparseMatrix, whole: Hop) -> None:
        self._terms: list[tuple[list[SparseMatrix], nn.Parameter]]
        if isinstance(layer, SageLayer):
            heard = [operator(whole, "mean"), x]
            self._terms = [([x], layer.own), (heard, layer.neighbours)]
        else:
            self._terms = [([operator(whole, "gcn"), x], layer.weight)]
        self._bias = layer.bias

    def forward(self) -> Tensor:
        total, *others = [chained(matrices, weight) for matrices, weight in self._terms]
        for other in (*others, self._bias):
            total.add_(other)
        return total

    def backward(self, gradient: Tensor) -> None:
        for matrices, weight in self._terms:
            weight.grad = chained_transposed(matrices, gradient)
        self._bias.grad = gradient.sum(0)


class _FromHidden:
    """The last layer: matrix @ (h @ weight) + bias, GraphSAGE's two weights side by side."""

    def __init__(self, layer: nn.Module) -> None:
        sage = isinstance(layer, SageLayer)
        names = ("own", "neighbours") if sage else ("weight",)
        self._weights: list[Tensor] = [layer.get_parameter(name) for name in names]
        self._bias = layer.get_parameter("bias")
        self._sage = sage

    def _matrix(self, hop: Hop) -> SparseMatrix:
        return with_own(hop, "mean") if self._sage else operator(hop, "gcn")

    def _weight(self) -> Tensor:
        return torch.cat(self._weights, dim=1) if self._sage else self._weights[0]

    def told(self, h: Tensor) -> Tensor:
        return narrow_product(h, self._weight())

    def heard(self, told: Tensor, hop: Hop) -> Tensor:
        matrix = self._matrix(hop)
        return matrix.times(told.view(matrix.shape[1], -1)).add_(self._bias)

    def backward(self, gradient: Tensor, h: Tensor, hop: Hop) -> Tensor:
        """Leaves the parameters' gradients in them, gives that of h."""
        told = self._matrix(hop).transposed_times(gradient).view(len(h), -1)
        both = narrow_product(h.t(), told)
        for weight, found in zip(self._weights, both.chunk(len(self._weights), 1), strict=True):
            weight.grad = found.contiguous()
        self._bias.grad = gradient.sum(0)
        return told @ self._weight().t()


def narrow_product(h: Tensor, weight: Tensor) -> Tensor:
    """h @ weight for a weight of few columns, of which torch makes three times the work.

    The same with few rows is quick (measured: 19 in place of 67 µs for 540 x 64 times 64 x 7).
    """
    return (weight.t() @ h.t()).t().contiguous()
