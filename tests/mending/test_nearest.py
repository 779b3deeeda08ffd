"""The nearest search against plain loops, sparse and dense, in blocks of any size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmend.mending import nearest
from fedmend.mending.nearest import Groups, nearest_listed, nearest_rows, squared_norms
from fedmend.mending.reconstruction import nearest_loss, nearest_of_each_loss

# Whole numbers: all distances are exact in float32, so ties are real ties.
NUMBERS = st.integers(-2, 2)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Points and rows of the same width, with many equal distances."""
    width = draw(st.integers(1, 4))
    row = st.lists(NUMBERS, min_size=width, max_size=width)
    points = draw(st.lists(row, max_size=6))
    rows = draw(st.lists(row, min_size=1, max_size=8))
    shaped = torch.tensor(points, dtype=torch.float32).reshape(len(points), width)
    return shaped, torch.tensor(rows, dtype=torch.float32)


def by_loop(point: Tensor, x: Tensor, among: list[int]) -> int:
    best, found = float("inf"), -1
    for row in among:
        distance = float(((point - x[row]) ** 2).sum())
        if distance < best:
            best, found = distance, row
    return found


many_blocks = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many_blocks
@given(both=matrices(), sparse=st.booleans(), block=st.sampled_from([1, 3, 7, 2**22]))
def test_nearest_rows(
    monkeypatch: pytest.MonkeyPatch, both: tuple[Tensor, Tensor], sparse: bool, block: int
) -> None:
    monkeypatch.setattr(nearest, "BLOCK", block)
    points, x = both
    found = nearest_rows(points, x.to_sparse_csr() if sparse else x)
    assert found.tolist() == [by_loop(point, x, list(range(len(x)))) for point in points]


@many_blocks
@given(
    both=matrices(),
    sparse=st.booleans(),
    block=st.sampled_from([1, 3, 7, 2**22]),
    data=st.data(),
)
def test_nearest_listed(
    monkeypatch: pytest.MonkeyPatch,
    both: tuple[Tensor, Tensor],
    sparse: bool,
    block: int,
    data: st.DataObject,
) -> None:
    monkeypatch.setattr(nearest, "BLOCK", block)
    points, x = both
    some_rows = st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=5)
    lists = [data.draw(some_rows) for _ in points]
    rowptr = torch.tensor([0, *[len(each) for each in lists]]).cumsum(0)
    listed = torch.tensor([row for each in lists for row in each], dtype=torch.int64)
    found = nearest_listed(points, x.to_sparse_csr() if sparse else x, listed, rowptr)
    expected = [by_loop(point, x, each) for point, each in zip(points, lists, strict=True)]
    assert found.tolist() == expected


@many_blocks
@given(matrices(), st.data())
def test_nearest_of_each_group_and_its_loss(
    both: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    """Groups of any sizes; the loss and its gradient are the sum of the groups' own."""
    points, x = both
    ends = data.draw(st.sets(st.integers(1, len(x) - 1))) if len(x) > 1 else set()
    parts = [x[a:b] for a, b in zip([0, *sorted(ends)], [*sorted(ends), len(x)], strict=True)]
    groups = Groups(parts)
    found = groups.nearest(points)
    for number, part in enumerate(parts):
        expected = part[nearest_rows(points, part)]
        torch.testing.assert_close(groups.rows[found[:, number]], expected)
    made = points.clone().requires_grad_()
    loss = nearest_of_each_loss(made, groups)
    apart = torch.stack([nearest_loss(made, part) for part in parts]).sum()
    torch.testing.assert_close(loss, apart)
    torch.testing.assert_close(torch.autograd.grad(loss, made), torch.autograd.grad(apart, made))


def test_of_equally_near_rows_the_first() -> None:
    points, x = torch.zeros(1, 2), torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, -1.0]])
    assert nearest_rows(points, x).tolist() == [1]
    listed, rowptr = torch.tensor([3, 0, 2, 1]), torch.tensor([0, 4])
    assert nearest_listed(points, x, listed, rowptr).tolist() == [3], "the first of the list"


def test_no_gradient_passes_through_the_search() -> None:
    points = torch.zeros(2, 2, requires_grad=True)
    assert not nearest_rows(points, torch.ones(3, 2)).requires_grad


@given(matrices())
def test_squared_norms(both: tuple[Tensor, Tensor]) -> None:
    x = both[1]
    expected = [sum(value**2 for value in row) for row in x.tolist()]
    assert squared_norms(x).tolist() == expected
    assert squared_norms(x.to_sparse_csr()).tolist() == expected
