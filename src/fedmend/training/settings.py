"""Settings that every method which trains a backbone has."""

from __future__ import annotations

from dataclasses import dataclass

from fedmend.config import setting
from fedmend.federation import Schema
from fedmend.models.backbones import BACKBONES, ModelShape


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The model and how a silo trains it."""

    rounds: int = setting(50, "rounds of training", low=1, high=10**6)
    local_epochs: int = setting(1, "passes over its training nodes a silo makes per round", low=1)
    batch_size: int = setting(64, "training nodes per step; 0 = all at once", low=0)
    fan_out: int = setting(5, "neighbours drawn per node and layer; 0 = all", low=0, high=10**6)
    backbone: str = setting("sage", "the network; see `fedmend backbones`", choices=BACKBONES)
    hidden: int = setting(128, "width of the hidden layers", low=1, high=10**6)
    layers: int = setting(2, "number of layers", low=1, high=100)
    heads: int = setting(4, "attention heads (gat)", low=1, high=10**4)
    dropout: float = setting(0.0, "share of hidden values dropped in training", low=0.0, high=0.99)
    optimizer: str = setting("adam", "adam or sgd", choices=("adam", "sgd"))
    lr: float = setting(1e-3, "step size", low=0.0)
    weight_decay: float = setting(0.0, "weight decay", low=0.0)
    keep_optimizer: bool = setting(True, "a silo's optimiser remembers across rounds")
    weighting: str = setting(
        "nodes", "silos count by their training nodes, or equal", choices=("nodes", "equal")
    )
    min_silos: int = setting(1, "silos that must answer in every round", low=1)
    device: str = setting("cpu", "torch device the silos compute on")

    @property
    def hides_with_noise(self) -> bool:
        """Whether silos hide something with noise that no other party can draw (`HidingNoise`)."""
        return False

    def shape(self, schema: Schema) -> ModelShape:
        """The model these settings describe, for the silos' features and classes."""
        return ModelShape(
            backbone=self.backbone,
            num_features=schema.num_features,
            num_classes=schema.num_classes,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            dropout=self.dropout,
        )
