"""Cross entropy of class scores, computed class by class.

torch's works row by row and is slow where rows are short: with 7 classes the softmax of a silo's
nodes takes four times as long as that of the transposed scores (measured). The gradient comes out
of the same pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over the nodes, differentiable once in the scores."""
    loss: Tensor = _CrossEntropy.apply(scores, labels)  # type: ignore[no-untyped-call]  # torch's
    return loss


def loss_and_gradient(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross entropy and its derivative in the scores; call it without autograd."""
    log_likelihood = scores.t().contiguous().log_softmax(0)
    loss = F.nll_loss(log_likelihood.t(), labels)
    nodes = labels.shape[0]
    gradient = log_likelihood.exp_().mul_(1.0 / nodes)
    gradient.scatter_add_(0, labels.unsqueeze(0), gradient.new_full((1, nodes), -1.0 / nodes))
    return loss, gradient.t().contiguous()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor) -> Tensor:
        loss, gradient = loss_and_gradient(scores, labels)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None
