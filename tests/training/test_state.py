"""State is that of the parts, comes back to the bit, and parts that come late are made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedmend.training.state import Composed, Late, Part, Values, take_over


@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: Tensor


class Whole(Composed):
    """Something of every kind of part."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 3)
        self.stream = torch.Generator().manual_seed(1)
        self.number: int | None = None
        self.share: float | None = None
        self.done = False
        self.rows: Tensor | None = None
        self.pair: Pair | None = None
        self.named: dict[str, Tensor] = {}
        self.several: list[Tensor] = []
        self.late: Composed | None = None

    def make(self, _: Mapping[str, Tensor]) -> Composed:
        self.late = Inner()
        return self.late

    def parts(self) -> Mapping[str, Part]:
        return {
            "model": self.model,
            "stream": self.stream,
            "plain": Values(self, number=int, share=float, done=bool, rows=Tensor, pair=Pair),
            "many": Values(self, named=dict, several=list),
            "late": Late(self.late, self.make),
        }


class Inner(Composed):
    def __init__(self) -> None:
        self.weight = torch.zeros(2)

    def parts(self) -> Mapping[str, Part]:
        return {"weight": Values(self, weight=Tensor)}


def full() -> Whole:
    whole = Whole()
    whole.number, whole.share, whole.done = 7, 1 / 3, True
    whole.rows, whole.pair = torch.rand(2, 2), Pair(torch.ones(1), torch.zeros(3))
    whole.named = {"a/b": torch.ones(2), "c": torch.zeros(1)}
    whole.several = [torch.full((1,), float(number)) for number in range(12)]
    whole.late = Inner()
    whole.late.weight = torch.rand(2)
    torch.rand(5, generator=whole.stream)
    return whole


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_everything_comes_back_to_the_bit() -> None:
    whole, again = full(), Whole()
    # Names in another order, as a file may give them.
    again.restore(dict(sorted(whole.state().items(), reverse=True)))
    assert same(again.state(), whole.state())
    assert (again.number, again.share, again.done) == (7, 1 / 3, True)
    assert [int(each) for each in again.several] == list(range(12)), "by number, not by name"
    drawn = torch.rand(3, generator=again.stream)
    assert torch.equal(drawn, torch.rand(3, generator=whole.stream))


def test_what_was_not_there_is_not_there_again() -> None:
    whole = full()
    whole.restore(Whole().state())
    assert (whole.number, whole.rows, whole.pair) == (None, None, None)
    assert (whole.named, whole.several) == ({}, [])


def test_weights_that_are_missing_are_an_error() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(KeyError):
        take_over(dict(model.named_parameters()), {"weight": torch.zeros(3, 2)})
