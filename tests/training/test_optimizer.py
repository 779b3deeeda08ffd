"""The optimisers are torch's own to the bit, and go on where they were saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmend.training.optimizer import Optimizer


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (4,))]


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (4,))]


def give(to: list[nn.Parameter], step: int) -> None:
    for parameter, gradient in zip(to, gradients(step), strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_is_torchs_optimizer(kind: str, decay: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = Optimizer(kind, ours, 0.05, decay)
    torchs = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind]
    reference = torchs(theirs, lr=0.05, weight_decay=decay, fused=True)
    for step in range(5):
        give(ours, step)
        give(theirs, step)
        optimizer.step()
        reference.step()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
    optimizer.clear()
    assert all(parameter.grad is None for parameter in ours)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_step_shows_in_the_weights_version(kind: str) -> None:
    ours = parameters()
    before = [parameter._version for parameter in ours]
    give(ours, 0)
    Optimizer(kind, ours, 0.05, 0.0).step()
    assert all(p._version > old for p, old in zip(ours, before, strict=True))


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_goes_on_where_it_was_saved(kind: str) -> None:
    ours = parameters()
    optimizer = Optimizer(kind, ours, 0.05, 0.0)
    for step in range(3):
        give(ours, step)
        optimizer.step()
    saved = {key: value.clone() for key, value in optimizer.state().items()}
    again = [nn.Parameter(each.detach().clone()) for each in ours]
    resumed = Optimizer(kind, again, 0.05, 0.0)
    resumed.restore(saved)
    for both, parameters_of in ((optimizer, ours), (resumed, again)):
        give(parameters_of, 3)
        both.step()
    for one, other in zip(ours, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_what_has_no_gradient_stays_as_torchs_does(kind: str) -> None:
    """Neither the weights nor their moments move, and their count of steps waits."""
    ours, theirs = parameters(), parameters()
    optimizer = Optimizer(kind, ours, 0.05, 0.1)
    torchs = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind]
    reference = torchs(theirs, lr=0.05, weight_decay=0.1, fused=True)
    for step in range(6):
        give(ours, step)
        give(theirs, step)
        if step in (0, 2, 3):
            ours[1].grad = theirs[1].grad = None
            kept = ours[1].detach().clone()
        optimizer.step()
        reference.step()
        if step in (0, 2, 3):
            assert torch.equal(ours[1], kept)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
