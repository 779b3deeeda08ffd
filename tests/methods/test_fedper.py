"""FedPer: with nothing personal it is FedAvg; what is personal stays and differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedmend.engines import wire
from fedmend.errors import SettingsError
from fedmend.methods.fedavg import Weights
from fedmend.runs.train import train
from tests.tiny import QUICK, same_weights, tiny_partition

OPTIONS: dict[str, Any] = {**QUICK, "rounds": 4}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The shared weights the server sent, in order; everything runs as always."""
    sent: list[dict[str, Tensor]] = []
    encode = wire.encode

    def recording(message: Any) -> wire.Encoded:
        if isinstance(message, Weights):
            sent.append({key: value.clone() for key, value in message.weights.items()})
        return encode(message)

    monkeypatch.setattr(wire, "encode", recording)
    return sent


def test_with_nothing_personal_the_shared_weights_go_fedavgs_way(
    told: list[dict[str, Tensor]],
) -> None:
    fedper = train("fedper", tiny_partition(), personal_layers=0, **OPTIONS)
    its_way = list(told)
    told.clear()
    plain = train("fedavg", tiny_partition(), **OPTIONS)
    assert len(its_way) == len(told) == 5  # four rounds and the final validation
    assert all(same_weights(one, other) for one, other in zip(its_way, told, strict=True))
    for metrics in plain.history["training"].values():
        metrics.pop("selected", None)  # FedAvg's server keeps a round; here every silo its own
    assert fedper.history == plain.history
    assert fedper.weights is None


def test_silos_end_with_layers_of_their_own() -> None:
    result = train("fedper", tiny_partition(), **{**OPTIONS, "weight_decay": 0.0})
    first, second = result.own["silo-0"], result.own["silo-1"]
    assert first.keys() == second.keys()
    assert any(key.startswith("layers.1.") for key in first)
    assert not torch.equal(first["layers.1.own"], second["layers.1.own"])


def test_personal_layers_start_alike_as_fedavgs_do(told: list[dict[str, Tensor]]) -> None:
    """After no training at all (lr=0), every silo's model is the one FedAvg starts from."""
    result = train("fedper", tiny_partition(), **{**OPTIONS, "lr": 0.0})
    told.clear()
    train("fedavg", tiny_partition(), **{**OPTIONS, "rounds": 1})
    for own in result.own.values():
        for key, value in told[0].items():
            if key.startswith("layers.1."):
                assert torch.equal(own[key], value)
            else:  # averaged with itself four times, which rounds
                torch.testing.assert_close(own[key], value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("personal", [2, 3])
def test_something_must_be_shared(personal: int) -> None:
    with pytest.raises(SettingsError, match=f"personal_layers={personal} leaves nothing to share"):
        train("fedper", tiny_partition(), personal_layers=personal, **OPTIONS)
