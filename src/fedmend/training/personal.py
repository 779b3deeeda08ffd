"""Weights that stay with a silo: which ones, how they start, and the best model of each silo.

A method says by name which weights all silos share (`Shared`); the others are personal. Personal
weights start alike everywhere, drawn from the run's seed, so that none are sent; in the end each
silo keeps the whole model that did best on its own validation nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedmend.config import setting
from fedmend.errors import SettingsError
from fedmend.models.backbones import ModelShape, build, layer_of
from fedmend.training.streams import stream

Shared = Callable[[str], bool]
"""Whether the weight of this name is the same for all silos."""


@dataclass(frozen=True, kw_only=True)
class PersonalSettings:
    """How much of the model is personal."""

    personal_layers: int = setting(1, "last layers that stay with the silo (fedper)", low=0)


def all_but_last(layers: int, personal: int) -> Shared:
    """All weights but those of the last `personal` of so many layers.

    What stands before the first layer is shared.
    """
    if not 0 <= personal < layers:
        raise SettingsError(
            f"personal_layers={personal} leaves nothing to share of layers={layers}; use method "
            "'local' for that"
        )

    def shared(key: str) -> bool:
        number = layer_of(key)
        return number is None or number < layers - personal

    return shared


def chosen(weights: Mapping[str, Tensor], shared: Shared) -> dict[str, Tensor]:
    """The weights that all silos share."""
    return {key: value for key, value in weights.items() if shared(key)}


def first_weights(shape: ModelShape, seed: int) -> dict[str, Tensor]:
    """The weights that every method with this model starts from, as every silo can draw them."""
    model = build(shape, stream(seed, "server", "initial weights"))
    return {key: value.detach() for key, value in model.named_parameters()}
