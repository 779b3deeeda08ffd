"""Sources of noise: secret ones that nobody repeats, public ones that say so, and none at all."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmend
from fedmend.errors import FederationError
from fedmend.federation import SiloBase
from fedmend.mending.pretraining import AutoencoderWeights
from fedmend.methods.feddep import FedDEPSettings
from fedmend.methods.feddep import Silo as FedDEPSilo
from fedmend.methods.fedggr import FedGGRSettings, GlobalRows
from fedmend.methods.fedggr import Silo as FedGGRSilo
from fedmend.privacy.noise import NO_NOISE, PublicNoise, SecretNoise
from fedmend.training.streams import stream
from tests.tiny import tiny_graph

ZEROS = torch.zeros(2000, 2)


def alike(one: torch.Tensor, other: torch.Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]))


def test_public_noise_is_that_of_its_stream_and_can_be_repeated() -> None:
    drawn = PublicNoise(3, "a").add_normal(ZEROS, 2.0)
    assert torch.equal(drawn, PublicNoise(3, "a").add_normal(ZEROS, 2.0))
    assert torch.equal(drawn, 2.0 * torch.randn(2000, 2, generator=stream(3, "a")))
    assert not torch.equal(drawn, PublicNoise(3, "b").add_normal(ZEROS, 2.0))
    words = PublicNoise(3, "a").under("b").words(3)
    assert words.tolist() == PublicNoise(3, "a", "b").words(3).tolist()


def test_public_noise_goes_on_where_it_was_saved() -> None:
    source = PublicNoise(3, "a")
    source.words(5)
    saved = source.state()
    drawn = source.add_normal(ZEROS, 1.0)
    again = PublicNoise(4)
    again.restore(saved)
    assert torch.equal(again.add_normal(ZEROS, 1.0), drawn)


def test_nobody_can_draw_secret_noise_again() -> None:
    source = SecretNoise()
    drawn = source.add_normal(ZEROS, 1.0)
    assert drawn.dtype == torch.float32
    public = PublicNoise(3, "a").add_normal(ZEROS, 1.0)
    for other in (SecretNoise().add_normal(ZEROS, 1.0), source.add_normal(ZEROS, 1.0), public):
        assert alike(drawn, other) < 0.1  # 4000 numbers: six standard deviations
    assert abs(float(drawn.mean())) < 0.1
    assert abs(float(drawn.std()) - 1.0) < 0.1
    assert source.state() == {}
    assert source.under("anything") is source


def test_secret_words_are_uniform() -> None:
    words = SecretNoise().words(4000)
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.006  # 256000 bits: six standard deviations
    assert len(np.unique(words)) == 4000


@settings(max_examples=25)  # every deviation has a table of its own
@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20),
    deviation=st.floats(1e-3, 1e3),
)
def test_secret_noise_leaves_no_digits_of_the_values(values: list[float], deviation: float) -> None:
    """All that comes out lies on one grid, whatever went in: its last digits say nothing."""
    told = SecretNoise().add_normal(torch.tensor(values, dtype=torch.float64), deviation)
    step = 2.0 ** (math.frexp(deviation)[1] - 11)
    steps = told.numpy() / step
    assert (steps == np.round(steps)).all()


def test_noise_does_not_change_what_it_is_added_to() -> None:
    values = torch.ones(3, 2, requires_grad=True)
    for source in (SecretNoise(), PublicNoise(0)):
        told = source.add_normal(values, 0.5)
        assert not told.requires_grad
        assert torch.equal(values, torch.ones(3, 2))
    kept = torch.full((2, 2), math.nan)
    assert bool(SecretNoise().add_normal(kept, 1.0).isnan().all())  # seen where it is checked


@pytest.mark.parametrize(
    "asked",
    [
        lambda source: source.words(1),
        lambda source: source.add_normal(ZEROS, 1.0),
        lambda source: source.under("a").words(0),
    ],
)
def test_without_a_source_nothing_is_drawn(asked: Callable[[Any], Any]) -> None:
    with pytest.raises(FederationError, match="was handed no source of it: build it with") as error:
        asked(NO_NOISE)
    assert "\n" not in str(error.value)


# Silos


def fedggr_silo(seed: int = 0, **handed: Any) -> FedGGRSilo:
    chosen = FedGGRSettings(
        embedding_noise=1.0, gradient_noise=1.0, embedding=4, global_width=4, autoencoder_rounds=0
    )
    return FedGGRSilo("silo", tiny_graph(30), chosen, seed, **handed)


def embeddings(silo: FedGGRSilo) -> torch.Tensor:
    return silo.share_embeddings(AutoencoderWeights({})).embeddings


def test_a_silo_without_a_source_refuses_to_send() -> None:
    with pytest.raises(FederationError, match="handed no source"):
        embeddings(fedggr_silo())
    weights = fedggr_silo().local.weights()
    rows = torch.zeros(30, 4)
    with pytest.raises(FederationError, match="handed no source"):
        fedggr_silo().train_split(GlobalRows(weights, rows, rows[:0]))
    chosen = FedDEPSettings(protection="dp-sgd", encoder_epochs=1)
    with pytest.raises(FederationError, match="handed no source"):
        FedDEPSilo("silo", tiny_graph(30), chosen, 0).train_local_gnn()


def test_what_hides_nothing_needs_no_source() -> None:
    chosen = FedDEPSettings(encoder_epochs=1)
    assert FedDEPSilo("silo", tiny_graph(30), chosen, 0).train_local_gnn().shape[0] == 30
    assert SiloBase("silo", tiny_graph(30), None, 0).noise is NO_NOISE


@pytest.mark.parametrize(
    "changed", [lambda seed: seed, lambda seed: seed + 0, lambda seed: int(str(seed)), bool]
)
def test_nothing_done_to_a_seed_makes_secret_noise_public(changed: Callable[[int], int]) -> None:
    one, other = (embeddings(fedggr_silo(changed(1), noise=SecretNoise())) for _ in range(2))
    assert alike(one, other) < 0.99
    assert not torch.equal(one, other)
    public = [embeddings(fedggr_silo(1, noise=PublicNoise(1, "silo"))) for _ in range(2)]
    assert torch.equal(*public)
    assert not torch.equal(one, public[0])


SEEDED = {
    "runs/train.py": "silos of a simulation",
    "mending/learned_graph.py": "newcomers, from which nothing leaves",
}
"""Where noise may come from a seed, and why."""


def test_seeded_noise_is_made_in_simulations_alone() -> None:
    source = Path(fedmend.__file__).parent
    made = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("PublicNoise")
    }
    assert made - {"privacy/noise.py"} == set(SEEDED)
