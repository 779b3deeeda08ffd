"""The search in tiles finds what sorting all similarities finds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmend.errors import SettingsError
from fedmend.models import neighbour_search
from fedmend.models.neighbour_search import indexed_neighbours, nearest_neighbours


def points(nodes: int, width: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(nodes)
    return F.normalize(torch.randn(nodes, width, generator=generator))


def similarities(rows: Tensor, found: Tensor) -> Tensor:
    return torch.einsum("nd,nkd->nk", rows, rows[found])


@pytest.fixture(params=[3, 7, 64])
def in_small_pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tiles, samples and heaps so small that a few rows take many of each."""
    tile: int = request.param
    monkeypatch.setattr(neighbour_search, "TILE", tile)
    monkeypatch.setattr(neighbour_search, "SAMPLED", tile)
    monkeypatch.setattr(neighbour_search, "TRIED", tile)
    monkeypatch.setattr(neighbour_search, "PAIRS", 5 * tile)
    monkeypatch.setattr(neighbour_search, "AXES", 2)


def brute_force(rows: Tensor, k: int) -> Tensor:
    others = (rows @ rows.T).fill_diagonal_(-math.inf)
    return others.topk(min(k, len(rows) - 1), dim=1).indices


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize(("nodes", "k"), [(80, 6), (50, 1), (9, 8), (9, 30), (2, 5), (1, 4)])
def test_finds_the_most_similar(nodes: int, k: int) -> None:
    rows = points(nodes)
    found = nearest_neighbours(rows, k)
    k = min(k, nodes - 1)
    assert found.shape == (nodes, k + 1)
    assert found[:, 0].tolist() == list(range(nodes))
    assert torch.equal(found[:, 1:], brute_force(rows, k))


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("moved", [0.0, 0.01, 3.0])
def test_a_guess_changes_nothing(moved: float) -> None:
    """Neither a perfect one, nor a good one, nor one of points that have little in common."""
    before = points(80, 8)
    shift = torch.randn(before.shape, generator=torch.Generator().manual_seed(1))
    rows = F.normalize(before + moved * shift)
    found = nearest_neighbours(rows, 5, nearest_neighbours(before, 5))
    assert torch.equal(found[:, 1:], brute_force(rows, 5))
    # One of another size is none.
    assert torch.equal(found, nearest_neighbours(rows, 5, found[:40]))
    assert torch.equal(found, nearest_neighbours(rows, 5, found[:, :3]))


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0])
def test_few_axes_are_enough_to_rule_pairs_out(
    monkeypatch: pytest.MonkeyPatch, spread: float
) -> None:
    """Rows that lie (nearly) in a plane are compared there, and the same is found."""
    monkeypatch.setattr(neighbour_search, "SAMPLED", 64)
    monkeypatch.setattr(neighbour_search, "AXES", 4)
    generator = torch.Generator().manual_seed(2)
    flat = torch.randn(600, 2, generator=generator) @ torch.randn(2, 32, generator=generator)
    rows = F.normalize(flat + spread * torch.randn(600, 32, generator=generator)).double()
    widths = []
    shortened = neighbour_search._shortened

    def watched(points: Tensor, least: Tensor) -> Tensor:
        short = shortened(points, least)
        widths.append(short.shape[1])
        assert bool((short @ short.T >= points @ points.T - 1e-12).all())
        return short

    monkeypatch.setattr(neighbour_search, "_shortened", watched)
    guess = nearest_neighbours(rows, 4)
    assert torch.equal(guess[:, 1:], brute_force(rows, 4))
    assert torch.equal(nearest_neighbours(rows, 4, guess), guess)
    assert widths[-1] == 32 if spread == 1.0 else widths[-1] < 10


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 45),
    st.integers(1, 4),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_any_points(nodes: int, k: int, width: int, seed: int, guessed: bool) -> None:
    """Few whole numbers, so that many rows are equal or zero: none of what is found is worse."""
    generator = torch.Generator().manual_seed(seed)
    rows = F.normalize(torch.randint(-1, 2, (nodes, width), generator=generator).float())
    guess = None
    if guessed:
        guess = nearest_neighbours(F.normalize(torch.randn(nodes, 3, generator=generator)), k)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("TILE", 6), ("SAMPLED", 8), ("TRIED", 3), ("PAIRS", 20), ("AXES", 1)):
            patch.setattr(neighbour_search, name, value)
        found = nearest_neighbours(rows, k, guess)
    k = min(k, nodes - 1)
    assert found.shape == (nodes, k + 1)
    assert found[:, 0].tolist() == list(range(nodes))
    assert all(len(set(row)) == k + 1 for row in found.tolist())
    others = (rows @ rows.T).fill_diagonal_(-math.inf).topk(k, dim=1).values
    torch.testing.assert_close(similarities(rows, found)[:, 1:], others)


def test_index_finds_nearly_all_of_them() -> None:
    pytest.importorskip("faiss")
    rows = points(3000, 8)
    exact, found = nearest_neighbours(rows, 10), indexed_neighbours(rows, 10)
    assert found.shape == exact.shape
    assert torch.equal(found[:, 0], exact[:, 0])
    same = (found[:, 1:, None] == exact[:, None, 1:]).any(2)
    assert float(same.float().mean()) > 0.8
    for few in (rows[:1], rows[:2], rows[:5]):
        assert torch.equal(*(search(few, 10).sort(1).values for search in SEARCHES))


SEARCHES = (nearest_neighbours, indexed_neighbours)


def test_missing_index_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(SettingsError, match=r"pip install 'fedmend\[index\]'"):
        indexed_neighbours(points(4), 2)


def test_threads_change_nothing() -> None:
    rows = points(5000, 24)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(nearest_neighbours(rows, 7))
            found.append(nearest_neighbours(rows, 7, found[0]))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0][:100, 1:], brute_force(rows, 7)[:100])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
