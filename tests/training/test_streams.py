"""Streams that can be repeated, one for each purpose."""

from __future__ import annotations

import torch

from fedmend.training.streams import stream


def test_streams_are_one_per_purpose() -> None:
    one, same, other = (torch.rand(4, generator=stream(0, *each)) for each in ("ab", "ab", "ac"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
