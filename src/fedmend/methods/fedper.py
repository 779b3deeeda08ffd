"""FedPer: the first layers are shared, the last ones stay personal (Arivazhagan et al., 2019).

Silos send and receive only the shared layers; each keeps its own last `personal_layers` layers,
and in the end the whole model (shared and personal) that did best on its own validation nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedmend.config import setting
from fedmend.errors import SettingsError
from fedmend.federation import Federation
from fedmend.graph import Graph
from fedmend.methods import fedavg
from fedmend.methods.fedavg import Update, Validation, Weights
from fedmend.models.backbones import build, layer_of
from fedmend.training.selection import OwnBest
from fedmend.training.streams import stream


@dataclass(frozen=True, kw_only=True)
class FedPerSettings(fedavg.FedAvgSettings):
    """FedAvg's settings and how much of the model is personal."""

    personal_layers: int = setting(1, "last layers that stay with the silo", low=0)


def is_shared(key: str, settings: FedPerSettings) -> bool:
    """Whether a weight belongs to the shared layers, as what stands before the first one does."""
    number = layer_of(key)
    return number is None or number < settings.layers - settings.personal_layers


def shared(weights: Mapping[str, Tensor], settings: FedPerSettings) -> dict[str, Tensor]:
    """The shared layers' weights."""
    return {key: value for key, value in weights.items() if is_shared(key, settings)}


class Silo(fedavg.Silo):
    """A silo with layers of its own."""

    settings: FedPerSettings

    def __init__(self, name: str, graph: Graph, settings: FedPerSettings, seed: int) -> None:
        super().__init__(name, graph, settings, seed)
        # Personal layers start alike everywhere: drawn from the run's seed, never sent.
        model = build(self.local.model.shape, stream(seed, "server", "initial weights"))
        self.local.load({key: value.detach() for key, value in model.named_parameters()})
        self.best = OwnBest()

    def train(self, received: Weights) -> Update:
        checked = self.validate(received)
        loss = self.local.train()
        sent = shared(self.local.weights(), self.settings)
        return Update(sent, len(self.local.train_nodes), loss, checked.right, checked.nodes)

    def validate(self, received: Weights) -> Validation:
        self.local.load(received.weights)
        right, nodes = self.local.validate()
        self.best.offer(self.local.weights(), right, nodes)
        return Validation(right, nodes)

    def own_weights(self) -> dict[str, Tensor]:
        return self.best.weights

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **self.best.state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self.best.restore(state)


def server(silos: Federation[fedavg.Silo], settings: FedPerSettings) -> None:
    """FedAvg of the shared layers; the result is a model per silo."""
    if not 0 <= settings.personal_layers < settings.layers:
        raise SettingsError(
            f"personal_layers={settings.personal_layers} leaves nothing to share of "
            f"layers={settings.layers}; use method 'local' for that"
        )
    weights = fedavg.initial_weights(silos, settings)
    sent = shared(weights, settings)
    if settings.personal_layers and len(sent) == len(weights):
        raise SettingsError(
            f"backbone {settings.backbone!r} does not say which layers are its last, so that none "
            "can be personal: keep them in self.layers, a torch.nn.ModuleList"
        )
    fedavg.train_shared(silos, settings, sent)
