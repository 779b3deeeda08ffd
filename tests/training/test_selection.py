"""Which round's weights are kept."""

from __future__ import annotations

import math

import torch

from fedmend.training.selection import OwnBest, Training


def test_best_round_is_kept_and_of_equal_ones_the_later() -> None:
    state = Training({})
    for number, accuracy in enumerate([0.2, 0.6, 0.6, 0.5]):
        state.offer(number, {"w": torch.tensor(number)}, accuracy)
    assert (state.best_round, state.best_figure, int(state.best["w"])) == (2, 0.6, 2)


def test_without_validation_nodes_the_last_round_is_kept() -> None:
    state, own = Training({}), OwnBest("accuracy")
    for number in range(3):
        state.offer(number, {"w": torch.tensor(number)}, 0.0)
        own.offer({"w": torch.tensor(number)}, torch.tensor([0, 0]))
    assert int(state.best["w"]) == int(own.weights["w"]) == 2


def test_own_best_keeps_copies() -> None:
    """A silo offers views of its living model."""
    own, living = OwnBest("accuracy"), torch.zeros(1)
    for right, value in ((3, 1.0), (5, 2.0), (5, 3.0), (4, 4.0)):
        living.fill_(value)
        own.offer({"w": living}, torch.tensor([right, 9]))
    assert (own.figure, float(own.weights["w"])) == (5 / 9, 3.0)


def test_own_best_comes_back() -> None:
    own, again = OwnBest("accuracy"), OwnBest("accuracy")
    own.offer({"a/b": torch.ones(2)}, torch.tensor([4, 9]))
    again.restore(own.state())
    assert again.figure == 4 / 9, "to the bit: of equal rounds the later one is kept"
    assert again.weights.keys() == {"a/b"}
    assert not again.offer({"a/b": torch.zeros(2)}, torch.tensor([3, 9]))
    assert torch.equal(again.weights["a/b"], torch.ones(2))
    assert again.offer({"a/b": torch.zeros(2)}, torch.tensor([4, 9]))


def test_own_best_of_a_silo_that_never_trained_comes_back_empty() -> None:
    again = OwnBest("accuracy")
    again.restore(OwnBest("accuracy").state())
    assert (again.weights, again.figure) == ({}, -math.inf)
