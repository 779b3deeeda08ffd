"""The cross entropy is torch's, value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedmend.models.kernels.loss import Targets, cross_entropy, loss_and_gradient


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
    ours, theirs = (scores.clone().requires_grad_() for _ in range(2))
    loss, expected = cross_entropy(ours, labels), F.cross_entropy(theirs, labels)
    (3 * loss).backward()  # type: ignore[no-untyped-call]  # torch's
    (3 * expected).backward()  # type: ignore[no-untyped-call]  # torch's
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-12, rtol=1e-9)
    alone, gradient = loss_and_gradient(scores, Targets(labels, classes, dtype=scores.dtype))
    assert torch.equal(alone, loss.detach())
    torch.testing.assert_close(3 * gradient, ours.grad)
    assert gradient.is_contiguous()


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
