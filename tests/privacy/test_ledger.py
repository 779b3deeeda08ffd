"""The ledger adds up, sorts, and comes back from its CSV."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.privacy.ledger import Direction, Entry, Kind, Ledger

texts = st.text(min_size=1, max_size=6).filter(str.isprintable)  # as silos' names must be
directions: st.SearchStrategy[Direction] = st.sampled_from(["up", "down"])
entries = st.lists(
    st.builds(
        Entry,
        phase=texts,
        round=st.integers(0, 99),
        silo=texts,
        direction=directions,
        message=texts,
        kind=st.sampled_from([kind.value for kind in Kind]),
        bytes=st.integers(1, 10**9),
    ),
    max_size=20,
)


@given(entries)
def test_comes_back_from_its_csv(lines: list[Entry]) -> None:
    """Whatever names silos have: commas, quotes, spaces."""
    ledger = Ledger(lines)
    again = Ledger.from_csv(ledger.to_csv())
    assert again.entries == ledger.entries
    assert again.to_csv() == ledger.to_csv()


@given(entries, st.randoms())
def test_order_of_counting_does_not_matter(lines: list[Entry], random: Any) -> None:
    shuffled = list(lines)
    random.shuffle(shuffled)
    assert Ledger(shuffled).to_csv() == Ledger(lines).to_csv()


@given(entries)
def test_sums_are_plain_loops(lines: list[Entry]) -> None:
    ledger = Ledger(lines)
    assert ledger.total() == sum(line.bytes for line in lines)
    up = [line for line in lines if line.direction == "up"]
    assert ledger.total("up") == sum(line.bytes for line in up)
    assert ledger.total("up") + ledger.total("down") == ledger.total()
    left = ledger.left()
    assert sum(sum(kinds.values()) for kinds in left.values()) == ledger.total("up")
    for silo in {line.silo for line in lines}:
        assert ledger.total(silo=silo) == sum(line.bytes for line in lines if line.silo == silo)
        assert sum(left.get(silo, {}).values()) == ledger.total("up", silo)
    by_two = ledger.by("silo", "kind")
    assert sum(by_two.values()) == ledger.total()
    for silo, kind in by_two:
        expected = sum(line.bytes for line in lines if (line.silo, line.kind) == (silo, kind))
        assert by_two[silo, kind] == expected
    assert sum(ledger.by().values()) == ledger.total()


def example() -> Ledger:
    ledger = Ledger()
    ledger.count("training", 1, "b", "up", "m.Update", {Kind.WEIGHTS: 40, Kind.FRAMING: 7})
    ledger.count("training", 1, "b", "up", "m.Update", {Kind.WEIGHTS: 2})
    ledger.count("training", 1, "a", "up", "m.Update", {Kind.COUNTS: 1})
    ledger.count("training", 1, "a", "down", "m.Weights", {Kind.WEIGHTS: 40, Kind.METRICS: 0})
    return ledger


def test_counting() -> None:
    ledger = example()
    assert ledger.left() == {"a": {"counts": 1}, "b": {"framing": 7, "weights": 42}}
    assert ledger.by("direction") == {("up",): 50, ("down",): 40}
    assert (ledger.total("up", "b"), ledger.total("down", "b")) == (49, 0)
    assert all(entry.bytes for entry in ledger.entries)  # what carries nothing has no line
    assert ledger.to_csv() == (
        "phase,round,silo,direction,message,kind,bytes\n"
        "training,1,a,down,m.Weights,weights,40\n"
        "training,1,a,up,m.Update,counts,1\n"
        "training,1,b,up,m.Update,framing,7\n"
        "training,1,b,up,m.Update,weights,42\n"
    )


def test_empty() -> None:
    assert Ledger().total() == 0
    assert Ledger().left() == {}
    assert Ledger.from_csv(Ledger().to_csv()).entries == []


def test_rounds_are_sorted_as_numbers() -> None:
    ledger = Ledger()
    for number in (10, 9, 100):
        ledger.count("training", number, "a", "up", "m", {Kind.COUNTS: 1})
    assert [entry.round for entry in ledger.entries] == [9, 10, 100]


@pytest.mark.parametrize("text", ["", "phase,round\nx,1\n", "phase\n"])
def test_csv_of_something_else(text: str) -> None:
    if text.count("\n") < 2:
        assert Ledger.from_csv(text).entries == []
    else:
        with pytest.raises(KeyError):
            Ledger.from_csv(text)
