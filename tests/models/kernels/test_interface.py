"""Kernels are switched in one place, and a whole run is the same without them."""

from __future__ import annotations

import pytest
import torch

from fedmend.data.partition import split
from fedmend.errors import UnknownNameError
from fedmend.models.kernels import KERNELS, fast, plain
from fedmend.runs.train import train
from tests.tiny import QUICK, tiny_graph


def test_kernels_are_left_out_by_name_and_come_back() -> None:
    assert all(map(fast, KERNELS))
    with plain("sparse"):
        assert [name for name in KERNELS if not fast(name)] == ["sparse"]
        with plain():
            assert not any(map(fast, KERNELS))
        assert fast("onednn")
        assert not fast("sparse")
    assert all(map(fast, KERNELS))


def test_they_come_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="halfway"), plain():
        raise ValueError("halfway")
    assert all(map(fast, KERNELS))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="sparse"), plain("spare"):
        pass


@pytest.mark.parametrize("backbone", ["sage", "gcn"])
def test_a_run_is_the_same_without_them(backbone: str) -> None:
    """Full batches, which all kernels for small graphs serve; float32 is added up otherwise."""
    silos = split(tiny_graph(90, sparse=True), 3, "random", seed=0)
    options = {**QUICK, "batch_size": 0, "fan_out": 0, "dropout": 0.0, "rounds": 3}

    def weights() -> dict[str, torch.Tensor]:
        run = train("fedavg", silos, seed=0, backbone=backbone, **options)
        return dict(run.weights or {})

    usual = weights()
    with plain():
        same = weights()
    assert usual.keys() == same.keys()
    for key, value in usual.items():
        torch.testing.assert_close(same[key], value, rtol=1e-3, atol=1e-4)
