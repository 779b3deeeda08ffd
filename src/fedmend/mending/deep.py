"""Deep neighbour generation (FedDEP's DGen): the local GNN, the generator, and training with both.

Equations and their deviations stand in `methods/feddep.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.config import setting
from fedmend.data.sampling import Hop, all_rows_hops, hop_to, whole_graph_hop
from fedmend.federation import Schema
from fedmend.graph import Graph
from fedmend.mending.generator import Generated, NeighbourGenerator
from fedmend.mending.graph import estimated_missing, with_self_loops
from fedmend.mending.nearest import Groups
from fedmend.mending.reconstruction import lost_neighbour_loss, nearest_of_each_loss
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.encoder import Encoder
from fedmend.models.features import Features
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.noise import NO_NOISE, NoiseSource
from fedmend.training.protected import ProtectedTraining, ProtectionSettings
from fedmend.training.settings import TrainingSettings
from fedmend.training.state import Part, Values
from fedmend.training.streams import stream

ENCODER_LR = 1e-3
"""Step size of the local GNN: what training has by default."""


@dataclass(frozen=True, kw_only=True)
class DeepSettings(ProtectionSettings):
    """How deep neighbours are generated, and how training hears them."""

    fused: str = setting(
        "sage",
        "sage: GraphSAGE plus a map of the mended embeddings; paper: F as printed",
        choices=("sage", "paper"),
    )
    depth: int = setting(2, "hops that a generated embedding sums up (L)", low=1, high=20)
    embedding: int = setting(128, "width of the embeddings (d_z)", low=1, high=10**5)
    encoder_epochs: int = setting(50, "epochs of the local GNN (N)", low=1)
    neighbours: int = setting(5, "most neighbours generated for a node (k)", low=0, high=100)
    least_neighbours: int = setting(0, "fewest neighbours generated for a node", low=0, high=100)
    hide: float = setting(0.5, "share of a silo's nodes hidden to learn from (h)", low=0, high=0.9)
    generator_hidden: int = setting(256, "hidden layer of the neighbour head", low=1)
    generator_epochs: int = setting(50, "steps on the whole graph the generator makes", low=0)
    generator_lr: float = setting(1e-3, "step size of the generator", low=0.0)
    warm_start: bool = setting(True, "the generator's encoder starts as the local GNN")
    number_weight: float = setting(1.0, "weight of the number loss (beta^d)", low=0.0)
    own_weight: float = setting(1.0, "weight of the own prototypes (beta^f)", low=0.0)
    others_weight: float = setting(1.0, "weight of the other silos' prototypes (beta^n)", low=0.0)
    rate: float = setting(0.5, "share of generated neighbours kept (r)", low=0.0, high=1.0)
    self_loops: str = setting(
        "estimated",
        "who hears itself in training, where the sampler keeps it: estimated, a node for every "
        "neighbour the cut should have taken; isolated, one that sees nobody; or none",
        choices=("estimated", "isolated", "none"),
    )
    generate_at_inference: bool = setting(False, "silos use generated neighbours to predict too")

    def shape(self, schema: Schema) -> ModelShape:
        backbone = f"fused-{self.fused}"
        return replace(super().shape(schema), backbone=backbone, embedding=self.embedding)


def new_encoder(
    settings: DeepSettings, schema: Schema, generator: torch.Generator | None
) -> Encoder:
    """A GNN of `depth` layers that gives embeddings of width d_z."""
    shape = replace(TrainingSettings.shape(settings, schema), layers=settings.depth)
    return Encoder(shape, settings.embedding, generator)


class EncoderTraining(ProtectedTraining):
    """The local GNN of Proto: trained like any model of a silo, with sampled neighbours."""

    model: Encoder
    settings: DeepSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: DeepSettings,
        seed: int,
        *,
        noise: NoiseSource = NO_NOISE,
        accountant: GaussianAccountant | None = None,
    ) -> None:
        own = replace(
            settings,
            layers=settings.depth,
            local_epochs=settings.encoder_epochs,
            lr=ENCODER_LR,
        )
        shape = own.shape(Schema(graph.num_features, graph.label_names))
        super().__init__(
            name, graph, shape, own, seed, "encoder ", noise=noise, accountant=accountant
        )

    def _build(self, shape: ModelShape, seed: int) -> Backbone:
        schema = Schema(shape.num_features, self.graph.label_names)
        return new_encoder(self.settings, schema, stream(seed, "server", "encoder weights"))

    @torch.no_grad()
    def embeddings(self) -> Tensor:
        """z_v of all nodes, each layer hearing drawn neighbours as in training."""
        self.model.eval()
        everyone = torch.arange(self.graph.num_nodes)
        hops = all_rows_hops(self.graph, everyone, self.settings.layers, self._draw)
        return self.model.embed(self._features, [hop.to(self.device) for hop in hops]).cpu()


class MendedTraining(ProtectedTraining):
    """Training of F: every node brings the mean of its generated neighbours along."""

    settings: DeepSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        shape: ModelShape,
        settings: DeepSettings,
        seed: int,
        *,
        noise: NoiseSource,
        accountant: GaussianAccountant,
    ) -> None:
        super().__init__(name, graph, shape, settings, seed, noise=noise, accountant=accountant)
        self.neighbours: Generated | None = None
        self.sampler = stream(seed, name, "kept neighbours")
        self._mended: Tensor | None = None

    def _epoch(self) -> Sequence[Tensor]:
        """The epoch's batches; what the Bernoulli sampler keeps is drawn anew."""
        self._mended = None
        made, rate, nodes = self.neighbours, self.settings.rate, self.graph.num_nodes
        if made is not None:
            if len(made.owner):
                self._mended = made.drawn_mean(nodes, rate, self.sampler).to(self.device)
            themselves = self._self_loops()
            if len(themselves):
                kept = themselves[torch.rand(len(themselves), generator=self.sampler) < rate]
                times = torch.bincount(kept, minlength=nodes)
                self._hear(with_self_loops(self.graph, times))
                self._input_products.forget()  # those of other edges
        return super()._epoch()

    def _self_loops(self) -> Tensor:
        """A node for every time it is to hear itself in the place of a neighbour it misses."""
        who, settings, graph = self.settings.self_loops, self.settings, self.graph
        isolated = torch.nonzero(graph.degree == 0)[:, 0]
        if who == "none" or settings.fused == "paper" or not settings.neighbours:
            return isolated[:0]  # F as printed hears itself anyway
        if who == "isolated" or not len(isolated):
            return isolated
        missing = estimated_missing(graph, settings.neighbours)
        whole = missing.floor()  # the rest of it in some epochs only
        times = whole + (torch.rand(len(missing), generator=self.sampler) < missing - whole)
        return torch.repeat_interleave(torch.arange(graph.num_nodes), times.long())

    def _forward(self, features: Features, hops: Sequence[Hop], nodes: Tensor | None) -> Tensor:
        scores: Tensor = self.model(features, hops, self._dropout, self._mended_of(nodes))
        return scores

    def _streams(self) -> dict[str, torch.Generator]:
        return {**super()._streams(), "kept": self.sampler}

    @property
    def _mends(self) -> bool:
        return self.neighbours is not None

    def _mended_of(self, nodes: Tensor | None) -> Tensor | None:
        if self._mended is None or nodes is None:
            return self._mended
        return self._mended.index_select(0, nodes.to(self.device))

    def _predict(self, hops: Sequence[Hop]) -> Tensor:
        mended = self.at_inference
        scores: Tensor = self.model(self._features, hops, None, mended)
        return scores

    @property
    def at_inference(self) -> Tensor | None:
        """z~_v where the silo predicts on its own graph: None, or the mean of all generated."""
        if self.neighbours is None or not self.settings.generate_at_inference:
            return None
        return self.neighbours.mean(self.graph.num_nodes).to(self.device)


class DGen(NeighbourGenerator):
    """One silo's generator of missing neighbours' embeddings.

    targets: what stands for each node of the silo when it is a hidden neighbour: its prototype, or
    its own embedding. others: the other silos' prototypes.
    """

    encoder: Encoder

    def __init__(
        self,
        name: str,
        graph: Graph,
        local_gnn: Encoder,
        targets: Tensor,
        others: Sequence[Tensor],
        settings: DeepSettings,
        seed: int,
    ) -> None:
        self.settings, self.targets, self.others = settings, targets, list(others)
        self._groups = Groups(others) if others else None
        schema = Schema(graph.num_features, graph.label_names)
        encoder = new_encoder(settings, schema, stream(seed, name, "encoder weights"))
        if settings.warm_start:
            encoder.load_state_dict(local_gnn.state_dict())
        # No dropout: what is offered to others and what is learned on must be the same embeddings.
        encoder.eval()
        super().__init__(
            name,
            graph,
            encoder,
            build(settings.shape(schema), stream(seed, "server", "initial weights")),
            embedding=settings.embedding,
            neighbours=settings.neighbours,
            least=settings.least_neighbours,
            widths=(settings.generator_hidden,),
            outputs=settings.embedding,
            bounded=True,
            hidden_share=settings.hide,
            batch=0,
            lr=settings.generator_lr,
            number_weight=settings.number_weight,
            seed=seed,
        )
        self._sampler = stream(seed, name, "generator kept")
        graph = self.impaired.graph
        self._features = Features(graph.x, reused=True)
        self._everyone = whole_graph_hop(graph)
        self._train_nodes = torch.nonzero(graph.train_mask)[:, 0]
        self._last = hop_to(graph, self._train_nodes)

    def embeddings(self) -> Tensor:
        hops = [self._everyone] * len(self.encoder.layers)
        return self.encoder.embed(self._features, hops)

    def reconstruction_loss(
        self, made: Tensor, owner: Tensor, is_true: Tensor, batch: int
    ) -> Tensor:
        """The terms of beta^f and beta^n: own targets of lost neighbours, all others' nearest."""
        settings = self.settings
        own = lost_neighbour_loss(made[is_true], owner[is_true], self.impaired, self.targets)
        loss = settings.own_weight * own
        if self._groups is not None:
            loss = loss + settings.others_weight * nearest_of_each_loss(made, self._groups)
        return loss / batch

    def classification_loss(
        self,
        batch: Tensor,  # noqa: ARG002  # always everybody
        made: Tensor,
        owner: Tensor,
        is_asked: Tensor,
    ) -> Tensor:
        graph = self.impaired.graph
        if not len(self._train_nodes):
            return made.new_zeros(())
        made_now = Generated(made[is_asked], owner[is_asked])
        mended = made_now.drawn_mean(graph.num_nodes, self.settings.rate, self._sampler)
        hops = [self._everyone] * (len(self.classifier.layers) - 1) + [self._last]
        scores = self.classifier(self._features, hops, self.noise, mended)
        return F.cross_entropy(scores, graph.y[self._train_nodes])

    @torch.no_grad()
    def generate(self) -> Generated:
        """The neighbours that the nodes of the whole silo graph miss."""
        hops = [whole_graph_hop(self.graph)] * len(self.encoder.layers)
        z = self.encoder.embed(Features(self.graph.x), hops)
        return Generated(*self.head(z, self.rounded(self.number(z), self.graph.degree)))

    def parts(self) -> Mapping[str, Part]:
        return {**super().parts(), "learns from": Values(self, targets=Tensor, others=list)}

    def streams(self) -> dict[str, torch.Generator]:
        return {**super().streams(), "kept": self._sampler}
