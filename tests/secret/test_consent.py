"""Agreeing on who hears whom: wishes that are kept, and letters that are none."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import FederationError
from fedmend.secret.consent import BACKWARD, FORWARD, INPUT, LAST, Consent
from fedmend.secret.session import Edges, Keys, Secrecy, SecretMessages

NODES = np.array([100, 101, 102])
EDGES = Edges(
    np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 2, 1, 2, 1]), np.array([7, 8, 9, 7, 9, 8])
)
"""Node 0 has three neighbours in silos 1 and 2, node 1 two, node 2 one."""


def agreement(with_noise: bool = False, **minimum: int) -> Consent:
    messages = SecretMessages("silo-0", 0, NODES, Secrecy("relay", 1, 0, 28), None)
    keys = torch.zeros(3, 32, dtype=torch.uint8)
    messages.meet(Keys("pass 1", False, torch.arange(3), keys, 10, 0))
    least = {INPUT: 3, FORWARD: 2, BACKWARD: 2, LAST: 2, **minimum}
    found = Consent(messages, EDGES, least, with_noise, together=True)
    found.begin()
    return found


def meet(mine: Consent, *members: int) -> None:
    """Another agreement, among these silos."""
    keys = torch.zeros(len(members), 32, dtype=torch.uint8)
    mine._messages.meet(Keys("pass 2", False, torch.tensor(members), keys, 10, 0))
    mine.begin()


def numbers(*values: int) -> bytes:
    return np.array(values, dtype=np.int64).tobytes()


def test_wishes_by_silo() -> None:
    mine = agreement()
    mine.want(INPUT, mine.here)
    mine.want(FORWARD, mine.here)
    assert mine.heard(INPUT).tolist() == [3, 0, 0]
    assert mine.heard(FORWARD).tolist() == [3, 2, 0]
    assert mine.few == {INPUT: 2, FORWARD: 1}
    wishes = mine.wishes((INPUT, FORWARD))
    assert wishes[1] == numbers(1, 100, 0, 2, 100, 101, 0)
    assert wishes[2] == numbers(1, 100, 0, 2, 100, 101, 0)
    assert wishes[0] == numbers(0, 0, 0, 0)


def test_wishes_with_noise() -> None:
    mine = agreement(with_noise=True)
    mine.want(FORWARD, mine.here)
    assert mine.heard(FORWARD).tolist() == [3, 2, 1]
    assert mine.wishes((FORWARD,))[1] == numbers(2, 100, 101, 1, 102)
    assert mine.state()[f"noised rows/{FORWARD}"].tolist() == [False, False, True]


def test_only_who_asked_is_spoken_to() -> None:
    mine = agreement()
    none = numbers(0, 0)
    mine.grant((FORWARD,), mine.here, {0: none, 1: numbers(1, 7, 1, 8), 2: none})
    assert mine.speaks[FORWARD].tolist() == [True, True, False, True, False, True]
    assert mine._noised[FORWARD].tolist() == [False, True, False, False, False, True]
    # Who asks for a node in both ways hears it once, as it is.
    mine.grant((FORWARD,), mine.here, {0: none, 1: numbers(1, 7, 2, 7, 8), 2: none})
    assert mine.speaks[FORWARD].tolist() == [True, True, False, True, False, True]
    assert mine._noised[FORWARD].tolist() == [False, True, False, False, False, True]
    # A silo cannot ask for nodes of another, nor for edges that do not exist.
    mine.grant((FORWARD,), mine.here, {0: none, 1: numbers(2, 9, 55, 0), 2: none})
    assert not mine.speaks[FORWARD].any()


def test_counted_neighbours_decide_the_last_stage() -> None:
    mine = agreement()
    mine.want(BACKWARD, mine.here)
    mine.want(LAST, mine.hears[BACKWARD], np.array([1, 2, 0]))
    assert mine.heard(LAST).tolist() == [0, 2, 0]
    assert mine.few[LAST] == 1
    noisy = agreement(with_noise=True)
    noisy.want(BACKWARD, noisy.here)
    noisy.want(LAST, noisy.hears[BACKWARD], np.array([1, 2, 0]))
    assert noisy.heard(LAST).tolist() == [3, 2, 1]
    assert noisy.state()[f"noised rows/{LAST}"].tolist() == [True, False, True]


def test_state_comes_back() -> None:
    mine = agreement()
    for stage in (INPUT, FORWARD):
        mine.want(stage, mine.here)
    letters = {0: numbers(0, 0, 0, 0), 1: numbers(1, 7, 0, 1, 8, 0), 2: numbers(0, 0, 1, 9, 0)}
    mine.grant((INPUT, FORWARD), mine.here, letters)
    other = agreement()
    other.restore(mine.state())
    assert other.few == mine.few
    for stage in (INPUT, FORWARD):
        assert other.heard(stage).tolist() == mine.heard(stage).tolist()
        assert other.speaks[stage].tolist() == mine.speaks[stage].tolist()


@pytest.mark.parametrize(
    "letter", [b"abc", b"", numbers(5), numbers(-1, 0), numbers(2**60, 1), numbers(1, 7)]
)
def test_letters_that_are_no_wishes(letter: bytes) -> None:
    mine = agreement()
    with pytest.raises(FederationError, match=r"cut off|malformed"):
        mine.grant((FORWARD,), mine.here, {0: numbers(0, 0), 1: letter, 2: numbers(0, 0)})


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_harmless(letter: bytes) -> None:
    mine = agreement()
    try:
        mine.grant((FORWARD,), mine.here, {0: numbers(0, 0), 1: letter, 2: numbers(0, 0)})
    except FederationError:
        return
    assert not (mine.speaks[FORWARD] & ~mine.here).any()


def test_a_missing_letter_is_a_lost_message() -> None:
    mine = agreement()
    with pytest.raises(FederationError, match="a message was lost"):
        mine.grant((FORWARD,), mine.here, {0: numbers(0, 0), 1: numbers(0, 0)})


# Sums before and after a silo is lost


def test_a_sum_without_a_lost_silo_would_give_its_few_nodes_away() -> None:
    """Node 0 heard 7, 8 and 9; without silo 2 it would hear 7 and 8, and know what 9 said."""
    mine = agreement()
    mine.want(FORWARD, mine.here)
    meet(mine, 0, 1)
    mine.want(FORWARD, mine.here)
    assert mine.heard(FORWARD).tolist() == [0, 0, 0]
    assert mine.few[FORWARD] == 3
    # Back again, it hears what it heard before, which tells nothing new.
    meet(mine, 0, 1, 2)
    mine.want(FORWARD, mine.here)
    assert mine.heard(FORWARD).tolist() == [3, 2, 0]
    # A silo that was not there at first is not found out about by its return.
    late = agreement()
    meet(late, 0, 1)
    late.want(FORWARD, late.here)
    assert late.heard(FORWARD).tolist() == [2, 0, 0]
    meet(late, 0, 1, 2)
    late.want(FORWARD, late.here)
    assert late.heard(FORWARD).tolist() == [0, 2, 0]  # node 1 has heard nothing yet


def test_such_a_sum_is_heard_with_noise_where_that_is_chosen() -> None:
    mine = agreement(with_noise=True)
    mine.want(FORWARD, mine.here)
    meet(mine, 0, 1)
    mine.want(FORWARD, mine.here)
    assert mine.heard(FORWARD).tolist() == [2, 1, 1]
    assert mine.state()[f"noised rows/{FORWARD}"].tolist() == [True, True, True]


def test_the_last_stage_compares_numbers_with_a_loss() -> None:
    for after, heard in ((3, 2), (2, 0), (1, 0)):  # three had one: none is lost, one, two
        mine = agreement()
        mine.want(BACKWARD, mine.here)
        mine.want(LAST, mine.hears[BACKWARD], np.array([3, 2, 0]))
        assert mine.heard(LAST).tolist() == [3, 2, 0]
        meet(mine, 0, 1)
        mine.want(LAST, mine.here, np.array([after, 0, 0]))
        assert mine.heard(LAST).tolist()[0] == heard


def test_what_was_heard_before_is_remembered_by_a_checkpoint() -> None:
    mine = agreement()
    mine.want(FORWARD, mine.here)
    other = agreement()
    other.restore(mine.state())
    meet(other, 0, 1)
    other.want(FORWARD, other.here)
    assert other.heard(FORWARD).tolist() == [0, 0, 0]


@given(st.lists(st.sets(st.integers(1, 4), max_size=4), min_size=1, max_size=5), st.integers(1, 4))
def test_no_sums_of_a_node_tell_few_neighbours_apart(
    attendance: list[set[int]], least: int
) -> None:
    rng = np.random.default_rng(len(attendance) + 10 * least)
    edges = Edges(np.repeat(np.arange(3), 8), rng.integers(1, 5, 24), np.arange(24))
    messages = SecretMessages("silo-0", 0, NODES, Secrecy("relay", 1, 0, 28), None)
    minimum = dict.fromkeys((INPUT, FORWARD, BACKWARD, LAST), least)
    mine = Consent(messages, edges, minimum, with_noise=False, together=True)
    heard: list[set[int]] = [set(), set(), set()]
    sums: list[list[set[int]]] = [[], [], []]
    for there in attendance:
        keys = torch.zeros(len(there) + 1, 32, dtype=torch.uint8)
        members = torch.tensor([0, *sorted(there)])
        messages.meet(Keys("pass", False, members, keys, 30, 0))
        mine.begin()
        mine.want(FORWARD, mine.here)
        for node in range(3):
            heard[node] = set(np.flatnonzero(mine.hears[FORWARD] & (edges.rows == node)).tolist())
            if heard[node]:
                sums[node].append(heard[node])
    for node in range(3):
        groups = Counter(tuple(each in one for one in sums[node]) for each in range(24))
        groups.pop(tuple(False for _ in sums[node]))
        # Sums can be added and taken off each other: those in the same ones stay together.
        assert all(size >= least for size in groups.values())
