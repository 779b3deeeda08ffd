"""Settings of sums under secret sharing: whose messages are secret, and how few is few."""

from __future__ import annotations

from dataclasses import dataclass

from fedmend import config
from fedmend.secret.session import ROUTINGS, Secrecy
from fedmend.training.settings import RoundSettings

SETTINGS = {
    "silos": "a silo sees its own nodes' data; only messages between silos are secret",
    "devices": "a silo does not see its devices' data; every message is secret",
}

_NOISY = {"below_minimum": ("noise",)}


@dataclass(frozen=True, kw_only=True)
class SecretSettings(RoundSettings):
    """What is hidden from whom, and what a node may hear the sum of."""

    setting: str = config.setting(
        "silos", "whose messages are secret: " + " or ".join(SETTINGS), choices=SETTINGS
    )
    routing: str = config.setting(
        "relay", "the way of the shares: " + ", ".join(ROUTINGS), choices=ROUTINGS
    )
    privacy_threshold: int = config.setting(
        1, "relays that together learn nothing (T)", low=1, high=50
    )
    check_shares: int = config.setting(0, "extra shares that detect wrong ones", low=0, high=10)
    min_neighbours: int = config.setting(
        2, "hidden neighbours a node must have to hear their sum", low=1
    )
    input_min_neighbours: int = config.setting(
        3, "the same for sums of raw features, which are easier to take apart", low=1
    )
    below_minimum: str = config.setting(
        "leave-out",
        "such a node hears nothing (leave-out) or sums with noise (noise)",
        choices=("leave-out", "noise"),
    )
    clip: float = config.setting(
        1.0, "norm that messages with noise are clipped to", low=1e-9, only=_NOISY
    )
    noise_multiplier: float = config.setting(
        1.0, "their noise, in units of clip", low=0.0, only=_NOISY
    )
    delta: float = config.setting(1e-5, "delta of their epsilon", low=1e-300, high=0.5, only=_NOISY)
    fraction_bits: int = config.setting(28, "binary digits after the point", low=0, high=50)

    @property
    def secrecy(self) -> Secrecy:
        return Secrecy(self.routing, self.privacy_threshold, self.check_shares, self.fraction_bits)

    @property
    def with_noise(self) -> bool:
        """Whether nodes below the minimum are spoken to, with noise."""
        return self.below_minimum == "noise"
