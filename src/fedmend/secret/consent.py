"""Agreeing on which nodes hear their neighbours in other silos, before anything is said to them.

A sum over too few neighbours gives them away: a node below the minimum asks its neighbours not to
speak to it (or to speak with noise). Only the neighbours' silos get to know the wish. Stages:

- `input`: raw features; `forward`: every later layer.
- `backward`: gradients go the way back, so only to nodes that spoke forward.
- `last`: gradients of the last layer, which only training nodes have: here the minimum counts
  neighbours with a loss. How many there are is itself counted by a secret pass.

Silos get lost, and a round is repeated without them: the same values are summed up again, and two
sums of the same node differ by what the lost silo's nodes said. So a node does not hear a sum that
differs from one it heard before by fewer neighbours than the minimum, either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import FederationError
from fedmend.secret.session import Edges, Hearing, Route, SecretMessages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

INPUT, FORWARD, BACKWARD, LAST = "input", "forward", "backward", "last"
STAGES = (INPUT, FORWARD, BACKWARD, LAST)

_MOST_SUMS = 60
"""Different sums that are remembered: who comes and goes more often ends up hearing nothing."""


class Consent:
    """One silo's part of the agreement; every mask is over the edges it may use.

    hears: edges along which its own node hears; speaks: along which its own node speaks.
    few: own nodes below the minimum, by stage.
    """

    def __init__(
        self,
        messages: SecretMessages,
        edges: Edges,
        minimum: Mapping[str, int],
        with_noise: bool,
        together: bool,
    ) -> None:
        self._messages, self._all, self._together = messages, edges, together
        self._minimum, self._with_noise = minimum, with_noise
        self._nodes = len(messages.nodes)
        self.members: tuple[int, ...] = ()
        self.here = np.zeros(len(edges.rows), dtype=np.bool_)
        self.hears: dict[str, Mask] = {}
        self.speaks: dict[str, Mask] = {}
        self._noised_rows: dict[str, Mask] = {}
        self._noised: dict[str, Mask] = {}
        self._before: dict[str, list[tuple[Mask, Numbers]]] = {}
        self.few: dict[str, int] = {}

    def begin(self) -> None:
        """Start anew with the silos that take part now."""
        self.members = self._messages.members
        self.here = np.isin(self._all.silos, self.members)

    # As a hearer

    def want(self, stage: str, candidates: Mask, counted: Numbers | None = None) -> None:
        """Decide which own nodes hear along their candidate edges.

        counted: what the minimum counts instead of edges, by row; rows that hear with noise
        already were not counted and stay so.
        """
        rows = self._all.rows
        edges = np.bincount(rows[candidates], minlength=self._nodes)
        if counted is None:
            count, settled = edges, np.zeros(self._nodes, dtype=np.bool_)
        else:
            count, settled = counted, self._noised_rows[BACKWARD]
        enough = (count >= self._minimum[stage]) & ~settled
        enough &= ~self._differs_by_few(stage, candidates, count)
        few = ((count > 0) & ~enough) | (settled & (edges > 0))
        noised = few if self._with_noise else settled
        self.few[stage] = int(few.sum())
        self._noised_rows[stage] = noised
        self.hears[stage] = candidates & (enough | noised)[rows]
        plainly = candidates & enough[rows]
        before = self._before.setdefault(stage, [])
        if not any(np.array_equal(plainly, each) for each, _ in before):
            before.append((plainly, count))

    def _differs_by_few(self, stage: str, candidates: Mask, count: Numbers) -> Mask:
        """Own nodes that could tell too few neighbours from this sum and those heard before.

        Whatever is added to or taken from whole sums, neighbours that were in the same ones stay
        together: it is enough that there are many of each such group.
        """
        rows, before = self._all.rows, self._before.get(stage, [])
        if stage == LAST:  # of those with a loss only the number is known, of all together
            return self._may_differ_by_few(candidates, count)
        if len(before) > _MOST_SUMS:
            return np.ones(self._nodes, dtype=np.bool_)
        in_which = candidates.astype(np.int64)
        for number, (heard, _) in enumerate(before, start=1):
            in_which += heard.astype(np.int64) << number
        at = np.flatnonzero(in_which)
        groups, sizes = np.unique(np.stack([rows[at], in_which[at]]), axis=1, return_counts=True)
        found = np.zeros(self._nodes, dtype=np.bool_)
        found[groups[0, sizes < self._minimum[stage]]] = True
        return found

    def _may_differ_by_few(self, candidates: Mask, count: Numbers) -> Mask:
        """The same of the last stage: at most one change, and of none or many with a loss."""
        rows, least = self._all.rows, self._minimum[LAST]
        known = np.zeros(self._nodes, dtype=np.bool_)
        few, changes = known.copy(), np.zeros(self._nodes, dtype=np.int64)
        for heard, counted in self._before.get(LAST, []):
            did_hear = np.bincount(rows[heard], minlength=self._nodes) > 0
            lost = np.bincount(rows[heard & ~candidates], minlength=self._nodes) > 0
            new = np.bincount(rows[candidates & ~heard], minlength=self._nodes) > 0
            change = np.abs(counted - count)
            known |= did_hear & ~lost & ~new
            few |= did_hear & ((lost & new) | ((lost | new) & (change > 0) & (change < least)))
            changes += did_hear & (lost | new)
        return (few | (changes > 1)) & ~known & (least > 1)

    def wishes(self, stages: Sequence[str]) -> dict[int, bytes]:
        """What each silo is asked: the pseudonyms to speak to, plainly or with noise."""
        edges = self._all
        found = {}
        for silo in self.members:
            lists: list[Numbers] = []
            for stage in stages:
                there = self.hears[stage] & (edges.silos == silo)
                noised = self._noised_rows[stage][edges.rows]
                for mask in (there & ~noised, there & noised):
                    asked = self._messages.nodes[np.unique(edges.rows[mask])]
                    lists += [np.array([len(asked)]), np.sort(asked)]
            found[silo] = np.concatenate(lists).astype(np.int64).tobytes()
        return found

    # As a speaker

    def grant(self, stages: Sequence[str], candidates: Mask, letters: Mapping[int, bytes]) -> None:
        """Speak along those candidate edges whose other end asked for it, and no other."""
        if set(letters) != set(self.members):
            raise FederationError("wishes did not arrive from every silo: a message was lost")
        for stage in stages:
            self.speaks[stage] = np.zeros(len(candidates), dtype=np.bool_)
            self._noised[stage] = np.zeros(len(candidates), dtype=np.bool_)
        for silo, data in letters.items():
            lists = _lists(data, 2 * len(stages))
            there = candidates & (self._all.silos == silo)
            for number, stage in enumerate(stages):
                plain = there & np.isin(self._all.remote, lists[2 * number])
                noised = there & np.isin(self._all.remote, lists[2 * number + 1]) & ~plain
                self.speaks[stage] |= plain | noised
                self._noised[stage] |= noised

    # Together

    def compile(self, stages: Sequence[str]) -> None:
        """Work out routes and what to expect for stages that are agreed on."""
        for stage in stages:
            speaking = self.speaks[stage]
            self._messages.routes[stage] = Route(
                self._all.where(speaking),
                self._noised[stage][speaking],
                self._nodes,
                self._together,
            )
            self._messages.hearings[stage] = Hearing(
                self._messages.nodes, self._all.where(self.hears[stage]), self._together
            )

    def heard(self, stage: str) -> Tensor:
        """How many neighbours each own node hears along these edges."""
        rows = self._all.rows[self.hears[stage]]
        return torch.from_numpy(np.bincount(rows, minlength=self._nodes))

    # Saving

    def state(self) -> dict[str, Tensor]:
        """What was agreed on."""
        kept = {"members": torch.tensor(self.members)}
        for name, masks in self._kept().items():
            kept |= {f"{name}/{stage}": torch.from_numpy(mask) for stage, mask in masks.items()}
        for stage, before in self._before.items():
            for number, (heard, count) in enumerate(before):
                kept[f"before/{stage}/{number}/heard"] = torch.from_numpy(heard)
                kept[f"before/{stage}/{number}/count"] = torch.from_numpy(count)
        return kept | {f"few/{stage}": torch.tensor(n) for stage, n in self.few.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        self.members = tuple(state["members"].tolist())
        self.here = np.isin(self._all.silos, self.members)
        for name, masks in self._kept().items():
            for stage in STAGES:
                if f"{name}/{stage}" in state:
                    masks[stage] = state[f"{name}/{stage}"].numpy()
        self._before = {stage: _saved_before(stage, state) for stage in STAGES}
        self.few = {
            stage: int(state[f"few/{stage}"]) for stage in STAGES if f"few/{stage}" in state
        }
        self.compile([stage for stage in STAGES if stage in self.speaks and stage in self.hears])

    def _kept(self) -> dict[str, dict[str, Mask]]:
        return {
            "hears": self.hears,
            "speaks": self.speaks,
            "noised rows": self._noised_rows,
            "noised": self._noised,
        }


def _saved_before(stage: str, state: Mapping[str, Tensor]) -> list[tuple[Mask, Numbers]]:
    found: list[tuple[Mask, Numbers]] = []
    while f"before/{stage}/{len(found)}/heard" in state:
        at = f"before/{stage}/{len(found)}"
        found.append((state[f"{at}/heard"].numpy(), state[f"{at}/count"].numpy()))
    return found


def _lists(data: bytes, count: int) -> list[Numbers]:
    """Lists of pseudonyms, each after its length."""
    if len(data) % 8:
        raise FederationError("a list of wishes is cut off")
    numbers = np.frombuffer(data, dtype=np.int64)
    lists, at = [], 0
    for _ in range(count):
        length = int(numbers[at]) if at < len(numbers) else -1
        if not 0 <= length <= len(numbers) - at - 1:
            raise FederationError("a list of wishes is malformed")
        lists.append(numbers[at + 1 : at + 1 + length])
        at += 1 + length
    return lists
