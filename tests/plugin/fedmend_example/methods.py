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
from fedmend.methods.fedavg import FedAvgSettings, Weights
from fedmend.privacy.ledger import Kind
from fedmend.training.rounds import Round, train_rounds, validated
from fedmend.training.selection import Training


@dataclass(frozen=True, kw_only=True)
class FedMedianSettings(FedAvgSettings):
    """FedAvg's settings, and how many of the middle ones count."""

    keep: int = setting(1, "middle values averaged; 1 = the median", low=1, paper=1)


@message("fedmend_example.Moved")
class Moved:
    """What a silo gives back: how far its training moved the weights."""

    by: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    loss: Annotated[float, Kind.METRICS]
    validation: Annotated[Tensor, Kind.METRICS]


class Silo(fedavg.Silo):
    """A silo of FedAvg that says how far it went, not where it is."""

    def move(self, received: Weights) -> Moved:
        update = self.train(received)
        by = {key: value - received.weights[key] for key, value in update.weights.items()}
        return Moved(by, update.loss, update.validation)


def middle(values: list[Tensor], keep: int) -> Tensor:
    """The mean of the `keep` middle values, number by number (or one more, if they are even)."""
    ordered = torch.stack(values).sort(dim=0).values
    aside = max(len(values) - keep, 0) // 2
    return ordered[aside : len(values) - aside].mean(dim=0)


def server(silos: Federation[Silo], settings: FedMedianSettings) -> dict[str, Tensor]:
    """Rounds of training and taking the middle; gives the weights that did best in validation."""
    state = Training(fedavg.initial_weights(silos, settings))

    def one_round(_: int) -> Round:
        moved = silos.ask(Silo.move, Weights(state.weights)).enough(settings.min_silos)
        weights = {
            key: value + middle([each.by[key] for each in moved.values()], settings.keep)
            for key, value in state.weights.items()
        }
        loss = sum(each.loss for each in moved.values()) / len(moved)
        return Round(weights, validated(moved), loss)

    train_rounds(silos, settings, state, one_round, lambda: fedavg.test(silos, settings, state))
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
