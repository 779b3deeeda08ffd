"""FedAvg: silos train the shared model on their own graphs, the server averages the weights.

With GraphSAGE this is FedSage (Zhang et al., "Subgraph Federated Learning with Missing Neighbor
Generation", section 3.2): in every round each silo makes `local_epochs` passes over its training
nodes and the server averages, weighted by training nodes (or equally, as the paper prints it).
Edges between silos are simply missing: what that costs is what the other methods try to win back.

Beyond the paper:
- A silo says with its update how the weights it *received* do on its validation nodes, so that
  selection costs no message of its own. The weights of the best round are the result.
- A silo's optimiser state stays with the silo from round to round (`keep_optimizer`), so that one
  silo alone is exactly centralised training.
- `patience` ends training where validation has not become better for so many rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from torch import Tensor

from fedmend.config import setting
from fedmend.federation import Federation, Schema, SiloBase, message
from fedmend.graph import Graph
from fedmend.models.backbones import build
from fedmend.privacy.ledger import Kind
from fedmend.training.aggregation import weighted_mean
from fedmend.training.local import LocalTraining
from fedmend.training.selection import Selection
from fedmend.training.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class FedAvgSettings(TrainingSettings):
    """The settings of all training, and when to stop early."""

    patience: int = setting(
        0, "stop after so many rounds without better validation; 0 = never", low=0
    )


NOT_TOLD = -1.0
"""In place of a loss that noise is to hide; no cross-entropy is negative."""


@message("fedavg.Weights")
class Weights:
    """The shared model, from the server to a silo."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]


@message("fedavg.Validation")
class Validation:
    """How the weights a silo received do on its own validation nodes."""

    right: Annotated[int, Kind.METRICS]
    nodes: Annotated[int, Kind.COUNTS]


@message("fedavg.Update")
class Update:
    """What a silo gives back: its weights after training, never a node, a feature or an edge."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    training_nodes: Annotated[int, Kind.COUNTS]
    loss: Annotated[float, Kind.METRICS]
    validation_right: Annotated[int, Kind.METRICS]
    validation_nodes: Annotated[int, Kind.COUNTS]


class Silo(SiloBase):
    """One silo: trains the shared model on its own graph."""

    def __init__(self, name: str, graph: Graph, settings: FedAvgSettings, seed: int) -> None:
        super().__init__(name, graph, settings, seed)
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        self.local = LocalTraining(name, graph, shape, settings, seed)

    def train(self, received: Weights) -> Update:
        self.local.load(received.weights)
        right, nodes = self.local.validate()
        loss = self.local.train()
        return Update(self.local.weights(), len(self.local.train_nodes), loss, right, nodes)

    def validate(self, received: Weights) -> Validation:
        self.local.load(received.weights)
        return Validation(*self.local.validate())

    def state(self) -> dict[str, Tensor]:
        return self.local.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.local.restore(state)


@dataclass
class Training(Selection):
    """The server's memory between rounds.

    done: rounds so far. improved: the first round of the best accuracy; equals do not count here.
    """

    weights: dict[str, Tensor]
    best: dict[str, Tensor] = field(default_factory=dict)
    best_round: int = 0
    best_accuracy: float = 0.0
    done: int = 0
    improved: int = 0

    def offer(self, round: int, weights: dict[str, Tensor], accuracy: float) -> None:
        if accuracy > self.best_accuracy:
            self.improved = round
        super().offer(round, weights, accuracy)

    def waited(self, patience: int) -> bool:
        """Whether the weights that were validated last are so many rounds past the best."""
        return 0 < patience <= self.done - 1 - self.improved


S = TypeVar("S", bound=Silo)


def server(silos: Federation[Silo], settings: FedAvgSettings) -> dict[str, Tensor]:
    """FedAvg of the whole model; gives the weights that did best in validation."""
    state = train_shared(silos, settings, initial_weights(silos, settings))
    silos.note(state.best_round, selected=1.0)
    return state.best


def train_shared(
    silos: Federation[Silo], settings: FedAvgSettings, weights: dict[str, Tensor]
) -> Training:
    """FedAvg from these weights, from the first round to the last."""
    state = Training(weights)
    train_rounds(silos, settings, state)
    return state


def train_rounds(silos: Federation[S], settings: FedAvgSettings, state: Training) -> None:
    """Rounds of training and averaging, each round's weights offered to the selection."""
    for number in silos.rounds(settings.rounds, state):
        updates = silos.ask(Silo.train, Weights(state.weights)).enough(settings.min_silos)
        accuracy = share_right(
            {name: (u.validation_right, u.validation_nodes) for name, u in updates.items()}
        )
        state.offer(number - 1, state.weights, accuracy)
        silos.note(number - 1, validation_accuracy=accuracy)
        importance = importances(updates, settings)
        if all(update.loss != NOT_TOLD for update in updates.values()):
            silos.note(number, training_loss=mean_loss(updates))
        received = {name: update.weights for name, update in updates.items()}
        state.weights = weighted_mean(received, importance, like=state.weights)
        state.done = number
        if state.waited(settings.patience):
            silos.finish()
    finals = silos.ask(Silo.validate, Weights(state.weights)).enough(settings.min_silos)
    accuracy = share_right({name: (v.right, v.nodes) for name, v in finals.items()})
    state.offer(state.done, state.weights, accuracy)
    silos.note(state.done, validation_accuracy=accuracy)


def initial_weights(silos: Federation[S], settings: FedAvgSettings) -> dict[str, Tensor]:
    """The weights training starts from; every method with the same backbone starts alike."""
    model = build(settings.shape(silos.schema), silos.stream("initial weights"))
    return {key: value.detach() for key, value in model.named_parameters()}


def importances(updates: Mapping[str, Update], settings: FedAvgSettings) -> dict[str, float]:
    """How much each silo counts in the average."""
    if settings.weighting == "equal":
        return dict.fromkeys(updates, 1.0)
    return {name: float(update.training_nodes) for name, update in updates.items()}


def mean_loss(updates: Mapping[str, Update]) -> float:
    """The silos' training loss, by training nodes."""
    nodes = sum(update.training_nodes for update in updates.values())
    return sum(update.loss * update.training_nodes for update in updates.values()) / nodes


def share_right(counts: Mapping[str, tuple[int, int]]) -> float:
    """Share of all silos' validation nodes that are classified right; 0 if there are none."""
    nodes = sum(of for _, of in counts.values())
    return sum(right for right, _ in counts.values()) / nodes if nodes else 0.0
