"""Split learning at a silo: training on rows that the server gave, and their gradient for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmend.data.sampling import Hop
from fedmend.models.features import Features
from fedmend.training.local import AdjustGradients, LocalTraining


class SplitTraining(LocalTraining):
    """Training of [Z_loc || Z_glob]: keeps the gradient of the rows it was given."""

    rows: Tensor | None = None
    gradient: Tensor | None = None
    _leaf: Tensor | None = None

    @property
    def _mends(self) -> bool:
        return self.model.joint is not None

    def _epoch(self) -> Sequence[Tensor]:
        self.gradient = None if self.rows is None else torch.zeros_like(self.rows)
        return super()._epoch()

    def _step(self, batch: Tensor, adjust: AdjustGradients | None) -> Tensor:
        self._leaf = None if self.rows is None else self.rows.detach().requires_grad_()
        loss = super()._step(batch, adjust)
        if self.gradient is not None and self._leaf is not None and self._leaf.grad is not None:
            self.gradient.add_(self._leaf.grad, alpha=len(batch) / len(self.train_nodes))
        return loss

    def _forward(self, features: Features, hops: Sequence[Hop], nodes: Tensor | None) -> Tensor:
        rows = self._leaf
        if rows is not None and nodes is not None:
            rows = rows.index_select(0, nodes.to(self.device))
        scores: Tensor = self.model(features, hops, self._dropout, rows)
        return scores

    def _predict(self, hops: Sequence[Hop]) -> Tensor:
        scores: Tensor = self.model(self._features, hops, None, self.rows)
        return scores
