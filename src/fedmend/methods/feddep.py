"""FedDEP: silos generate deep neighbour embeddings, and share prototypes once instead of talking.

Zhang et al., "Deep Efficient Private Neighbor Generation for Subgraph Federated Learning", section
3. Three phases:

1. *Proto* (3.2). Every silo trains a GNN of its own, takes its nodes' embeddings of depth L,
   groups them into C clusters and shares the clusters' means, its prototypes. They are sent once.
2. *DGen* (3.1). Every silo learns, without another message ("pseudo-FL"), to generate the
   embeddings of the neighbours its nodes miss: it hides a share h of its nodes and generates what
   their neighbours lost, near the own prototypes of the hidden nodes (beta^f) and near the nearest
   prototype of every other silo (beta^n), as many as were lost (beta^d), so that a classifier does
   well with them (Eq. 3.1).
3. FedAvg of the classifier F, whose convolutions are *embedding-fused*: at every layer the mean of
   a node's generated embeddings comes in with weights of its own (statement 3.1).

*NFDP* (3.3) is the sampling: d neighbours per node and hop in the training of the local GNN and of
F, and a Bernoulli sampler of rate r on the generated neighbours. The generator itself hears all
neighbours. What the sampling protects is computed by `fedmend.privacy.nfdp` for the prototypes and
stored with every run; it is vacuous for any usual setting.

What leaves a silo beyond FedAvg's messages: C prototypes of d_z numbers, once. A prototype is the
mean of at least `min_cluster` embeddings; a silo of fewer nodes shares none.

Where this follows the released code, or neither it nor the paper:
- `fused="sage"`, the default, adds a linear map of the mended embedding to every GraphSAGE layer,
  as the code does: at zero it *is* GraphSAGE, so that FedDEP against FedAvg compares mending and
  nothing else. `fused="paper"` has the paper's K+1 matrices over closed neighbourhoods.
- The local GNN ends in tanh with a linear head on top, as in the code, and all silos start it from
  the same weights, so that their embeddings' axes have something in common.
- k-means takes the place of the code's autoencoder clustering. The embeddings that are clustered
  are computed on drawn neighbours too; the account counts that as one more epoch.
- The nearest prototype of every other silo is sought, as printed; the code draws one at random.
- While F is trained the generator is frozen; `joint` lets it learn on in every round.
- The generated neighbours that are kept are drawn anew in every local epoch.
- What is generated comes in through weights of its own, so that a node which sees nobody trains no
  weight that real neighbours will be heard with; on the whole graph they all are. In F's training
  such a node hears itself, in the place of the neighbour that it surely misses and where the
  sampler keeps it, and so do the others for what they miss by the share of the silo's nodes that
  see nobody (`self_loops`). It is no part of the paper, and all that is won on random cuts.
- On a graph that nobody mended, the whole graph above all, mended embeddings are zero, in
  validation too; `generate_at_inference` uses them on the silo's own graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.config import setting
from fedmend.data.sampling import ALL_NEIGHBOURS, Hop, all_rows_hops, hop_to, whole_graph_hop
from fedmend.errors import FederationError
from fedmend.federation import Federation, Handed, Nothing, Replies, Schema, message
from fedmend.graph import Graph, is_sparse, select_rows
from fedmend.mending.exchange import ExchangingSilo, Offer, Progress, exchange, say_if_two
from fedmend.mending.generator import Generated, NeighbourGenerator
from fedmend.mending.graph import estimated_missing, with_self_loops
from fedmend.mending.nearest import Groups, nearest_rows
from fedmend.mending.prototypes import Prototypes, prototypes
from fedmend.mending.reconstruction import lost_neighbour_loss, nearest_of_each_loss
from fedmend.methods import fedavg
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.encoder import Encoder
from fedmend.models.features import Features
from fedmend.models.predictor import Predictor
from fedmend.privacy.account import Account, finite
from fedmend.privacy.accountants import nfdp
from fedmend.privacy.accountants.gaussian import (
    DELTA,
    GaussianAccountant,
    gaussian_account,
    gaussian_epsilon,
)
from fedmend.privacy.ledger import Kind
from fedmend.privacy.mechanism import GaussianSum
from fedmend.privacy.noise import NO_NOISE, NoiseSource
from fedmend.training.dp_sgd import InputProducts, forest, private_gradients
from fedmend.training.local import AdjustGradients, LocalTraining
from fedmend.training.rounds import NOT_TOLD
from fedmend.training.selection import Training
from fedmend.training.settings import TrainingSettings
from fedmend.training.state import Late, Part, Values, under
from fedmend.training.streams import stream, stream_seed


@dataclass(frozen=True, kw_only=True)
class FedDEPSettings(fedavg.FedAvgSettings):
    """FedAvg's settings, and those of Proto, DGen and NFDP."""

    fused: str = setting(
        "sage",
        "sage: GraphSAGE plus a map of the mended embeddings; paper: F as printed",
        choices=("sage", "paper"),
    )
    depth: int = setting(2, "hops that a generated embedding sums up (L)", low=1, high=20)
    embedding: int = setting(128, "width of the embeddings (d_z)", low=1, high=10**5)
    encoder_epochs: int = setting(50, "epochs of the local GNN (N)", low=1)
    encoder_lr: float = setting(1e-3, "step size of the local GNN", low=0.0)
    clusters: int = setting(0, "prototypes per silo (C); 0 = as many as classes", low=0)
    min_cluster: int = setting(3, "fewest nodes behind a prototype", low=1)
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
    generator: str = setting(
        "deep",
        "deep: DGen; nearest: other silos' nearest prototypes themselves, nothing is learned",
        choices=("deep", "nearest"),
    )
    exchange: str = setting(
        "prototypes",
        "prototypes, sent once; or gradients, asked in every step as in FedSage+",
        choices=("prototypes", "gradients"),
    )
    min_batch: int = setting(32, "fewest nodes that a slot's gradients are exchanged with", low=1)
    protection: str = setting(
        "sampling",
        "sampling: NFDP; dp-sgd: all neighbours, per-node gradients clipped and noised",
        choices=("sampling", "dp-sgd"),
    )
    clip: float = setting(1.0, "norm a node's gradient is clipped to (dp-sgd)", low=1e-6)
    noise: float = setting(2.0, "noise over the clipping norm (dp-sgd, sigma)", low=0.0)
    rate: float = setting(0.5, "share of generated neighbours kept (r)", low=0.0, high=1.0)
    self_loops: str = setting(
        "estimated",
        "who hears itself in training, where the sampler keeps it: estimated, a node for every "
        "neighbour the cut should have taken; isolated, one that sees nobody; or none",
        choices=("estimated", "isolated", "none"),
    )
    joint: bool = setting(False, "the generator learns on while the classifier is trained")
    generate_at_inference: bool = setting(False, "silos use generated neighbours to predict too")

    def shape(self, schema: Schema) -> ModelShape:
        backbone = f"fused-{self.fused}"
        return replace(super().shape(schema), backbone=backbone, embedding=self.embedding)


# The parts of a silo


def new_encoder(
    settings: FedDEPSettings, schema: Schema, generator: torch.Generator | None
) -> Encoder:
    """A GNN of `depth` layers that gives embeddings of width d_z."""
    shape = replace(TrainingSettings.shape(settings, schema), layers=settings.depth)
    return Encoder(shape, settings.embedding, generator)


class ProtectedTraining(LocalTraining):
    """A silo's training with either protection: sampled neighbours, or DP-SGD on all of them."""

    settings: FedDEPSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        shape: ModelShape,
        settings: FedDEPSettings,
        seed: int,
        purpose: str = "",
        *,
        noise: NoiseSource = NO_NOISE,
        accountant: GaussianAccountant | None = None,
    ) -> None:
        if settings.protection == "dp-sgd":
            settings = replace(settings, fan_out=ALL_NEIGHBOURS)
        super().__init__(name, graph, shape, settings, seed, purpose)
        self.mechanism = GaussianSum(
            settings.clip,
            settings.noise,
            accountant or GaussianAccountant(graph.num_nodes),
            noise.under(purpose + "privacy noise"),
        )
        self._input_products = InputProducts(graph.num_nodes)

    def _step(self, batch: Tensor, adjust: AdjustGradients | None) -> Tensor:
        if self.settings.protection != "dp-sgd":
            return super()._step(batch, adjust)
        apart = self.model.input is not None
        around = forest(self.heard, batch, self.settings.layers, own_inputs=apart)
        if around.nodes is not None:
            features = Features(select_rows(self.graph.x, around.nodes))
        else:
            features = self._features if is_sparse(self._pickable) else Features(self._pickable)
        self._optimizer.clear()
        loss = private_gradients(
            self.model,
            features,
            around,
            self.graph.y[batch],
            mechanism=self.mechanism,
            dropout=self._dropout,
            mended=self._mended_of(around.nodes),
            products=self._input_products,
        )
        self._optimizer.step()
        return loss

    def _mended_of(self, nodes: Tensor | None) -> Tensor | None:  # noqa: ARG002  # nobody is
        """What these nodes bring along; None = nothing is mended."""
        return None

    def parts(self) -> Mapping[str, Part]:
        return {**super().parts(), "protection": self.mechanism}


class EncoderTraining(ProtectedTraining):
    """The local GNN of Proto: trained like any model of a silo, with sampled neighbours."""

    model: Encoder

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: FedDEPSettings,
        seed: int,
        *,
        noise: NoiseSource = NO_NOISE,
        accountant: GaussianAccountant | None = None,
    ) -> None:
        own = replace(
            settings,
            layers=settings.depth,
            local_epochs=settings.encoder_epochs,
            lr=settings.encoder_lr,
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

    def __init__(
        self,
        name: str,
        graph: Graph,
        shape: ModelShape,
        settings: FedDEPSettings,
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
        settings: FedDEPSettings,
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


# Messages


@message("feddep.SharedPrototypes")
class SharedPrototypes:
    """What a silo tells the others: cluster means of its embeddings; never x, edges or labels."""

    centres: Annotated[Tensor, Kind.PROTOTYPES]


@message("feddep.AllPrototypes")
class AllPrototypes:
    """Every silo's prototypes, in the order of the silos' names, which are not told."""

    sets: Annotated[dict[str, Tensor], Kind.PROTOTYPES]


@message("feddep.Generated")
class HowMany:
    """How a silo's generator learned and how many neighbours it made: for the display."""

    loss: Annotated[float, Kind.METRICS]
    neighbours: Annotated[int, Kind.COUNTS]


class Silo(ExchangingSilo, fedavg.Silo):
    """A silo that gives its nodes generated deep neighbours before it trains F."""

    settings: FedDEPSettings
    local: MendedTraining

    def __init__(
        self, name: str, graph: Graph, settings: FedDEPSettings, seed: int, **handed: Unpack[Handed]
    ) -> None:
        fedavg.Silo.__init__(self, name, graph, settings, seed, **handed)
        self.accountant = GaussianAccountant(graph.num_nodes)
        shape = self.local.model.shape
        self.local = MendedTraining(
            name, graph, shape, settings, seed, noise=self.noise, accountant=self.accountant
        )
        self.embeddings: Tensor | None = None
        self.prototypes: Prototypes | None = None
        self._gnn: Encoder | None = None
        self._generator: DGen | None = None

    # Proto

    def train_local_gnn(self) -> Tensor:
        """The local GNN's embeddings of all nodes."""
        training = EncoderTraining(
            self.name,
            self.graph,
            self.settings,
            self.seed,
            noise=self.noise,
            accountant=self.accountant,
        )
        training.train()
        self._gnn = training.model
        self.embeddings = training.embeddings()
        return self.embeddings

    def share_prototypes(self, _: Nothing) -> SharedPrototypes:
        """Train the local GNN, and sum its embeddings up."""
        settings = self.settings
        clusters = settings.clusters or self.graph.num_classes
        seed = stream_seed(self.seed, self.name, "clusters")
        self.prototypes = prototypes(self.train_local_gnn(), clusters, settings.min_cluster, seed)
        return SharedPrototypes(self._shared(self.prototypes))

    def _shared(self, own: Prototypes) -> Tensor:
        """A silo of fewer than `min_cluster` nodes has a mean of its own, and keeps it."""
        return own.centres[: 0 if self.graph.num_nodes < self.settings.min_cluster else None]

    # DGen

    def learn_generator(self, received: AllPrototypes) -> HowMany:
        """Pseudo-FL: all that is needed from the others is here, nothing is asked of them."""
        if self.prototypes is None:
            return HowMany(0.0, 0)  # lost while prototypes were shared: it generates nothing
        self._start_generator(self.prototypes.of_nodes, self._of_others(received))
        loss = self.learn_alone(Nothing()).loss
        return HowMany(loss, self.generate())

    def _of_others(self, received: AllPrototypes) -> list[Tensor]:
        """All sets but the silo's own, which it knows by its content: no silo is named."""
        sets = [received.sets[key] for key in sorted(received.sets) if len(received.sets[key])]
        own = None if self.prototypes is None else self._shared(self.prototypes)
        for place, each in enumerate(sets):
            if own is not None and torch.equal(each, own):
                return sets[:place] + sets[place + 1 :]
        return sets

    def _start_generator(self, targets: Tensor, others: Sequence[Tensor]) -> None:
        if self._gnn is None:
            raise FederationError(f"{self.name} has no local GNN to start its generator from")
        self._generator = DGen(
            self.name, self.graph, self._gnn, targets, others, self.settings, self.seed
        )

    def generate(self) -> int:
        """Give every node the neighbours that are generated for it; how many they are in all."""
        self.local.neighbours = self.learner.generate()
        if not self.settings.joint:
            self._generator = self._gnn = None  # they have done their work
        return len(self.local.neighbours.owner)

    @property
    def learner(self) -> DGen:
        if self._generator is None:
            raise FederationError(f"{self.name} has no generator")
        return self._generator

    def use_nearest(self, received: AllPrototypes) -> HowMany:
        """Without DGen: every other silo's prototype nearest to a node stands in as a neighbour."""
        if self.prototypes is None or self.embeddings is None:
            return HowMany(0.0, 0)
        self.local.neighbours = nearest_prototypes(
            self.embeddings, self._of_others(received), self.settings.neighbours
        )
        return HowMany(0.0, len(self.local.neighbours.owner))

    # The exchange of gradients in place of prototypes

    def start_exchange(self, _: Nothing) -> Progress:
        """Train the local GNN; its embeddings are what everybody's generator is compared with."""
        self._start_generator(self.train_local_gnn(), [])
        return Progress(0.0)

    def offer_head(self, nothing: Nothing) -> Offer:
        if self._generator is None:
            self.start_exchange(nothing)  # it was lost while the others did
        return super().offer_head(nothing)

    def candidates(self) -> Tensor:
        if self.embeddings is None:
            raise FederationError(f"{self.name} has no embeddings to compare with")
        return self.embeddings

    @property
    def exchange_weight(self) -> float:
        return self.settings.others_weight

    def finish_exchange(self, _: Nothing) -> HowMany:
        """Generate the neighbours that F is trained with."""
        return HowMany(0.0, self.generate() if self._generator is not None else 0)

    # Training F, and what a silo predicts with

    def train(self, received: fedavg.Weights) -> fedavg.Update:
        if self.settings.joint and self._generator is not None:
            self._learn_on(received.weights)
        update = super().train(received)
        if self.settings.protection == "dp-sgd" and self.settings.noise:
            return replace(update, loss=NOT_TOLD)  # it would tell what the noise hides
        return update

    def _learn_on(self, weights: Mapping[str, Tensor]) -> None:
        """One more step of the generator, for the classifier as it is now."""
        with torch.no_grad():
            for key, parameter in self.learner.classifier.named_parameters():
                parameter.copy_(weights[key])
        self.learner.step(*self.learner.draw_batch())
        self.generate()

    def generated_neighbours(self) -> tuple[Tensor, Tensor, Tensor] | None:
        made = self.local.neighbours
        if made is None or self.embeddings is None:
            return None
        return made.rows, made.owner, self.embeddings

    def predictor(self, shared: Mapping[str, Tensor] | None) -> Predictor | None:
        found = super().predictor(shared)
        return None if found is None else replace(found, rows=self.local.at_inference)

    def privacy_facts(self) -> dict[str, float]:
        """How often a loss term was in a noised sum, and of how many; or its deciding degrees."""
        if self.settings.protection == "dp-sgd":
            nodes = float(self.graph.train_mask.sum())
            return {"training_nodes": nodes, "uses": float(self.accountant.uses)}
        if self.settings.fan_out == ALL_NEIGHBOURS:
            return {}
        degrees = nfdp.deciding_degrees(nfdp.count_degrees(self.graph), self.settings.fan_out)
        return {str(degree): float(count) for degree, count in degrees.items()}

    # Saving

    def parts(self) -> Mapping[str, Part]:
        return {
            **super().parts(),
            "gnn": Late(self._gnn, self._another_gnn),
            "known": Values(self, embeddings=Tensor, prototypes=Prototypes),
            "generator": Late(self._generator, self._same_generator),
            "made": Values(self.local, neighbours=Generated),
        }

    def _another_gnn(self, _: Mapping[str, Tensor]) -> Encoder:
        schema = Schema(self.graph.num_features, self.graph.label_names)
        self._gnn = new_encoder(self.settings, schema, torch.Generator())
        return self._gnn

    def _same_generator(self, state: Mapping[str, Tensor]) -> DGen:
        others = under("learns from/others/", state)
        self._start_generator(
            state["learns from/targets"], [others[str(i)] for i in range(len(others))]
        )
        return self.learner


def nearest_prototypes(embeddings: Tensor, others: Sequence[Tensor], most: int) -> Generated:
    """For every node the nearest prototype of each other silo, of at most so many silos."""
    nodes = len(embeddings)
    if not others or not most:
        return Generated(embeddings[:0], torch.zeros(0, dtype=torch.int64))
    found = torch.stack([theirs[nearest_rows(embeddings, theirs)] for theirs in others], 1)
    if len(others) > most:
        distance = ((found - embeddings[:, None]) ** 2).sum(2)
        chosen = distance.topk(most, dim=1, largest=False).indices
        found = found.gather(1, chosen[..., None].expand(-1, -1, found.shape[2]))
    owner = torch.arange(nodes).repeat_interleave(found.shape[1])
    return Generated(found.reshape(len(owner), -1), owner)


@dataclass
class Memory(Training):
    """The server's memory, the same for all phases."""

    prototypes: dict[str, Tensor] = field(default_factory=dict)


def server(silos: Federation[Silo], settings: FedDEPSettings) -> dict[str, Tensor]:
    """Proto, DGen, and FedAvg of F; each block is one phase."""
    state = Memory(fedavg.initial_weights(silos, settings))
    if settings.exchange == "prototypes":
        for _ in silos.rounds(1, state, "prototypes"):
            shared = silos.ask(Silo.share_prototypes, Nothing()).enough(settings.min_silos)
            state.prototypes = {name: reply.centres for name, reply in shared.items()}
            check_shared(silos, state.prototypes, settings)
            say_if_shrunk(silos, state.prototypes, settings)
        for number in silos.rounds(1, state, "generators"):
            sets = {str(i): each for i, each in enumerate(state.prototypes.values())}
            step = Silo.learn_generator if settings.generator == "deep" else Silo.use_nearest
            note_generated(silos, number, silos.ask(step, AllPrototypes(sets)), settings)
    else:
        for _ in silos.rounds(1, state, "local GNNs"):
            silos.ask(Silo.start_exchange, Nothing()).enough(settings.min_silos)
        if len(silos.names) > 1:
            say_if_two(silos)
            for number in silos.rounds(settings.generator_epochs, state, "generator exchange"):
                exchange(silos, number, settings.min_silos, settings.min_batch)
        else:  # nobody to exchange with
            for _ in silos.rounds(1, state, "generators alone"):
                silos.ask(Silo.learn_alone, Nothing()).enough(settings.min_silos)
        for number in silos.rounds(1, state, "generators"):
            replies = silos.ask(Silo.finish_exchange, Nothing())
            note_generated(silos, number, replies, settings)
    fedavg.average_rounds(silos, settings, state)
    silos.note(state.best_round, selected=1.0)
    return state.best


def check_shared(
    silos: Federation[Silo], shared: Mapping[str, Tensor], settings: FedDEPSettings
) -> None:
    """Refuse prototypes that cannot be what they should be: they go to every silo."""
    most = settings.clusters or silos.schema.num_classes
    for name, centres in shared.items():
        fits = centres.dim() == 2 and centres.shape[1] == settings.embedding
        if not fits or len(centres) > most or centres.dtype != torch.float32:
            raise FederationError(
                f"{name} shared prototypes as {tuple(centres.shape)} of {centres.dtype}, expected "
                f"at most ({most}, {settings.embedding}) of torch.float32"
            )
        if not bool((centres.abs() <= 1).all()):  # what a NaN fails, too
            raise FederationError(
                f"{name} shared prototypes that are no means of values in [-1, 1]"
            )


def say_if_shrunk(
    silos: Federation[Silo], shared: Mapping[str, Tensor], settings: FedDEPSettings
) -> None:
    """Say which silos have fewer prototypes than asked for."""
    wanted = settings.clusters or silos.schema.num_classes
    for name, centres in shared.items():
        if not len(centres):
            silos.say(
                f"{name} shares no prototypes: it has fewer than min_cluster="
                f"{settings.min_cluster} nodes, and their mean would be about single ones"
            )
        elif len(centres) < wanted:
            silos.say(
                f"{name} shares {len(centres)} prototypes instead of {wanted}: more would have "
                f"fewer than min_cluster={settings.min_cluster} nodes each, or be the same"
            )


def note_generated(
    silos: Federation[Silo], number: int, replies: Replies[HowMany], settings: FedDEPSettings
) -> None:
    """The generators' mean loss and how many neighbours they made, for the record."""
    arrived = replies.enough(settings.min_silos)
    silos.note(
        number,
        generator_loss=sum(reply.loss for reply in arrived.values()) / len(arrived),
        generated=float(sum(reply.neighbours for reply in arrived.values())),
    )


def privacy(settings: FedDEPSettings, facts: Mapping[str, Mapping[str, float]]) -> list[Account]:
    """What theorem 3.1 comes to for this run, or what DP-SGD's noise is worth."""
    if settings.protection == "dp-sgd":
        return [dp_sgd_account(settings, facts)]
    if settings.fan_out == ALL_NEIGHBOURS:
        return [
            Account(
                mechanism=nfdp.MECHANISM,
                per="an edge",
                epsilon=None,
                delta=1.0,
                uses=0,
                sentence="All neighbours are heard: NFDP protects nothing here.",
            )
        ]
    counts: Counter[int] = Counter()
    for each in facts.values():
        counts.update({int(degree): int(count) for degree, count in each.items()})
    # One epoch more: the embeddings behind the prototypes are computed on a draw of their own.
    epochs = settings.encoder_epochs + 1
    found = nfdp.account(
        settings.fan_out, None, settings.depth, epochs, settings.rate, 1e-5, counts
    )
    sentence = found.sentence
    if settings.exchange == "gradients":
        sentence += " The exchange of embeddings and gradients is not in this arithmetic at all."
    return [replace(found.to_account(), sentence=sentence)]


def dp_sgd_account(settings: FedDEPSettings, facts: Mapping[str, Mapping[str, float]]) -> Account:
    """What DP-SGD's noise is worth: for batches as they are, and as such figures usually are given.

    Batches are the parts of a shuffled epoch, so a loss term is in one noised gradient per epoch:
    that many releases, whatever the size of a silo. Poisson sampling, which is assumed almost
    everywhere and done nowhere, would give the smaller figure, in the silo where it is largest.
    """
    epochs = max(int(each["uses"]) for each in facts.values())
    sampled = max(
        _if_sampled(settings, int(each["training_nodes"]), int(each["uses"]))
        for each in facts.values()
    )
    found = gaussian_account(
        "gradients",
        "a loss term of local GNN and classifier",
        {settings.noise: epochs},
        details={"epsilon_if_sampled": finite(sampled), "clip": settings.clip},
    )
    return replace(
        found,
        sentence=f"DP-SGD. {found.sentence} It would be epsilon {sampled:.3g} if batches were "
        "drawn by Poisson sampling, which they are not. It is no guarantee per edge or node, which "
        "enter many loss terms, and the generator is trained without noise.",
    )


def _if_sampled(settings: FedDEPSettings, nodes: int, epochs: int) -> float:
    batch = min(settings.batch_size or nodes, nodes)
    steps = epochs * -(-nodes // batch)
    return gaussian_epsilon(settings.noise, steps, DELTA, batch / nodes)
