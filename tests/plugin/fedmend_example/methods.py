"""FedMedian: the server takes the median of what silos send (Yin et al., ICML 2018).

A few silos that send nonsense then decide nothing: every number of the shared model moves by the
middle one of the silos' numbers, or by the mean of the `keep` middle ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedmend.config import setting
from fedmend.federation import Federation, message
from fedmend.methods import Method, fedavg
from fedmend.methods.fedavg import FedAvgSettings, Training, Validation, Weights
from fedmend.privacy.ledger import Kind


@dataclass(frozen=True, kw_only=True)
class FedMedianSettings(FedAvgSettings):
    """FedAvg's settings, and how many of the middle ones count."""

    keep: int = setting(1, "middle values averaged; 1 = the median", low=1, paper=1)


@message("fedmend_example.Moved")
class Moved:
    """What a silo gives back: how far its training moved the weights."""

    by: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    loss: Annotated[float, Kind.METRICS]
    validation_right: Annotated[int, Kind.METRICS]
    validation_nodes: Annotated[int, Kind.COUNTS]


class Silo(fedavg.Silo):
    """A silo of FedAvg that says how far it went, not where it is."""

    def move(self, received: Weights) -> Moved:
        update = self.train(received)
        by = {key: value - received.weights[key] for key, value in update.weights.items()}
        return Moved(by, update.loss, update.validation_right, update.validation_nodes)


def middle(values: list[Tensor], keep: int) -> Tensor:
    """The mean of the `keep` middle values, number by number (or one more, if they are even)."""
    ordered = torch.stack(values).sort(dim=0).values
    aside = max(len(values) - keep, 0) // 2
    return ordered[aside : len(values) - aside].mean(dim=0)


def server(silos: Federation[Silo], settings: FedMedianSettings) -> dict[str, Tensor]:
    """Rounds of training and taking the middle; gives the weights that did best in validation."""
    state = Training(fedavg.initial_weights(silos, settings))
    for number in silos.rounds(settings.rounds, state):
        moved = silos.ask(Silo.move, Weights(state.weights)).enough(settings.min_silos)
        counts = {
            name: (each.validation_right, each.validation_nodes) for name, each in moved.items()
        }
        accuracy = fedavg.share_right(counts)
        state.offer(number - 1, state.weights, accuracy)
        silos.note(number - 1, validation_accuracy=accuracy)
        silos.note(number, training_loss=sum(each.loss for each in moved.values()) / len(moved))
        state.weights = {
            key: value + middle([each.by[key] for each in moved.values()], settings.keep)
            for key, value in state.weights.items()
        }
        state.done = number
    finals: dict[str, Validation] = silos.ask(Silo.validate, Weights(state.weights)).enough(1)
    accuracy = fedavg.share_right({name: (v.right, v.nodes) for name, v in finals.items()})
    state.offer(state.done, state.weights, accuracy)
    silos.note(state.done, validation_accuracy=accuracy)
    silos.note(state.best_round, selected=1.0)
    return state.best


FEDMEDIAN = Method(
    "fedmedian",
    "FedAvg with the median in place of the mean",
    "fedmend_example.methods",
    "FedMedianSettings",
)
FEDMEDIAN_PLAIN = Method(
    "fedmedian-plain",
    "FedMedian of a network in plain torch",
    "fedmend_example.methods",
    "FedMedianSettings",
    fixed={"backbone": "plain-gcn"},
)
FEDAVG_PLAIN = Method(
    "fedavg-plain",
    "FedAvg of a network in plain torch",
    "fedmend.methods.fedavg",
    "FedAvgSettings",
    fixed={"backbone": "plain-gcn"},
)
