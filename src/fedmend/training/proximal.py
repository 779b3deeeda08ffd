"""The proximal pull of FedProx: silos are held near the shared weights (Li et al., MLSys 2020).

(mu / 2) |w - w_shared|^2 is added to a silo's loss; only its gradient, mu (w - w_shared), is ever
needed. For any method that has silos train from shared weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmend.config import setting


@dataclass(frozen=True, kw_only=True)
class ProximalSettings:
    """How strong the pull is."""

    mu: float = setting(0.01, "pull towards the shared weights (fedprox)", low=0.0)


class Pull:
    """Adds the gradient of (mu / 2) |w - w_shared|^2 to a model's gradients."""

    def __init__(self, shared: Mapping[str, Tensor], mu: float) -> None:
        self._shared, self._mu = shared, mu

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        for key, parameter in model.named_parameters():
            if parameter.grad is not None and key in self._shared:
                towards = self._shared[key].to(parameter.device)
                parameter.grad.add_(parameter - towards, alpha=self._mu)
