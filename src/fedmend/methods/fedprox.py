"""FedProx: FedAvg whose silos are held near the shared weights (Li et al., MLSys 2020).

The pull is in `training/proximal.py`. With mu = 0 this is FedAvg to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedmend.methods import fedavg
from fedmend.training.local import AdjustGradients
from fedmend.training.proximal import ProximalSettings, Pull


@dataclass(frozen=True, kw_only=True)
class FedProxSettings(fedavg.FedAvgSettings, ProximalSettings):
    """FedAvg's settings and the pull towards the shared weights."""


class Silo(fedavg.Silo):
    """A silo whose steps are pulled towards the weights it received."""

    settings: FedProxSettings

    def adjust(self, received: Mapping[str, Tensor]) -> AdjustGradients:
        return Pull(received, self.settings.mu)


server = fedavg.server
