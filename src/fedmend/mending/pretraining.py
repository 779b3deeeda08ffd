"""FedGGR's local pre-training (section 4.2): autoencoders, and an embedding of every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fedmend.config import setting
from fedmend.federation import Federation, SiloBase, message
from fedmend.mending.learned_graph import GraphMemory, check_rows
from fedmend.models.autoencoder import GraphAutoencoder
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.ledger import Kind
from fedmend.privacy.mechanism import GaussianRows
from fedmend.privacy.noise import NoiseSource
from fedmend.training.aggregation import weighted_mean
from fedmend.training.autoencoder import AutoencoderSettings, AutoencoderTraining
from fedmend.training.state import Late, Part


@dataclass(frozen=True, kw_only=True)
class PretrainingSettings(AutoencoderSettings):
    """How embeddings are learned and what hides them."""

    embedding_noise: float = setting(
        0.0, "noise on uploaded embeddings over their clipping norm; 0 = neither", low=0.0
    )
    embedding_clip: float = setting(1.0, "norm they are clipped to if noised", low=1e-9)


# Messages


@message("fedggr.AutoencoderWeights")
class AutoencoderWeights:
    """The averaged autoencoder, from the server to a silo."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]


@message("fedggr.AutoencoderUpdate")
class AutoencoderUpdate:
    """A silo's autoencoder after some of its steps."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    nodes: Annotated[int, Kind.COUNTS]
    loss: Annotated[float, Kind.METRICS]


@message("fedggr.NodeEmbeddings")
class NodeEmbeddings:
    """The compressed embedding of every node of a silo, in the silo's order; never its label."""

    embeddings: Annotated[Tensor, Kind.EMBEDDINGS]
    loss: Annotated[float, Kind.METRICS]


class Pretraining(SiloBase):
    """A silo's half."""

    def start_pretraining(self, source: NoiseSource) -> None:
        self.autoencoder: AutoencoderTraining | None = None
        clip, noise = self.settings.embedding_clip, self.settings.embedding_noise
        accountant = GaussianAccountant(self.graph.num_nodes)
        self.embedding_noise = GaussianRows(clip, noise, accountant, source)

    def _autoencoder(self) -> AutoencoderTraining:
        if self.autoencoder is None:
            self.autoencoder = AutoencoderTraining(self.name, self.graph, self.settings, self.seed)
        return self.autoencoder

    def train_autoencoder(self, received: AutoencoderWeights) -> AutoencoderUpdate:
        """A part of the steps, from averaged weights."""
        own, settings = self._autoencoder(), self.settings
        own.load(received.weights)
        loss = own.train(-(-settings.autoencoder_epochs // settings.autoencoder_rounds))
        return AutoencoderUpdate(own.weights(), self.graph.num_nodes, loss)

    def share_embeddings(self, received: AutoencoderWeights) -> NodeEmbeddings:
        """The embeddings: by the averaged autoencoder, or by one of its own that it now trains."""
        own, loss = self._autoencoder(), 0.0
        if received.weights:
            own.load(received.weights)
        else:
            loss = own.train(self.settings.autoencoder_epochs)
        return NodeEmbeddings(self.embedding_noise.release(own.encode()), loss)

    def of_pretraining(self) -> Mapping[str, Part]:
        """The parts to be saved."""
        return {
            "embedding noise": self.embedding_noise,
            "autoencoder": Late(self.autoencoder, lambda _: self._autoencoder()),
        }


# The server's half


def pretrain(silos: Federation[Any], settings: Any, memory: GraphMemory) -> None:
    """Section 4.2: autoencoders, averaged if wanted, and the embeddings they give."""
    if settings.autoencoder_rounds:
        fresh = GraphAutoencoder(
            silos.schema.num_features,
            settings.embedding,
            settings.autoencoder_layers,
            silos.stream("autoencoder weights"),
        )
        memory.autoencoder = {key: value.detach() for key, value in fresh.named_parameters()}
    for number in silos.rounds(settings.autoencoder_rounds, memory, "autoencoders"):
        message = AutoencoderWeights(memory.autoencoder)
        updates = silos.ask(Pretraining.train_autoencoder, message).enough(settings.min_silos)
        memory.autoencoder = weighted_mean(
            {name: update.weights for name, update in updates.items()},
            {name: float(update.nodes) for name, update in updates.items()},
            like=memory.autoencoder,
        )
        nodes = sum(update.nodes for update in updates.values())
        loss = sum(update.loss * update.nodes for update in updates.values()) / nodes
        silos.note(number, reconstruction_loss=loss)
    for number in silos.rounds(1, memory, "embeddings"):
        loss = collect_embeddings(silos, settings, memory, silos.names)
        silos.note(number, reconstruction_loss=loss)
        counts = torch.tensor([float(len(each)) for each in memory.embeddings.values()])
        by_chance = 1.0 - float(((counts / counts.sum()) ** 2).sum())
        silos.note(number, crossing_by_chance=by_chance)


def collect_embeddings(
    silos: Federation[Any], settings: Any, memory: GraphMemory, names: Sequence[str]
) -> float:
    """Ask these silos for their embeddings; gives their mean loss."""
    replies = silos.ask(Pretraining.share_embeddings, AutoencoderWeights(memory.autoencoder), names)
    arrived = replies.arrived if memory.embeddings else replies.enough(settings.min_silos)
    for name, reply in arrived.items():
        check_rows(name, "embeddings", reply.embeddings, None, settings.embedding)
    found = {name: reply.embeddings for name, reply in arrived.items()}
    memory.embeddings = dict(sorted({**memory.embeddings, **found}.items()))
    return sum(reply.loss for reply in arrived.values()) / max(1, len(arrived))
