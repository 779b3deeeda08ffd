"""FedSage+: silos learn to invent the neighbours they cannot see, then train on mended graphs.

Zhang et al., "Subgraph Federated Learning with Missing Neighbor Generation", NeurIPS 2021,
section 4. Every silo has a generator of its own, NeighGen: a GraphSAGE encoder (H^e), a number
head (dGen) and a neighbour head (fGen). It hides a share h of its nodes and learns to give their
neighbours back what they lost (Eq. 4), together with a classifier that is trained on the mended
graph (Eq. 5). In the exchange (Eq. 6) it also learns from the other silos: they get its neighbour
head and that head's inputs, find for each generated neighbour the nearest of their own nodes, and
give back the gradient of the distance to it. Then every silo mends its whole graph, and the
silos train the shared classifier on the mended graphs by FedAvg.

What leaves a silo beyond FedAvg's messages: the neighbour head's weights, its inputs (embedding
plus noise) of the nodes for which neighbours are generated while it learns, how many for each, and
gradients of other silos' heads. **Those gradients can reveal features**: the head's owner and the
server know its inputs, and where fewer nodes fill a slot than the last hidden layer is wide they
can solve for the neighbours that were found. Gradients are added up over all other silos before
they are handed on, and slots that fewer than `min_batch` nodes fill are left out; both make it
harder, neither makes it safe. With two silos there is nothing to add up, which the run says.

Beyond the paper, or where it is silent:
- Eq. (3) prints the number of missing neighbours as a function of itself; it is one of z_v.
- Hidden nodes teach how many of *them* a node misses, which says nothing of how many edges were
  cut: on a random cut of Cora into five the prediction is below one for most nodes, where three
  are missing on average. What is sure is that a node which sees nobody misses somebody:
  `least_degree` (the paper: 0) generates so many that everybody has that many neighbours,
  `least_neighbours` generates for everybody, needed or not.
- A generated neighbour is heard in an epoch of training with probability `rate` (the paper: 1), as
  FedDEP's are. What is invented outvotes a neighbour or two that are really there, and the whole
  graph, where the classifier is asked in the end, has none of it.
- A silo of 270 nodes has two dozen examples of a hidden neighbour where edges are few: from these
  alone, under noise as large as the embeddings (the released code's; here `noise` is a tenth of
  it), every node gets about the same neighbour, the mean of all. `self_weight` (the paper: 0)
  makes them learn to be like the node itself too, and a small `alpha` (the paper: 1) keeps nine
  silos from pulling harder than the own nodes do.
- `generator="copy"` learns nothing: a node that sees too few gets copies of itself. It is the
  control that a learned generator has to beat, and nothing is exchanged for it.
- The neighbour head is 256 wide (the code: 2048; the paper gives no width).
  docs/methods/fedsage-plus.md has figures of all of these.
- The predicted number is rounded. The reconstruction loss covers the true number of lost
  neighbours, so that the head also learns where too few are predicted; the exchange covers the
  predicted number, since the true one must not leave.
- The classifier of Eq. (5) runs on the mended *impaired* graph, where generated neighbours stand
  for ones that are really missing. It is thrown away; the shared classifier starts like FedSage's.
- Noise is added while the generator learns; in mending only with `noise_in_mending`.
- A silo that was lost while generators learned mends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.config import setting
from fedmend.data.mended import mended
from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import FederationError
from fedmend.federation import Federation, Handed, Nothing, Schema, message
from fedmend.graph import Graph
from fedmend.mending.exchange import ExchangingSilo, exchange, note_loss, say_if_two
from fedmend.mending.generator import Generated, NeighbourGenerator
from fedmend.mending.graph import copies_of_isolated, mended_hops, without_nodes
from fedmend.mending.reconstruction import lost_neighbour_loss, own_row_loss
from fedmend.methods import fedavg
from fedmend.models.backbones import ModelShape, build
from fedmend.models.features import Features, MendedFeatures
from fedmend.models.predictor import Predictor
from fedmend.privacy.ledger import Kind
from fedmend.training.local import LocalTraining
from fedmend.training.selection import Training
from fedmend.training.settings import QuorumSettings, TrainingSettings
from fedmend.training.state import Late, Part, Values, under
from fedmend.training.streams import stream

ENCODER_LAYERS = 2
"""Of the generator's encoder H^e, as in the paper."""


@dataclass(frozen=True, kw_only=True)
class NeighGenSettings(TrainingSettings, QuorumSettings):
    """How a silo's generator is built and trained on its own graph."""

    neighbours: int = setting(5, "most neighbours generated for a node (k)", low=0, high=100)
    least_degree: int = setting(
        1, "fewest neighbours of a mended node, seen and generated", low=0, high=100
    )
    least_neighbours: int = setting(0, "fewest neighbours generated for a node", low=0, high=100)
    generator: str = setting(
        "learned",
        "learned, or copy: nodes that see fewer than least_degree get copies of themselves",
        choices=("learned", "copy"),
    )
    hide: float = setting(0.15, "share of a silo's nodes hidden to learn from (h)", low=0, high=0.9)
    embedding: int = setting(128, "width of the embeddings z_v (d_z)", low=1, high=10**5)
    generator_hidden: int = setting(256, "first hidden layer of the neighbour head", low=1)
    generator_width: int = setting(256, "second hidden layer of the neighbour head", low=1)
    generator_output: str = setting(
        "tanh",
        "tanh (features between -1 and 1) or linear (any others)",
        choices=("tanh", "linear"),
    )
    generator_epochs: int = setting(100, "epochs a silo trains its generator alone", low=0)
    generator_batch: int = setting(0, "nodes per step of the generator; 0 = all", low=0)
    generator_lr: float = setting(1e-3, "step size of the generator", low=0.0)
    number_weight: float = setting(1.0, "weight of the number loss (lambda^d)", low=0.0)
    feature_weight: float = setting(1.0, "weight of the feature loss (lambda^f)", low=0.0)
    self_weight: float = setting(
        1.0, "what a node itself counts as a target of its neighbours, within L^f", low=0.0
    )
    class_weight: float = setting(1.0, "weight of the classification loss (lambda^c)", low=0.0)
    noise: float = setting(0.1, "standard deviation of the noise on embeddings", low=0.0)
    noise_in_mending: bool = setting(False, "add noise to embeddings in mending too")
    rate: float = setting(
        0.5, "share of generated neighbours heard in an epoch of training", low=0.0, high=1.0
    )


@dataclass(frozen=True, kw_only=True)
class FedSagePlusSettings(NeighGenSettings, fedavg.FedAvgSettings):
    """NeighGen's settings, FedAvg's, and those of the exchange."""

    generator_rounds: int = setting(10, "rounds of the exchange between generators", low=0)
    alpha: float = setting(0.1, "weight of the other silos' nodes in Eq. (6)", low=0.0)
    min_batch: int = setting(32, "fewest nodes that a slot is exchanged with", low=1)


class NeighGen(NeighbourGenerator):
    """One silo's generator of missing neighbours' features."""

    def __init__(self, name: str, graph: Graph, settings: NeighGenSettings, seed: int) -> None:
        self.settings = settings
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        super().__init__(
            name,
            graph,
            build(_encoder_shape(graph, settings), stream(seed, name, "encoder weights")),
            build(shape, stream(seed, "server", "initial weights")),
            embedding=settings.embedding,
            neighbours=settings.neighbours,
            least=settings.least_neighbours,
            least_degree=settings.least_degree,
            widths=(settings.generator_hidden, settings.generator_width),
            outputs=graph.num_features,
            bounded=settings.generator_output == "tanh",
            hidden_share=settings.hide,
            batch=settings.generator_batch,
            lr=settings.generator_lr,
            number_weight=settings.number_weight,
            noise=settings.noise,
            seed=seed,
        )
        self._features = Features(self.impaired.graph.x, reused=True)
        self._everyone = whole_graph_hop(self.impaired.graph)
        self._mending_noise = stream(seed, name, "mending noise")

    def embeddings(self) -> Tensor:
        hops = [self._everyone] * len(self.encoder.layers)
        return torch.relu(self.encoder(self._features, hops))

    def reconstruction_loss(
        self, made: Tensor, owner: Tensor, is_true: Tensor, batch: int
    ) -> Tensor:
        """L^f of Eq. (4): against the nearest of the neighbours a node really lost, and itself."""
        loss = lost_neighbour_loss(made[is_true], owner[is_true], self.impaired, self.graph.x)
        if self.settings.self_weight:
            itself = own_row_loss(made, owner, self.impaired.graph.x)
            loss = loss + self.settings.self_weight * itself
        return self.settings.feature_weight * loss / batch

    def classification_loss(
        self, batch: Tensor, made: Tensor, owner: Tensor, is_asked: Tensor
    ) -> Tensor:
        graph = self.impaired.graph
        nodes = batch[graph.train_mask[batch]]
        if not len(nodes):
            return made.new_zeros(())
        hops = mended_hops(graph, owner, nodes, self.classifier.shape.layers, is_asked)
        scores = self.classifier(MendedFeatures(self._features, made), hops, self.noise)
        return self.settings.class_weight * F.cross_entropy(scores, graph.y[nodes])

    @torch.no_grad()
    def generate(self) -> Generated:
        """The neighbours that the silo's nodes miss (Eq. 3)."""
        hops = [whole_graph_hop(self.graph)] * len(self.encoder.layers)
        z = torch.relu(self.encoder(Features(self.graph.x), hops))
        counts = self.rounded(self.number(z), self.graph.degree)
        if self.settings.noise_in_mending:
            noise = torch.randn(z.shape, generator=self._mending_noise)
            z = z + self.settings.noise * noise
        return Generated(*self.head(z, counts))


def _encoder_shape(graph: Graph, settings: NeighGenSettings) -> ModelShape:
    return ModelShape(
        backbone="sage",
        num_features=graph.num_features,
        num_classes=settings.embedding,
        hidden=settings.embedding,
        layers=ENCODER_LAYERS,
        heads=1,
        dropout=0.0,
    )


@message("fedsage_plus.Mended")
class Mended:
    """How many neighbours a silo generated."""

    generated: Annotated[int, Kind.COUNTS]


class MendedTraining(LocalTraining):
    """Training on a mended graph, whose generated nodes come after the silo's own.

    In every epoch each generated neighbour is there with probability `rate`. Validation hears all.
    """

    settings: NeighGenSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        own_nodes: int,
        shape: ModelShape,
        settings: NeighGenSettings,
        seed: int,
    ) -> None:
        super().__init__(name, graph, shape, settings, seed)
        self._own_nodes = own_nodes
        self._sampler = stream(seed, name, "kept neighbours")

    @property
    def _mends(self) -> bool:
        return self.settings.rate < 1

    def _epoch(self) -> Sequence[Tensor]:
        if self._mends:
            kept = torch.ones(self.graph.num_nodes, dtype=torch.bool)
            generated = self.graph.num_nodes - self._own_nodes
            drawn = torch.rand(generated, generator=self._sampler)
            kept[self._own_nodes :] = drawn < self.settings.rate
            self._hear(without_nodes(self.graph, kept))
        return super()._epoch()

    def _streams(self) -> dict[str, torch.Generator]:
        return {**super()._streams(), "kept": self._sampler}


class Mending(ExchangingSilo):
    """A silo's half of FedSage+: the generator, and the graph it mends and then trains on."""

    settings: NeighGenSettings
    local: LocalTraining

    def start_generator(self) -> None:
        self._generator: NeighGen | None = None
        if self.settings.generator == "learned":
            self._generator = NeighGen(self.name, self.graph, self.settings, self.seed)
        self.generated: Generated | None = None

    @property
    def learner(self) -> NeighGen:
        if self._generator is None:
            raise FederationError(
                f"{self.name} has mended its graph: its generator is gone"
                if self.generated is not None
                else f'{self.name} has no generator to learn: it is set to generator="copy"'
            )
        return self._generator

    def candidates(self) -> Tensor:
        return self.graph.x

    @property
    def exchange_weight(self) -> float:
        return self.settings.feature_weight

    def mend(self, _: Nothing) -> Mended:
        """Generate the missing neighbours, and train on the mended graph from now on."""
        if self.generated is None:
            self.generated = self._generate()
        self._train_on_mended()
        return Mended(len(self.generated.owner))

    def _generate(self) -> Generated:
        settings = self.settings
        if settings.generator == "copy":
            most = settings.neighbours
            return Generated(*copies_of_isolated(self.graph, settings.least_degree, most))
        if self.learner.trained:
            return self.learner.generate()
        return Generated(torch.zeros(0, self.graph.num_features), torch.zeros(0, dtype=torch.int64))

    def _train_on_mended(self) -> None:
        """Train on the graph with its generated neighbours; the generator is forgotten."""
        if self.generated is None:
            self._train_on(self.graph)
        else:
            self._generator = None
            self._train_on(mended(self.graph, self.generated.owner, self.generated.rows))

    def _train_on(self, graph: Graph) -> None:
        before, own = self.local, self.graph.num_nodes
        shape, settings, seed = before.model.shape, self.settings, self.seed
        if graph.num_nodes > own:
            self.local = MendedTraining(self.name, graph, own, shape, settings, seed)
        else:
            self.local = LocalTraining(self.name, graph, shape, settings, seed)
        self.local.load(before.weights())

    def generated_neighbours(self) -> tuple[Tensor, Tensor, Tensor] | None:
        made = self.generated
        return None if made is None else (made.rows, made.owner, self.graph.x)

    def predictor(self, shared: Mapping[str, Tensor] | None) -> Predictor | None:
        found = super().predictor(shared)
        made = self.generated
        if found is None or made is None:
            return found
        return replace(found, generated=(made.rows, made.owner))

    # Saving: besides the classifier, the generator while it learns, then only what it generated

    def parts(self) -> Mapping[str, Part]:
        return {
            **super().parts(),
            "generated": self._kept,
            "generator": Late(self._generator, lambda _: self.learner),
        }

    @property
    def _kept(self) -> Values:
        return Values(self, generated=Generated)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        # First the graph that is trained on: what else is saved belongs to the training on it.
        self._kept.restore(under("generated/", state))
        self._train_on_mended()
        super().restore(state)


class Silo(Mending, fedavg.Silo):
    """A silo that mends its graph before it trains the shared classifier."""

    settings: FedSagePlusSettings

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: FedSagePlusSettings,
        seed: int,
        **handed: Unpack[Handed],
    ) -> None:
        fedavg.Silo.__init__(self, name, graph, settings, seed, **handed)
        self.start_generator()

    @property
    def exchange_weight(self) -> float:
        return self.settings.feature_weight * self.settings.alpha


def server(silos: Federation[Silo], settings: FedSagePlusSettings) -> dict[str, Tensor]:
    """Generators alone, then in exchange; mending; FedAvg of the classifier."""
    state = Training(fedavg.initial_weights(silos, settings))
    if settings.neighbours:
        if settings.generator == "learned":
            learn_alone(silos, settings, state)
            exchanges = settings.generator_rounds if settings.alpha and len(silos.names) > 1 else 0
            for number in silos.rounds(exchanges, state, "generator exchange"):
                say_if_two(silos)
                exchange(silos, number, settings.min_silos, settings.min_batch)
        mend_all(silos, settings, state)
    fedavg.average_rounds(silos, settings, state)
    silos.note(state.best_round, selected=1.0)
    return state.best


M = TypeVar("M", bound=Mending)


def learn_alone(silos: Federation[M], settings: NeighGenSettings, state: Any) -> None:
    """Every silo's generator learns from what the silo hides from itself."""
    for number in silos.rounds(1, state, "generators alone"):
        alone = silos.ask(Mending.learn_alone, Nothing()).enough(settings.min_silos)
        note_loss(silos, number, alone)


def mend_all(silos: Federation[M], settings: NeighGenSettings, state: Any) -> None:
    """Every silo mends its graph."""
    for number in silos.rounds(1, state, "mending"):
        replies = silos.ask(Mending.mend, Nothing()).enough(settings.min_silos)
        silos.note(number, generated=float(sum(each.generated for each in replies.values())))
