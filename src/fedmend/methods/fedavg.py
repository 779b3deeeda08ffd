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
from dataclasses import dataclass
from typing import Annotated, TypeVar, Unpack

from torch import Tensor

from fedmend.federation import Federation, Handed, Schema, SiloBase, message
from fedmend.graph import Graph
from fedmend.models.backbones import build
from fedmend.privacy.ledger import Kind
from fedmend.training.aggregation import weighted_mean
from fedmend.training.local import AdjustGradients, LocalTraining
from fedmend.training.rounds import Round, importances, mean_loss, train_rounds, validated
from fedmend.training.selection import Training
from fedmend.training.settings import (
    PatienceSettings,
    QuorumSettings,
    TrainingSettings,
    WeightingSettings,
)
from fedmend.training.state import Part


@dataclass(frozen=True, kw_only=True)
class FedAvgSettings(TrainingSettings, WeightingSettings, QuorumSettings, PatienceSettings):
    """The settings of all training, how silos count, and when to stop early."""


@message("fedavg.Weights")
class Weights:
    """The shared model, from the server to a silo."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]


@message("fedavg.Validation")
class Validation:
    """How the weights a silo received do on its own validation nodes."""

    validation: Annotated[Tensor, Kind.METRICS]


@message("fedavg.Update")
class Update:
    """What a silo gives back: its weights after training, never a node, a feature or an edge."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    training_nodes: Annotated[int, Kind.COUNTS]
    loss: Annotated[float, Kind.METRICS]
    validation: Annotated[Tensor, Kind.METRICS]


class Silo(SiloBase):
    """One silo: trains the shared model on its own graph."""

    def __init__(
        self, name: str, graph: Graph, settings: FedAvgSettings, seed: int, **handed: Unpack[Handed]
    ) -> None:
        super().__init__(name, graph, settings, seed, **handed)
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        self.local = LocalTraining(name, graph, shape, settings, seed)

    def train(self, received: Weights) -> Update:
        checked = self.validate(received)
        loss = self.local.train(self.adjust(received.weights))
        sent = self.local.weights()
        return Update(sent, len(self.local.train_nodes), loss, checked.validation)

    def validate(self, received: Weights) -> Validation:
        self.local.load(received.weights)
        return Validation(self.local.validate())

    def adjust(self, received: Mapping[str, Tensor]) -> AdjustGradients | None:  # noqa: ARG002
        """What is done to the gradients before a step: nothing, in FedAvg."""
        return None

    def parts(self) -> Mapping[str, Part]:
        return {"local": self.local}


S = TypeVar("S", bound=Silo)


def server(silos: Federation[Silo], settings: FedAvgSettings) -> dict[str, Tensor]:
    """FedAvg of the whole model; gives the weights that did best in validation."""
    state = Training(initial_weights(silos, settings))
    average_rounds(silos, settings, state)
    silos.note(state.best_round, selected=1.0)
    return state.best


def average_rounds(silos: Federation[S], settings: FedAvgSettings, state: Training) -> None:
    """Rounds of training and averaging."""

    def one_round(_: int) -> Round:
        updates = silos.ask(Silo.train, Weights(state.weights)).enough(settings.min_silos)
        received = {name: update.weights for name, update in updates.items()}
        importance = importances(updates, settings.weighting)
        weights = weighted_mean(received, importance, like=state.weights)
        return Round(weights, validated(updates), mean_loss(updates))

    train_rounds(silos, settings, state, one_round, lambda: test(silos, settings, state))


def test(silos: Federation[S], settings: FedAvgSettings, state: Training) -> dict[str, Tensor]:
    """How the shared weights do on the silos' validation nodes, after the last round."""
    finals = silos.ask(Silo.validate, Weights(state.weights)).enough(settings.min_silos)
    return validated(finals)


def initial_weights(silos: Federation[S], settings: FedAvgSettings) -> dict[str, Tensor]:
    """The weights training starts from; every method with the same backbone starts alike."""
    model = build(settings.shape(silos.schema), silos.stream("initial weights"))
    return {key: value.detach() for key, value in model.named_parameters()}
