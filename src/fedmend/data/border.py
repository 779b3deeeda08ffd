"""A silo's border: its edges to nodes of other silos, for methods whose devices know them.

Remote nodes go by pseudonyms, and so do the silo's own towards others: 63 bits of a hash over silo
and id, which both ends of an edge can compute and whoever does not know the ids cannot read. (Who
can guess ids can check the guess: a pseudonym is no encryption.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import GraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmend.data.partition import Partition


def pseudonyms(silo: str, ids: Iterable[Any]) -> NDArray[np.int64]:
    """The pseudonyms of a silo's nodes."""
    # One by one, the only loop over nodes at set-up: hashes that hide have no array form.
    head = hashlib.blake2b(silo.encode() + b"\0", digest_size=8)
    found = []
    for each in ids:
        digest = head.copy()
        digest.update(str(each).encode())
        found.append(int.from_bytes(digest.digest(), "little") >> 1)
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Border:
    """What one silo knows of its edges to others.

    nodes: the pseudonym of each of its own nodes, by row.
    rows, silos, remote: for every edge its own row, the other silo's name as a place in `names`,
        and the other node's pseudonym.
    """

    nodes: NDArray[np.int64]
    names: tuple[str, ...]
    rows: NDArray[np.int64]
    silos: NDArray[np.int64]
    remote: NDArray[np.int64]

    def arrays(self) -> list[NDArray[np.int64]]:
        """All of it but the names, for a digest."""
        parts = (self.nodes, self.rows, self.silos, self.remote)
        return [np.ascontiguousarray(part) for part in parts]


def borders_of(partition: Partition) -> dict[str, Border]:
    """Every silo's border, from a partition whose whole graph is known."""
    cut = partition.cross_edges
    if partition.whole is None or partition.assignment is None:  # cross_edges has refused it
        raise GraphError("the whole graph of this partition is not known")
    ids, assignment, names = partition.whole.node_ids, partition.assignment, partition.names
    pseudonym = np.zeros(len(ids), dtype=np.int64)
    row = np.zeros(len(ids), dtype=np.int64)
    for name in names:
        nodes = partition.rows(name)
        pseudonym[nodes] = pseudonyms(name, ids[nodes])
        row[nodes] = np.arange(len(nodes))
    own, remote = np.concatenate([cut, cut[::-1]], axis=1)
    found = {}
    for number, name in enumerate(names):
        mine = assignment[own] == number
        found[name] = Border(
            pseudonym[partition.rows(name)],
            names,
            row[own[mine]],
            assignment[remote[mine]],
            pseudonym[remote[mine]],
        )
    return found


def edge_digests(border: Border, name: str, run: str) -> dict[str, str]:
    """A hash of a silo's edges to each other silo, the same for the two: where nobody sees both.

    It is another one in every run. Who can guess all edges between two silos can check the guess.
    """
    found = {}
    for number, other in enumerate(border.names):
        if other == name:
            continue
        there = border.silos == number
        ends = [border.nodes[border.rows[there]], border.remote[there]]
        pairs = np.stack(ends if name < other else ends[::-1])
        pairs = pairs[:, np.lexsort(pairs)]
        digest = hashlib.sha256("\0".join([run, *sorted((name, other)), ""]).encode())
        digest.update(np.ascontiguousarray(pairs, dtype="<i8").data)
        found[other] = digest.hexdigest()
    return found


def check_borders(borders: Mapping[str, Border]) -> None:
    """Refuse borders that do not agree: every edge stands in both of its silos' borders."""
    everyone = [border.nodes for border in borders.values()]
    where = np.repeat(np.arange(len(everyone)), [len(nodes) for nodes in everyone])
    ids = np.concatenate(everyone)
    if len(np.unique(ids)) != len(ids):
        raise GraphError("two nodes have the same pseudonym: a node stands in two silos")
    order = np.argsort(ids)
    ids, where = ids[order], where[order]
    places = {name: place for place, name in enumerate(borders)}
    own = np.concatenate([border.nodes[border.rows] for border in borders.values()])
    remote = np.concatenate([border.remote for border in borders.values()])
    silo = np.concatenate(
        [
            np.array([places[name] for name in border.names], dtype=np.int64)[border.silos]
            for border in borders.values()
        ]
    )
    teller = np.repeat(np.arange(len(places)), [len(b.rows) for b in borders.values()])
    at = np.minimum(np.searchsorted(ids, remote), len(ids) - 1)
    wrong = np.flatnonzero((ids[at] != remote) | (where[at] != silo))
    names = list(places)
    if len(wrong):
        first = wrong[0]
        raise GraphError(
            f"the border of {names[teller[first]]} has an edge to a node of {names[silo[first]]} "
            "that is not there"
        )
    one = np.lexsort((remote, own))
    other = np.lexsort((own, remote))
    same = len(one) == len(other) and np.array_equal(own[one], remote[other])
    if not (same and np.array_equal(remote[one], own[other])):
        said = set(zip(own.tolist(), remote.tolist(), strict=True))
        edge = next(e for e in range(len(own)) if (int(remote[e]), int(own[e])) not in said)
        raise GraphError(
            f"the border of {names[teller[edge]]} has an edge to a node of {names[silo[edge]]}, "
            "whose border does not have it: the two silos must list the same edges"
        )
