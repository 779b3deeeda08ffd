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
from torch import Tensor

from fedmend.config import setting
from fedmend.data.sampling import ALL_NEIGHBOURS
from fedmend.errors import FederationError
from fedmend.federation import Federation, Handed, Nothing, Replies, Schema, message
from fedmend.graph import Graph
from fedmend.mending.deep import DeepSettings, DGen, EncoderTraining, MendedTraining, new_encoder
from fedmend.mending.exchange import ExchangingSilo, Offer, Progress, exchange, say_if_two
from fedmend.mending.generator import Generated
from fedmend.mending.nearest import nearest_rows
from fedmend.mending.prototypes import Prototypes, check_shared, prototypes, say_if_shrunk
from fedmend.methods import fedavg
from fedmend.models.encoder import Encoder
from fedmend.models.predictor import Predictor
from fedmend.privacy.account import Account
from fedmend.privacy.accountants import nfdp
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.ledger import Kind
from fedmend.training.protected import dp_sgd_account
from fedmend.training.rounds import NOT_TOLD
from fedmend.training.selection import Training
from fedmend.training.state import Late, Part, Values, under
from fedmend.training.streams import stream_seed


@dataclass(frozen=True, kw_only=True)
class FedDEPSettings(DeepSettings, fedavg.FedAvgSettings):
    """FedAvg's settings, and those of Proto, DGen and NFDP."""

    clusters: int = setting(0, "prototypes per silo (C); 0 = as many as classes", low=0)
    min_cluster: int = setting(3, "fewest nodes behind a prototype", low=1)
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
    joint: bool = setting(False, "the generator learns on while the classifier is trained")


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
