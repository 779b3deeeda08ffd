"""What a rehearsal says of its result; the rehearsals themselves are in test_federation.py."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from fedmend.deploy.rehearsal import Rehearsal
from fedmend.methods import METHODS
from fedmend.runs.train import train
from tests.tiny import tiny_partition

FOUND = Rehearsal("fedavg", 3, True, True, True, 12, 1000, 100, 0.5, 1.0, 2.0, 3.0)


def test_everything_is_compared() -> None:
    assert FOUND.same
    assert "bit for bit" in " ".join(FOUND.lines())
    for other in (
        replace(FOUND, same_weights=False),
        replace(FOUND, same_ledger=False),
        replace(FOUND, same_scores=False),
    ):
        assert not other.same
        assert "DIFFERENT" in " ".join(other.lines())


def test_where_silos_draw_their_own_noise_only_the_ledger_is() -> None:
    noisy = replace(FOUND, noise=True, same_weights=False, same_scores=False)
    assert noisy.same
    assert "every silo draws noise of its own" in " ".join(noisy.lines())
    assert "DIFFERENT" not in " ".join(noisy.lines())
    assert not replace(noisy, same_ledger=False).same


@pytest.mark.parametrize(
    ("method", "settings", "noise"),
    [
        ("fedavg", {}, False),
        ("feddep", {}, False),
        ("feddep-no-nfdp", {}, True),
        ("feddep-no-nfdp", {"noise": 0.0}, False),
        ("fedggr", {}, False),
        ("fedggr", {"embedding_noise": 1.0}, True),
        ("fedggr", {"gradient_noise": 1.0}, True),
        ("hifgl", {}, False),
        ("hifgl", {"below_minimum": "noise"}, True),
    ],
)
def test_which_runs_have_noise(method: str, settings: dict[str, Any], noise: bool) -> None:
    short = {"rounds": 1, "encoder_epochs": 1, "generator_epochs": 1, "autoencoder_epochs": 1}
    known = {field.name for field in fields(METHODS[method].settings_type)}
    few = {key: each for key, each in short.items() if key in known}
    found = train(method, tiny_partition(), **{**few, **settings})
    assert any(each.drawn for each in found.record.privacy) is noise
