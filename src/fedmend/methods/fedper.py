"""FedPer: the first layers are shared, the last ones stay personal (Arivazhagan et al., 2019).

Silos send and receive only the shared layers; each keeps its own last `personal_layers` layers,
and in the end the whole model (shared and personal) that did best on its own validation nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Unpack

from torch import Tensor

from fedmend.errors import SettingsError
from fedmend.federation import Federation, Handed
from fedmend.graph import Graph
from fedmend.methods import fedavg
from fedmend.methods.fedavg import Update, Validation, Weights
from fedmend.training.personal import PersonalSettings, Shared, all_but_last, chosen, first_weights
from fedmend.training.selection import OwnBest, Training
from fedmend.training.state import Part


@dataclass(frozen=True, kw_only=True)
class FedPerSettings(fedavg.FedAvgSettings, PersonalSettings):
    """FedAvg's settings and how much of the model is personal."""

    @property
    def shared(self) -> Shared:
        """Which weights all silos share."""
        return all_but_last(self.layers, self.personal_layers)


class Silo(fedavg.Silo):
    """A silo with layers of its own."""

    settings: FedPerSettings

    def __init__(
        self, name: str, graph: Graph, settings: FedPerSettings, seed: int, **handed: Unpack[Handed]
    ) -> None:
        super().__init__(name, graph, settings, seed, **handed)
        self.local.load(first_weights(self.local.model.shape, seed))
        self.best = OwnBest(settings.metric)

    def train(self, received: Weights) -> Update:
        update = super().train(received)
        return replace(update, weights=chosen(update.weights, self.settings.shared))

    def validate(self, received: Weights) -> Validation:
        found = super().validate(received)
        self.best.offer(self.local.weights(), found.validation)
        return found

    def own_weights(self) -> dict[str, Tensor]:
        return self.best.weights

    def parts(self) -> Mapping[str, Part]:
        return {**super().parts(), "best": self.best}


def server(silos: Federation[fedavg.Silo], settings: FedPerSettings) -> None:
    """FedAvg of the shared layers; the result is a model per silo."""
    weights = fedavg.initial_weights(silos, settings)
    sent = chosen(weights, settings.shared)
    if settings.personal_layers and len(sent) == len(weights):
        raise SettingsError(
            f"backbone {settings.backbone!r} does not say which layers are its last, so that none "
            "can be personal: keep them in self.layers, a torch.nn.ModuleList"
        )
    fedavg.average_rounds(silos, settings, Training(sent))
