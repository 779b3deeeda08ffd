"""The backbones every method can use: GraphSAGE, GCN, GAT, GPR-GNN, MLP, FedDEP's fused F.

Each of them may end in a vector instead of class scores, beside which a node brings rows along
from elsewhere; a linear layer then scores both together (FedGGR).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.errors import SettingsError
from fedmend.models.features import Features
from fedmend.models.layers import (
    ClosedMeanLayer,
    DenseLayer,
    Fusion,
    GatLayer,
    GcnLayer,
    PageRankStep,
    Projection,
    SageLayer,
)
from fedmend.plugins.registry import Registry, first_line

_OURS = {
    "sage": "GraphSAGE with the mean aggregator",
    "gcn": "graph convolutional network",
    "gat": "graph attention network",
    "gpr": "GPR-GNN: an MLP, then a learned weighted sum of what is heard 0 to `layers` hops away",
    "mlp": "features only, no edges: what the graph adds is measured against it",
    "fused-sage": "GraphSAGE with a place for mended embeddings; without them it is GraphSAGE",
    "fused-paper": "FedDEP's F as printed: means over the closed neighbourhood, no own term",
}


@dataclass(frozen=True)
class Network:
    """A backbone of the registry; `make` gives the module of one from outside (models/plain.py)."""

    description: str
    make: Callable[[ModelShape], nn.Module] | None = None


@dataclass(frozen=True)
class ModelShape:
    """All it takes to build a model: stored in a run's record, so that `predict` can rebuild it.

    embedding: width of the mended embeddings a node brings along; 0 if it takes none.
    joined: width of the vector that the last layer gives, to be joined with what the node brings
        along; 0 if it gives the class scores.
    """

    backbone: str
    num_features: int
    num_classes: int
    hidden: int
    layers: int
    heads: int
    dropout: float
    embedding: int = 0
    joined: int = 0

    @property
    def outputs(self) -> int:
        """What the last layer gives."""
        return self.joined or self.num_classes


class Backbone(nn.Module):
    """Layers with ReLU and dropout between them; the last one gives a score per class.

    Where the shape says `joined`, the last one gives a vector, which is joined with the row that
    the node brings along and scored by a linear layer (FedGGR, Eq. 4).
    """

    def __init__(self, shape: ModelShape, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = shape
        self.input: Projection | None = None
        self.layers = self._make_layers(generator)
        self.mended: nn.ModuleList | None = None
        self.joint: Projection | None = None
        # Drawn last: all other weights are those of the same network without anything brought.
        if shape.joined:
            both = shape.joined + shape.embedding
            self.joint = Projection(both, shape.num_classes, generator)
        elif shape.embedding:
            hidden = shape.layers - (self.input is None)
            rows = [shape.hidden] * hidden + [shape.num_classes]
            self.mended = nn.ModuleList(Fusion(shape.embedding, n, generator) for n in rows)

    def _make_layers(self, generator: torch.Generator | None) -> nn.ModuleList:
        """One layer per hop, and what stands before them."""
        shape = self.shape
        widths = [shape.num_features] + [shape.hidden] * (shape.layers - 1) + [shape.outputs]
        if shape.backbone == "fused-paper":
            # W^(0): a node's own features, before anything is heard (K + 1 matrices in all).
            self.input = Projection(shape.num_features, shape.hidden, generator)
            widths[0] = shape.hidden
        return nn.ModuleList(
            _layer(shape, inputs, outputs, position == shape.layers - 1, generator)
            for position, (inputs, outputs) in enumerate(pairwise(widths))
        )

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

        generator: draws the dropout. mended: what every input row brings along (FedDEP's mean of
        the generated neighbours, FedGGR's global embedding); None is the same as all zeros.
        """
        if self.joint is not None:
            own = self.scores(self.hidden(x, hops[:-1], generator), hops[-1])
            return self._join(self.joint, own, hops, mended, generator)
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

    def _join(
        self,
        joint: Projection,
        own: Tensor,
        hops: Sequence[Hop],
        brought: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Scores of [what the layers gave || what the node brought along, with dropout]."""
        if brought is None:
            return torch.addmm(joint.bias, own, joint.weight[: self.shape.joined])
        for hop in hops:
            brought = hop.own_rows(brought)
        scores: Tensor = joint(torch.cat([own, self._drop(brought, generator)], dim=1))
        return scores

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


class GprGnn(Backbone):
    """GPR-GNN (Chien et al., ICLR 2021): sum_k gamma_k A^k MLP(x), A as in a GCN.

    `layers` is the number of hops K. The weights gamma start as those of personalised PageRank,
    alpha (1 - alpha)^k, the rest at K.
    """

    ALPHA = 0.1

    def _make_layers(self, generator: torch.Generator | None) -> nn.ModuleList:
        shape = self.shape
        self.mlp = nn.ModuleList(
            Projection(inputs, outputs, generator)
            for inputs, outputs in pairwise([shape.num_features, shape.hidden, shape.outputs])
        )
        gammas = [self.ALPHA * (1.0 - self.ALPHA) ** hops for hops in range(shape.layers)]
        gammas.append((1.0 - self.ALPHA) ** shape.layers)
        self.own = PageRankStep(gammas[0], generator)
        return nn.ModuleList(PageRankStep(gamma, generator) for gamma in gammas[1:])

    def hidden(
        self, x: Features, hops: Sequence[Hop], generator: torch.Generator | None = None
    ) -> Tensor:
        """Side by side, what is heard so many hops away and the weighted sum up to there."""
        first, second = self.mlp
        h: Tensor = second(self._between(first(x), generator))
        total = self.own.gamma * h
        for layer, hop in zip(list(self.layers)[:-1], hops, strict=True):
            h, total = self._step(layer, h, total, hop)
        return torch.cat([h, total], dim=1)

    def scores(self, hidden: Tensor | Features, hop: Hop) -> Tensor:
        h, total = cast(Tensor, hidden).chunk(2, dim=1)  # as `hidden` gave it, never features
        return self._step(self.layers[-1], h, total, hop)[1]

    def _step(self, layer: nn.Module, h: Tensor, total: Tensor, hop: Hop) -> tuple[Tensor, Tensor]:
        h = layer(h, hop)
        return h, hop.own_rows(total) + layer.get_parameter("gamma") * h


def _accepted(name: str, given: Any) -> Network:
    """A backbone from outside: a function of the shape, such as the class of a module."""
    if not callable(given):
        raise SettingsError(
            f"backbone {name!r} must be a function from a ModelShape to a torch.nn.Module, "
            f"got {given!r:.80}"
        )
    return Network(first_line(given), given)


BACKBONES: Registry[Network] = Registry(
    "backbone", {name: Network(text) for name, text in _OURS.items()}, _accepted
)


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
            raise SettingsError(
                f"backbone {other!r} comes from outside, and its layers cannot be had one by one, "
                f"as this method needs them: choose one of {', '.join(_OURS)}"
            )


def layer_of(key: str) -> int | None:
    """The layer that a weight of this name belongs to; None for what stands before the first.

    Weights are named layers.<number>.<name>, those of a module from outside with `module.` before.
    """
    found = re.match(r"(?:module\.)?layers\.(\d+)\.", key)
    return int(found[1]) if found else None


def build(shape: ModelShape, generator: torch.Generator | None) -> Backbone:
    """A model of this shape with fresh weights, drawn from the generator.

    None is for models that get other weights at once (on torch's meta device nothing is drawn).
    """
    network = BACKBONES.find(shape.backbone)
    if network.make is not None:
        from fedmend.models.plain import PlainBackbone  # which is a backbone in its turn

        return PlainBackbone(shape, generator)
    if shape.backbone == "gat" and shape.hidden % shape.heads:
        raise SettingsError(
            f"hidden={shape.hidden} cannot be shared by heads={shape.heads}; "
            "choose a hidden size that is a multiple of heads"
        )
    return (GprGnn if shape.backbone == "gpr" else Backbone)(shape, generator)
