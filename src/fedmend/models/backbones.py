"""The backbones every method can use: GraphSAGE, GCN, GAT and MLP, of any number of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.models.features import Features
from fedmend.models.layers import DenseLayer, GatLayer, GcnLayer, SageLayer

BACKBONES = {
    "sage": "GraphSAGE with the mean aggregator",
    "gcn": "graph convolutional network",
    "gat": "graph attention network",
    "mlp": "features only, no edges: what the graph adds is measured against it",
}


@dataclass(frozen=True)
class ModelShape:
    """All it takes to build a model: stored in a run's record, so that `predict` can rebuild it."""

    backbone: str
    num_features: int
    num_classes: int
    hidden: int
    layers: int
    heads: int
    dropout: float


class Backbone(nn.Module):
    """Layers with ReLU and dropout between them; the last one gives a score per class."""

    def __init__(self, shape: ModelShape, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = shape
        widths = [shape.num_features] + [shape.hidden] * (shape.layers - 1) + [shape.num_classes]
        self.layers = nn.ModuleList(
            _layer(shape, inputs, outputs, position == shape.layers - 1, generator)
            for position, (inputs, outputs) in enumerate(pairwise(widths))
        )

    @property
    def uses_edges(self) -> bool:
        return self.shape.backbone != "mlp"

    def forward(
        self, x: Features, hops: Sequence[Hop], generator: torch.Generator | None = None
    ) -> Tensor:
        """Class scores of the nodes the last hop computes; `generator` draws the dropout."""
        first, *deeper = zip(self.layers, hops, strict=True)
        h: Tensor = first[0](x, first[1])
        for layer, hop in deeper:
            h = layer(self._drop(torch.relu(h), generator), hop)
        return h

    def _drop(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        rate = self.shape.dropout
        if not self.training or rate == 0.0:
            return h
        keep = torch.rand(h.shape, generator=generator, dtype=h.dtype) >= rate
        return h * (keep.to(h.device) / (1.0 - rate))


def _layer(
    shape: ModelShape, inputs: int, outputs: int, last: bool, generator: torch.Generator | None
) -> nn.Module:
    match shape.backbone:
        case "sage":
            return SageLayer(inputs, outputs, generator)
        case "gcn":
            return GcnLayer(inputs, outputs, generator)
        case "gat":
            return GatLayer(inputs, outputs, 1 if last else shape.heads, generator)
        case "mlp":
            return DenseLayer(inputs, outputs, generator)
        case other:
            raise UnknownNameError("backbone", other, BACKBONES)


def build(shape: ModelShape, generator: torch.Generator | None) -> Backbone:
    """A model of this shape with fresh weights, drawn from the generator.

    None is for models that get other weights at once (on torch's meta device nothing is drawn).
    """
    if shape.backbone not in BACKBONES:
        raise UnknownNameError("backbone", shape.backbone, BACKBONES)
    if shape.backbone == "gat" and shape.hidden % shape.heads:
        raise SettingsError(
            f"hidden={shape.hidden} cannot be shared by heads={shape.heads}; "
            "choose a hidden size that is a multiple of heads"
        )
    return Backbone(shape, generator)
