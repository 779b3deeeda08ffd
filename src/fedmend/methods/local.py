"""Local: every silo trains alone. What federation is worth is measured against it.

Nothing but progress figures leaves a silo. All silos start from the same weights (drawn from the
run's seed, so none are sent) and keep the model that did best on their own validation nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from torch import Tensor

from fedmend.federation import Federation, Nothing, Schema, SiloBase, message
from fedmend.graph import Graph
from fedmend.models.backbones import build
from fedmend.privacy.ledger import Kind
from fedmend.training.local import LocalTraining
from fedmend.training.selection import OwnBest
from fedmend.training.settings import TrainingSettings
from fedmend.training.streams import stream


@dataclass(frozen=True, kw_only=True)
class LocalSettings(TrainingSettings):
    """Local training has no settings of its own."""


@message("local.Progress")
class Progress:
    """How a silo's own training goes: for the display, not for the method."""

    loss: Annotated[float, Kind.METRICS]
    validation_right: Annotated[int, Kind.METRICS]
    validation_nodes: Annotated[int, Kind.COUNTS]


class Silo(SiloBase):
    """One silo on its own."""

    def __init__(self, name: str, graph: Graph, settings: TrainingSettings, seed: int) -> None:
        super().__init__(name, graph, settings, seed)
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        self.local = LocalTraining(name, graph, shape, settings, seed)
        model = build(shape, stream(seed, "server", "initial weights"))
        self.local.load({key: value.detach() for key, value in model.named_parameters()})
        self.best = OwnBest()

    def train(self, _: Nothing) -> Progress:
        loss = self.local.train()
        right, nodes = self.local.validate()
        self.best.offer(self.local.weights(), right, nodes)
        return Progress(loss, right, nodes)

    def own_weights(self) -> dict[str, Tensor]:
        return self.best.weights

    def state(self) -> dict[str, Tensor]:
        return {**self.local.state(), **self.best.state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.local.restore(state)
        self.best.restore(state)


@dataclass
class Nowhere:
    """The server remembers nothing."""


S = TypeVar("S", bound=Silo)


def server(silos: Federation[Silo], settings: LocalSettings) -> None:
    """Only keeps time: each silo ends with a model of its own."""
    train_rounds(silos, settings)


def train_rounds(silos: Federation[S], settings: TrainingSettings) -> None:
    """Every silo trains its own model, round by round."""
    for number in silos.rounds(settings.rounds, Nowhere()):
        replies = silos.ask(Silo.train, Nothing()).enough(settings.min_silos)
        nodes = sum(reply.validation_nodes for reply in replies.values())
        right = sum(reply.validation_right for reply in replies.values())
        silos.note(
            number,
            training_loss=sum(reply.loss for reply in replies.values()) / len(replies),
            validation_accuracy=right / nodes if nodes else 0.0,
        )
