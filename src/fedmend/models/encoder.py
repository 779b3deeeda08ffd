"""A GNN whose embeddings are wanted: its classes, by a linear head on top, only teach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedmend.data.sampling import Hop
from fedmend.models.backbones import Backbone, ModelShape
from fedmend.models.features import Features
from fedmend.models.layers import Projection


class Encoder(Backbone):
    """Gives embeddings between -1 and 1, the range of a generator that ends in tanh."""

    def __init__(
        self, shape: ModelShape, embedding: int, generator: torch.Generator | None
    ) -> None:
        """`shape`: of the classifier it learns to be; its last layer gives the embedding."""
        super().__init__(replace(shape, num_classes=embedding), generator)
        self.head = Projection(embedding, shape.num_classes, generator)

    def embed(
        self, x: Features, hops: Sequence[Hop], generator: torch.Generator | None = None
    ) -> Tensor:
        """The embeddings of the nodes the last hop computes."""
        return self._embedding(self.hidden(x, hops[:-1], generator), hops[-1])

    def scores(self, hidden: Tensor | Features, hop: Hop) -> Tensor:
        """Class scores by the linear head."""
        scores: Tensor = self.head(self._embedding(hidden, hop))
        return scores

    def _embedding(self, hidden: Tensor | Features, hop: Hop) -> Tensor:
        return torch.tanh(super().scores(hidden, hop))
