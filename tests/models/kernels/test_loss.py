"""The cross entropy and its gradient are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedmend.models.kernels.loss import Targets, loss_and_gradient


@given(
    nodes=st.integers(1, 50),
    classes=st.integers(1, 12),
    scale=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 2**20),
)
def test_is_torchs(nodes: int, classes: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(nodes, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (nodes,), generator=generator)
    loss, gradient = loss_and_gradient(scores, Targets(labels, classes, dtype=scores.dtype))
    expected = F.cross_entropy(scores.requires_grad_(), labels)
    expected.backward()  # type: ignore[no-untyped-call]  # torch's
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, scores.grad, atol=1e-12, rtol=1e-9)
    assert gradient.is_contiguous()


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        Targets(torch.tensor([0, 3]), 3)
