"""The search in tiles finds what sorting all similarities finds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.errors import SettingsError
from fedmend.parts import neighbour_search
from fedmend.parts.neighbour_search import indexed_neighbours, nearest_neighbours


def points(nodes: int, width: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(nodes)
    return F.normalize(torch.randn(nodes, width, generator=generator))


def similarities(rows: Tensor, found: Tensor) -> Tensor:
    return torch.einsum("nd,nkd->nk", rows, rows[found])


@pytest.mark.parametrize("tile", [1, 7, 64])
@pytest.mark.parametrize(("nodes", "k"), [(50, 6), (50, 1), (9, 8), (9, 30), (2, 5), (1, 4)])
def test_finds_the_most_similar(
    monkeypatch: pytest.MonkeyPatch, nodes: int, k: int, tile: int
) -> None:
    monkeypatch.setattr(neighbour_search, "TILE", tile)
    rows = points(nodes)
    found = nearest_neighbours(rows, k)
    k = min(k, nodes - 1)
    assert found.shape == (nodes, k + 1)
    assert found[:, 0].tolist() == list(range(nodes))
    others = (rows @ rows.T).fill_diagonal_(-math.inf)
    assert torch.equal(found[:, 1:], others.topk(k, dim=1).indices)


@pytest.mark.parametrize("tile", [2, 64])
def test_equal_rows(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    """Among duplicates any may be chosen: itself is always there, nobody twice, none is worse."""
    monkeypatch.setattr(neighbour_search, "TILE", tile)
    rows = torch.cat([points(3)[:1].expand(7, -1), points(4), torch.zeros(3, 5)])
    found = nearest_neighbours(rows, 3)
    assert found[:, 0].tolist() == list(range(len(rows)))
    assert all(len(set(row)) == 4 for row in found.tolist())
    others = (rows @ rows.T).fill_diagonal_(-math.inf).topk(3, dim=1).values
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
