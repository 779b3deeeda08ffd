"""A silo's training of its graph autoencoder: full-batch steps down the reconstruction error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmend.config import setting
from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import FederationError
from fedmend.graph import Graph
from fedmend.mending.nearest import squared_norms
from fedmend.models.autoencoder import GraphAutoencoder
from fedmend.models.features import Features
from fedmend.training.optimizer import Optimizer
from fedmend.training.settings import TrainingSettings
from fedmend.training.state import Composed, Part, take_over
from fedmend.training.streams import stream


@dataclass(frozen=True, kw_only=True)
class AutoencoderSettings(TrainingSettings):
    """How the autoencoder is built and trained."""

    embedding: int = setting(64, "width of the uploaded embeddings (p)", low=1, high=10**5)
    autoencoder_layers: int = setting(1, "GCN layers each way", low=1, high=10)
    autoencoder_epochs: int = setting(250, "steps on the whole graph it makes", low=0)
    autoencoder_lr: float = setting(0.03, "step size of the autoencoder", low=0.0)
    autoencoder_rounds: int = setting(
        25, "rounds in which the autoencoders are averaged; 0 = each silo trains alone", low=0
    )


class AutoencoderTraining(Composed):
    """A silo's autoencoder: full-batch steps on its own graph."""

    def __init__(self, name: str, graph: Graph, settings: AutoencoderSettings, seed: int) -> None:
        self.name = name
        self.model = GraphAutoencoder(
            graph.num_features,
            settings.embedding,
            settings.autoencoder_layers,
            stream(seed, "server", "autoencoder weights"),  # everybody starts alike
        ).to(settings.device)
        self._optimizer = Optimizer("adam", self.model.parameters(), settings.autoencoder_lr, 0.0)
        self._features = Features(graph.x.to(settings.device), reused=True)
        self._hop = whole_graph_hop(graph).to(torch.device(settings.device))
        self._squared_norm = float(squared_norms(graph.x).sum())

    def train(self, epochs: int) -> float:
        """Steps down the reconstruction error; gives the last one, before its step."""
        found = 0.0
        for _ in range(epochs):
            loss = self.model.loss(self._features, self._hop, self._squared_norm)
            self._optimizer.clear()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            self._optimizer.step()
            found = float(loss.detach())
        if not math.isfinite(found):
            raise FederationError(
                f"{self.name}: the autoencoder diverged, its loss is {found}; try a smaller "
                "autoencoder_lr"
            )
        return found

    def load(self, weights: Mapping[str, Tensor]) -> None:
        take_over(dict(self.model.named_parameters()), weights)

    def weights(self) -> dict[str, Tensor]:
        return {key: value.detach() for key, value in self.model.named_parameters()}

    @torch.no_grad()
    def encode(self) -> Tensor:
        """The embedding of every node of the silo's graph."""
        return self.model.encode(self._features, self._hop).cpu()

    def parts(self) -> Mapping[str, Part]:
        return {"weights": self.model, "optimizer": self._optimizer}
