"""A GCN or GraphSAGE that stops at every layer for sums over neighbours it cannot see.

Forward, each layer after the first: `say` gives what every node tells its neighbours (scaled at
the source), `hear` takes the sums over the hidden ones (scaled at the target). Back, from the last
layer on: `say_gradients` gives d loss / d (what a node heard), `hear_gradients` takes the sums of
what the hidden hearers of a node say. With exact sums the gradients are those of the whole graph.

The first layer's sums do not depend on the weights: they are an input, and need no way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FederationError
from fedmend.models.backbones import Backbone
from fedmend.models.features import Features
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.models.layers import GcnLayer, SageLayer


@dataclass
class _Layer:
    """One layer under way; `result` is its output, activated, or the loss of the last one."""

    inputs: Tensor
    said: Tensor
    heard: Tensor
    result: Tensor


class LayerByLayer:
    """The network of one silo.

    seen: which neighbours are in plain sight, as a matrix of ones.
    source_scale: by what a node multiplies what it says; GCN's, ones for GraphSAGE.
    applied_by_hearer: layers (by number) whose weights differ from silo to silo, so that no source
        may apply them; all others' weights are applied before saying where that is narrower.
    """

    def __init__(
        self,
        model: Backbone,
        seen: SparseMatrix,
        source_scale: Tensor,
        dropout: torch.Generator,
        applied_by_hearer: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.model = model
        self.seen, self._scale, self.dropout = seen, source_scale, dropout
        self._applied_by_hearer = applied_by_hearer
        self._first = torch.empty(0)
        self._layers: list[_Layer] = []
        self._gradient = torch.ones(())

    @property
    def _gcn(self) -> bool:
        return self.model.shape.backbone == "gcn"

    def _weights_first(self, number: int) -> bool:
        weight = neighbour_weight(self.model.layers[number])
        return weight.shape[1] < weight.shape[0] and not self._applied_by_hearer(number)

    def _activated(self, number: int, out: Tensor) -> Tensor:
        if number == self.model.shape.layers - 1:
            return out
        return self.model._drop(torch.relu(out), self.dropout)

    @property
    def training(self) -> bool:
        return self.model.training

    @property
    def result(self) -> Tensor:
        """The last layer computed so far: scores after the last one, until `loss`."""
        return self._layers[-1].result if self._layers else self._first

    # Forward

    def begin(self, summed: Features, own: Features, training: bool) -> None:
        """The first layer, from features that are summed already."""
        self.model.train(training)
        self.model.zero_grad(set_to_none=True)
        self._layers = []
        with torch.set_grad_enabled(training):
            layer = self.model.layers[0]
            out = summed @ neighbour_weight(layer) + bias(layer)
            if isinstance(layer, SageLayer):
                out = out + own @ layer.own
            self._first = self._activated(0, out)

    def say(self) -> Tensor:
        """Source side of the next layer: a row per node."""
        number = len(self._layers) + 1
        with torch.set_grad_enabled(self.training):
            inputs = self.result.detach().requires_grad_(self.training)
            said = inputs * self._scale if self._gcn else inputs
            if self._weights_first(number):
                said = said @ neighbour_weight(self.model.layers[number])
        self._layers.append(_Layer(inputs, said, said, self.result))
        return said.detach()

    @property
    def depth(self) -> int:
        """Layers computed so far, on the way back those that are still to come."""
        return len(self._layers) + 1

    @property
    def width(self) -> int:
        """Of the rows that are on the way."""
        return int(self._layers[-1].said.shape[1])

    def hear(self, heard: Tensor, target_scale: Tensor) -> None:
        """Target side of the layer: its output, from the sums over hidden neighbours."""
        number, layer = len(self._layers), self._layers[-1]
        module = self.model.layers[number]
        with torch.set_grad_enabled(self.training):
            layer.heard = heard.requires_grad_(self.training)
            out = self.seen @ layer.said + layer.heard
            out = (out + layer.said if self._gcn else out) * target_scale
            if not self._weights_first(number):
                out = out @ neighbour_weight(module)
            if isinstance(module, SageLayer):
                out = out + layer.inputs @ module.own
            layer.result = self._activated(number, out + bias(module))

    # The way back

    def loss(self, nodes: Tensor, labels: Tensor) -> float:
        """The summed loss of these nodes: from here on the way leads back."""
        with torch.set_grad_enabled(True):
            loss = F.cross_entropy(self.result[nodes], labels[nodes], reduction="sum")
        if self._layers:
            self._layers[-1].result = loss
        else:
            self._first = loss
        self._gradient = torch.ones(())
        return float(loss.detach())

    def say_gradients(self) -> Tensor:
        """Source side of the way back."""
        layer = self._layers[-1]
        (said,) = torch.autograd.grad(layer.result, layer.heard, self._gradient, retain_graph=True)
        return said

    def hear_gradients(self, heard: Tensor) -> None:
        """Target side of the way back: this layer's gradients are complete."""
        layer = self._layers.pop()
        torch.autograd.backward([layer.result, layer.said], [self._gradient, heard])
        if layer.inputs.grad is None:
            raise FederationError("a layer has no gradient: the pass back came too early")
        self._gradient = layer.inputs.grad

    def gradients(self) -> dict[str, Tensor]:
        """The first layer's gradients, and with them all."""
        torch.autograd.backward([self._first], [self._gradient])
        return {
            key: torch.zeros_like(each) if each.grad is None else each.grad
            for key, each in self.model.named_parameters()
        }


def neighbour_weight(layer: nn.Module) -> Tensor:
    """The weights that a layer applies to what it hears."""
    if isinstance(layer, GcnLayer):
        return layer.weight
    if isinstance(layer, SageLayer):
        return layer.neighbours
    raise FederationError(f"{type(layer).__name__} cannot be computed layer by layer")


def bias(layer: nn.Module) -> Tensor:
    """A layer's bias."""
    found = layer.bias
    if not isinstance(found, Tensor):
        raise FederationError(f"{type(layer).__name__} has no bias")
    return found
