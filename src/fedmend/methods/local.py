"""Local: every silo trains alone. What federation is worth is measured against it.

Nothing but progress figures leaves a silo. All silos start from the same weights (drawn from the
run's seed, so none are sent) and keep the model that did best on their own validation nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar, Unpack

from torch import Tensor

from fedmend.evaluation.metrics import metric
from fedmend.federation import Federation, Handed, Nothing, Schema, SiloBase, message
from fedmend.graph import Graph
from fedmend.privacy.ledger import Kind
from fedmend.training.local import LocalTraining
from fedmend.training.personal import first_weights
from fedmend.training.rounds import validated
from fedmend.training.selection import OwnBest
from fedmend.training.settings import QuorumSettings, TrainingSettings
from fedmend.training.state import Part


@dataclass(frozen=True, kw_only=True)
class LocalSettings(TrainingSettings, QuorumSettings):
    """The settings of all training."""


@message("local.Progress")
class Progress:
    """How a silo's own training goes: for the display, not for the method."""

    loss: Annotated[float, Kind.METRICS]
    validation: Annotated[Tensor, Kind.METRICS]


class Silo(SiloBase):
    """One silo on its own."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        settings: TrainingSettings,
        seed: int,
        **handed: Unpack[Handed],
    ) -> None:
        super().__init__(name, graph, settings, seed, **handed)
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        self.local = LocalTraining(name, graph, shape, settings, seed)
        self.local.load(first_weights(shape, seed))
        self.best = OwnBest(settings.metric)

    def train(self, _: Nothing) -> Progress:
        loss = self.local.train()
        validation = self.local.validate()
        self.best.offer(self.local.weights(), validation)
        return Progress(loss, validation)

    def own_weights(self) -> dict[str, Tensor]:
        return self.best.weights

    def parts(self) -> Mapping[str, Part]:
        return {"local": self.local, "best": self.best}


@dataclass
class Nowhere:
    """The server remembers nothing."""


S = TypeVar("S", bound=Silo)


def server(silos: Federation[Silo], settings: LocalSettings) -> None:
    """Only keeps time: each silo ends with a model of its own."""
    train_rounds(silos, settings)


def train_rounds(silos: Federation[S], settings: LocalSettings) -> None:
    """Every silo trains its own model, round by round."""
    chosen = metric(settings.metric)
    for number in silos.rounds(settings.rounds, Nowhere()):
        replies = silos.ask(Silo.train, Nothing()).enough(settings.min_silos)
        loss = sum(reply.loss for reply in replies.values()) / len(replies)
        found = chosen.figure(chosen.total(validated(replies), silos.schema.num_classes))
        silos.note(number, **{"training_loss": loss, f"validation_{chosen.name}": found})
