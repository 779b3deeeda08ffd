"""Settings that methods share, in groups: each method takes those that have an effect in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedmend.config import setting
from fedmend.evaluation.metrics import METRICS
from fedmend.federation import Schema
from fedmend.models.backbones import BACKBONES, ModelShape


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """How many rounds there are."""

    rounds: int = setting(50, "rounds of training", low=1, high=10**6)
    metric: str = setting(
        "accuracy", "what chooses the round, on validation nodes", choices=METRICS
    )


@dataclass(frozen=True, kw_only=True)
class QuorumSettings:
    """Who must be there."""

    min_silos: int = setting(1, "silos that must answer in every round", low=1)


@dataclass(frozen=True, kw_only=True)
class PatienceSettings:
    """When training stops early."""

    patience: int = setting(
        0, "stop after so many rounds without better validation; 0 = never", low=0
    )


@dataclass(frozen=True, kw_only=True)
class WeightingSettings:
    """How silos count in the average."""

    weighting: str = setting(
        "nodes", "silos count by their training nodes, or equal", choices=("nodes", "equal")
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model, whatever its layers are."""

    backbone: str = setting("sage", "the network; see `fedmend backbones`", choices=BACKBONES)
    hidden: int = setting(128, "width of the hidden layers", low=1, high=10**6)
    layers: int = setting(2, "number of layers", low=1, high=100)
    dropout: float = setting(0.0, "share of hidden values dropped in training", low=0.0, high=0.99)

    def shape(self, schema: Schema) -> ModelShape:
        """The model these settings describe, for the silos' features and classes."""
        return ModelShape(
            backbone=self.backbone,
            num_features=schema.num_features,
            num_classes=schema.num_classes,
            hidden=self.hidden,
            layers=self.layers,
            heads=1,
            dropout=self.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class AttentionSettings(ModelSettings):
    """A model that may be one with attention."""

    heads: int = setting(4, "attention heads", low=1, high=10**4, only={"backbone": ("gat",)})

    def shape(self, schema: Schema) -> ModelShape:
        return replace(super().shape(schema), heads=self.heads)


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """A step of training."""

    optimizer: str = setting("adam", "adam or sgd", choices=("adam", "sgd"))
    lr: float = setting(1e-3, "step size", low=0.0)
    weight_decay: float = setting(0.0, "weight decay", low=0.0)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(AttentionSettings, StepSettings, RoundSettings):
    """How one silo trains a model on its own graph (`training.local`)."""

    local_epochs: int = setting(1, "passes over its training nodes a silo makes per round", low=1)
    batch_size: int = setting(64, "training nodes per step; 0 = all at once", low=0)
    fan_out: int = setting(5, "neighbours drawn per node and layer; 0 = all", low=0, high=10**6)
    keep_optimizer: bool = setting(True, "a silo's optimiser remembers across rounds")
    device: str = setting("cpu", "torch device the silos compute on")
