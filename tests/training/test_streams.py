"""Streams that can be repeated, and noise that cannot where it hides something."""

from __future__ import annotations

import torch

from fedmend.training.streams import DeployedSeed, HidingNoise, stream


def test_streams_are_one_per_purpose() -> None:
    one, same, other = (torch.rand(4, generator=stream(0, *each)) for each in ("ab", "ab", "ac"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.rand(4, generator=stream(DeployedSeed(0), *"ab")), one)


def test_noise_of_a_simulation_can_be_repeated() -> None:
    assert torch.equal(HidingNoise(3, "a").normal(5, 2), HidingNoise(3, "a").normal(5, 2))


def test_nobody_who_knows_the_seed_can_draw_a_deployed_silos_noise() -> None:
    ours, theirs = HidingNoise(DeployedSeed(3), "a"), HidingNoise(DeployedSeed(3), "a")
    known = HidingNoise(3, "a").normal(2000, 2)
    drawn = ours.normal(2000, 2)
    assert drawn.dtype == torch.float32
    for other in (theirs.normal(2000, 2), known, ours.normal(2000, 2)):
        together = torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1]
        assert abs(float(together)) < 0.1  # 4000 numbers: six standard deviations
    assert abs(float(drawn.mean())) < 0.1
    assert abs(float(drawn.std()) - 1.0) < 0.1
