"""FedProx: FedAvg whose silos are held near the shared weights (Li et al., MLSys 2020).

Each silo adds (mu / 2) |w - w_shared|^2 to its loss; only the gradient of that term, mu (w -
w_shared), is ever needed. With mu = 0 it is FedAvg to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedmend.config import setting
from fedmend.methods import fedavg
from fedmend.methods.fedavg import Update, Weights
from fedmend.models.backbones import Backbone
from fedmend.training.local import AdjustGradients


@dataclass(frozen=True, kw_only=True)
class FedProxSettings(fedavg.FedAvgSettings):
    """FedAvg's settings and the pull towards the shared weights."""

    mu: float = setting(0.01, "pull towards the shared weights", low=0.0)


def pull_towards(shared: Mapping[str, Tensor], mu: float) -> AdjustGradients:
    """Adds the gradient of (mu / 2) |w - w_shared|^2 to a model's gradients."""

    def pull(model: Backbone) -> None:
        for key, parameter in model.named_parameters():
            if parameter.grad is not None and key in shared:
                towards = shared[key].to(parameter.device)
                parameter.grad.add_(parameter.detach() - towards, alpha=mu)

    return pull


class Silo(fedavg.Silo):
    """A silo whose steps are pulled towards the weights it received."""

    settings: FedProxSettings

    def train(self, received: Weights) -> Update:
        self.local.load(received.weights)
        right, nodes = self.local.validate()
        loss = self.local.train(pull_towards(received.weights, self.settings.mu))
        return Update(self.local.weights(), len(self.local.train_nodes), loss, right, nodes)


server = fedavg.server
