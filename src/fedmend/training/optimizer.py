"""Adam and SGD on torch's fused kernels, without the `torch.optim.Optimizer` class around them.

The class imports torch's compiler when it is first used (about a second and 70 MB) and spends as
long on its hooks as the kernel on a small model. The functions beneath it are torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer:
    """Steps along the gradients of `parameters`; Adam remembers two moments of each."""

    def __init__(
        self, kind: str, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._adam = kind == "adam"
        self._lr, self._weight_decay = lr, weight_decay
        remembered = self._parameters if self._adam else []
        self._means = [torch.zeros_like(each, requires_grad=False) for each in remembered]
        self._squares = [torch.zeros_like(each, requires_grad=False) for each in remembered]
        self._steps = [torch.zeros((), device=each.device) for each in remembered]

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step; a parameter without a gradient stays, and so do its moments."""
        weights: list[Tensor] = [each for each in self._parameters if each.grad is not None]
        gradients = [each.grad for each in weights if each.grad is not None]
        if not weights:
            return
        if self._adam:
            moving = [i for i, each in enumerate(self._parameters) if each.grad is not None]
            adam(
                weights,
                gradients,
                [self._means[i] for i in moving],
                [self._squares[i] for i in moving],
                [],
                [self._steps[i] for i in moving],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self._lr,
                weight_decay=self._weight_decay,
                eps=1e-8,
                maximize=False,
            )
        else:
            sgd(
                weights,
                gradients,
                [None] * len(weights),
                fused=True,
                weight_decay=self._weight_decay,
                momentum=0.0,
                lr=self._lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
        # The fused kernels change the weights without telling: whoever keeps what was computed
        # from them would not notice.
        torch.autograd.graph.increment_version(weights)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        kept = {"mean": self._means, "square": self._squares, "steps": self._steps}
        return {f"{name}/{i}": each for name, all_ in kept.items() for i, each in enumerate(all_)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        for key, kept in self.state().items():
            kept.copy_(state[key])
