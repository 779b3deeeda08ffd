"""The generators' heads: which neighbour stands where, against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmend.models.generator import NeighbourHead, NumberHead, owners_by_slot

WIDTHS = pytest.mark.parametrize("widths", [(5,), (5, 7)])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def head_of(
    widths: tuple[int, ...] = (5, 7), slots: int = 3, *, bounded: bool = True
) -> NeighbourHead:
    return NeighbourHead(4, widths, slots, 6, seeded(), bounded=bounded)


def by_loop(head: NeighbourHead, z: Tensor, counts: list[int]) -> list[tuple[int, int, Tensor]]:
    """Row, slot and neighbour: all first neighbours, then all second ones."""
    out = []
    for slot in range(head.slots):
        for row, count in enumerate(counts):
            if slot < count:
                h = z[row]
                for weight, bias in zip(head.hidden, head.hidden_bias, strict=True):
                    h = torch.relu(h @ weight + bias)
                made = h @ head.last[slot] + head.last_bias[slot]
                out.append((row, slot, torch.tanh(made) if head.bounded else made))
    return out


@settings(max_examples=40)
@given(counts=st.lists(st.integers(0, 4), max_size=7), bounded=st.booleans())
def test_is_a_plain_loop(counts: list[int], bounded: bool) -> None:
    """Counts above the number of slots fill all slots."""
    head = head_of(bounded=bounded)
    z = torch.randn(len(counts), 4, generator=seeded(1))
    made, row = head(z, torch.tensor(counts, dtype=torch.int64))
    expected = by_loop(head, z, counts)
    assert row.tolist() == [each[0] for each in expected]
    assert head.slot_of(row).tolist() == [each[1] for each in expected]
    assert made.shape == (len(expected), 6)
    for got, (_, _, want) in zip(made, expected, strict=True):
        torch.testing.assert_close(got, want)


@WIDTHS
def test_only_used_slots_get_gradients(widths: tuple[int, ...]) -> None:
    head = head_of(widths)
    counts = torch.tensor([0, 2, 1])
    made, _ = head(torch.randn(3, 4, generator=seeded(1)), counts)
    made.square().sum().backward()
    moved = {name for name, each in head.named_parameters() if each.grad is not None}
    assert moved == head.used(counts)
    assert {"last.0", "last.1", "last_bias.1", "hidden.0"} <= moved
    assert not {"last.2", "last_bias.2"} & moved


def test_used_parameters() -> None:
    head = head_of()
    everything = {name for name, _ in head.named_parameters()}
    last = {name for name in everything if name.startswith("last")}
    assert head.used(torch.tensor([1, 9])) == everything
    assert head.used(torch.tensor([0])) == everything - last
    assert head.used(torch.zeros(0, dtype=torch.int64)) == everything - last


def test_another_silos_weights_make_another_silos_neighbours() -> None:
    """functional_call with the used weights alone is that head itself."""
    ours, theirs = head_of(), NeighbourHead(4, (5, 7), 3, 6, seeded(9))
    z, counts = torch.randn(4, 4, generator=seeded(1)), torch.tensor([1, 2, 0, 2])
    used: dict[str, Tensor] = {k: v for k, v in theirs.named_parameters() if k in ours.used(counts)}
    made, row = torch.func.functional_call(ours, used, (z, counts))
    expected, expected_row = theirs(z, counts)
    assert torch.equal(made, expected)
    assert torch.equal(row, expected_row)
    assert not torch.equal(made, ours(z, counts)[0])


def test_without_slots_nothing_is_made() -> None:
    head = head_of(slots=0)
    made, row = head(torch.ones(2, 4), torch.tensor([3, 3]))
    assert made.shape == (0, 6)
    assert len(row) == 0
    assert head.slot_of(row).tolist() == []
    assert [len(each) for each in owners_by_slot(torch.tensor([3]), 0)] == [0]


def test_number_head() -> None:
    head = NumberHead(4, 1.5, seeded())
    z = torch.randn(5, 4, generator=seeded(1)) * 3
    found = head(z)
    for got, row in zip(found.tolist(), z, strict=True):
        value = 1.5 + sum(
            float(a * b) for a, b in zip(row, head.weight.detach()[:, 0], strict=True)
        )
        assert got == pytest.approx(max(value, 0.0), abs=1e-5)
    assert float(head(torch.zeros(1, 4)).detach()) == 1.5, "of a node it knows nothing about"
    assert float(found.detach().min()) >= 0
