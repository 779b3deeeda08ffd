"""The backbones every method can use: GraphSAGE, GCN, GAT, MLP and FedDEP's embedding-fused F."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.models.features import Features
from fedmend.models.layers import (
    ClosedMeanLayer,
    DenseLayer,
    Fusion,
    GatLayer,
    GcnLayer,
    Projection,
    SageLayer,
)

BACKBONES = {
    "sage": "GraphSAGE with the mean aggregator",
    "gcn": "graph convolutional network",
    "gat": "graph attention network",
    "mlp": "features only, no edges: what the graph adds is measured against it",
    "fused-sage": "GraphSAGE with a place for mended embeddings; without them it is GraphSAGE",
    "fused-paper": "FedDEP's F as printed: means over the closed neighbourhood, no own term",
}


@dataclass(frozen=True)
class ModelShape:
    """All it takes to build a model: stored in a run's record, so that `predict` can rebuild it.

    embedding: width of the mended embeddings a fused backbone takes; 0 if it takes none.
    """

    backbone: str
    num_features: int
    num_classes: int
    hidden: int
    layers: int
    heads: int
    dropout: float
    embedding: int = 0


class Backbone(nn.Module):
    """Layers with ReLU and dropout between them; the last one gives a score per class."""

    def __init__(self, shape: ModelShape, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = shape
        widths = [shape.num_features] + [shape.hidden] * (shape.layers - 1) + [shape.num_classes]
        self.input: Projection | None = None
        if shape.backbone == "fused-paper":
            # W^(0): a node's own features, before anything is heard (K + 1 matrices in all).
            self.input = Projection(shape.num_features, shape.hidden, generator)
            widths[0] = shape.hidden
        self.layers = nn.ModuleList(
            _layer(shape, inputs, outputs, position == shape.layers - 1, generator)
            for position, (inputs, outputs) in enumerate(pairwise(widths))
        )
        self.mended: nn.ModuleList | None = None
        if shape.embedding:
            # Drawn last: all other weights are those of the same network without mending.
            rows = widths[:1] * (self.input is not None) + widths[1:]
            self.mended = nn.ModuleList(Fusion(shape.embedding, n, generator) for n in rows)

    @property
    def uses_edges(self) -> bool:
        return self.shape.backbone != "mlp"

    def forward(
        self,
        x: Features,
        hops: Sequence[Hop],
        generator: torch.Generator | None = None,
        mended: Tensor | None = None,
    ) -> Tensor:
        """Class scores of the nodes the last hop computes.

        generator: draws the dropout. mended: the mended embedding of every input row (FedDEP's
        mean of the generated neighbours); None where nothing is mended, the same as all zeros.
        """
        if mended is not None and self.mended is not None:
            return self._fused(x, hops, generator, mended, list(self.mended))
        return self.scores(self.hidden(x, hops[:-1], generator), hops[-1])

    def hidden(
        self, x: Features, hops: Sequence[Hop], generator: torch.Generator | None = None
    ) -> Tensor | Features:
        """What goes into the last layer: the features themselves if there is no other."""
        h: Tensor | Features = x
        if self.input is not None:
            h = self._between(self.input(x), generator)
        for layer, hop in zip(list(self.layers)[:-1], hops, strict=True):
            h = self._between(layer(h, hop), generator)
        return h

    def scores(self, hidden: Tensor | Features, hop: Hop) -> Tensor:
        """The last layer."""
        found: Tensor = self.layers[-1](hidden, hop)
        return found

    def _fused(
        self,
        x: Features,
        hops: Sequence[Hop],
        generator: torch.Generator | None,
        mended: Tensor,
        fusions: list[nn.Module],
    ) -> Tensor:
        """The same, with every layer adding the mended embeddings through weights of its own."""
        heard: Tensor | Features = x
        if self.input is not None:
            heard = self._between(fusions.pop(0)(self.input(x), mended), generator)
        h = mended
        for number, (layer, hop) in enumerate(zip(self.layers, hops, strict=True)):
            if number:
                heard = self._between(h, generator)
            mended = hop.own_rows(mended)
            h = fusions[number](layer(heard, hop), mended)
        return h

    def _between(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._drop(torch.relu(h), generator)

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
        case "fused-sage":
            return SageLayer(inputs, outputs, generator)
        case "fused-paper":
            return ClosedMeanLayer(inputs, outputs, generator)
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
