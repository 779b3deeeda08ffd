"""`Partition`: the silos of one federation; and `split`, which cuts a graph into silos."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmend.data.border import Border, borders_of
from fedmend.data.masks import has_roles, random_masks
from fedmend.data.partitioners import assigned, check_split_options, owner_names, owners
from fedmend.errors import DataError, GraphError, SettingsError, UnknownNameError
from fedmend.graph import UNKNOWN_LABEL, Graph, feature_arrays, select_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_SILOS = 5


@dataclass(frozen=True)
class SiloStatistics:
    """How much a silo has."""

    name: str
    nodes: int
    edges: int
    train_nodes: int
    val_nodes: int
    test_nodes: int
    labels: dict[str, int]
    """Nodes of each class; classes the silo does not have count 0."""


@dataclass(frozen=True)
class PartitionStatistics:
    """The papers' table 1: M, |V_i|, |E_i|, the links cut (ΔE) and their share of all (ΔE/|E|)."""

    silos: int
    mean_nodes: float
    mean_edges: float
    missing_links: int | None
    """None where the whole graph is not known."""
    missing_share: float | None
    per_silo: tuple[SiloStatistics, ...]


def silo_statistics(name: str, graph: Graph) -> SiloStatistics:
    """Count a silo's nodes, edges, roles and labels."""
    labels = graph.y[graph.y != UNKNOWN_LABEL]
    counts = torch.bincount(labels, minlength=graph.num_classes)
    return SiloStatistics(
        name=name,
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        train_nodes=int(graph.train_mask.sum()),
        val_nodes=int(graph.val_mask.sum()),
        test_nodes=int(graph.test_mask.sum()),
        labels=dict(zip(graph.label_names, counts.tolist(), strict=True)),
    )


def check_disjoint(silos: dict[str, Graph]) -> None:
    """Raise if a node id stands in two silos."""
    ids = np.concatenate([graph.node_ids for graph in silos.values()])
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(same):
        ends = np.cumsum([graph.num_nodes for graph in silos.values()])
        pair = np.searchsorted(ends, order[same[0] : same[0] + 2], side="right")
        names = list(silos)
        raise GraphError(
            f"silos {names[pair[0]]} and {names[pair[1]]} both have a node {ids[order[same[0]]]}; "
            "every node belongs to one silo"
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """The silos of one federation and, where it is known, the whole graph they were cut from.

    Args:
        silos: each silo's own graph by name: its nodes, and the edges between them.
        how: the way it was cut, "louvain" or "folders" for instance.
        seed: the seed of the cut, if it had one.
        whole: the whole graph, for evaluation only; no silo ever sees it.
        assignment: the silo of every node of `whole`, as its place in `silos`. A silo's nodes come
            in the order they have in `whole`.
        given_borders: each silo's edges to others, where the silos know them by themselves.
    """

    silos: dict[str, Graph]
    how: str
    seed: int | None
    whole: Graph | None = None
    assignment: NDArray[np.int64] | None = None
    given_borders: Mapping[str, Border] | None = None

    def __post_init__(self) -> None:
        if not self.silos:
            raise DataError("a partition needs at least one silo")
        first, one = next(iter(self.silos.items()))
        named: str | None = None
        for name, graph in self.silos.items():
            if graph.num_features != one.num_features:
                raise DataError(
                    f"silo {first} has {one.num_features} features and silo {name} has "
                    f"{graph.num_features}; all silos need the same features"
                )
            if graph.label_names != one.label_names:
                raise DataError(
                    f"silos {first} and {name} name different classes: "
                    f"{_short(one.label_names)} and {_short(graph.label_names)}"
                )
            if graph.feature_names is None:
                continue
            named = named or name
            if graph.feature_names != self.silos[named].feature_names:
                raise DataError(f"silos {named} and {name} name their features differently")
        if (self.whole is None) != (self.assignment is None):
            raise DataError("a partition has both, the whole graph and the assignment, or neither")
        if self.whole is not None:
            self._check_whole(self.whole)

    def _check_whole(self, whole: Graph) -> None:
        assignment = self.assignment
        if assignment is None or assignment.shape != (whole.num_nodes,):
            shape = None if assignment is None else assignment.shape
            raise DataError(f"assignment: {shape} for {whole.num_nodes} nodes of the whole graph")
        if assignment.min() < 0 or assignment.max() >= len(self.silos):
            raise DataError(f"assignment: silo numbers run from 0 to {len(self.silos) - 1}")
        check_disjoint(self.silos)
        for rows, (name, graph) in zip(self._rows, self.silos.items(), strict=True):
            if not np.array_equal(graph.node_ids, whole.node_ids[rows]):
                raise DataError(
                    f"silo {name}: its node ids are not those the assignment gives it, in the "
                    "order of the whole graph"
                )

    def __repr__(self) -> str:
        return f"Partition({len(self.silos)} silos, {self.how}, seed {self.seed})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.silos)

    def rows(self, name: str) -> NDArray[np.int64]:
        """Where the nodes of a silo stand in the whole graph, in the silo's order."""
        if name not in self.silos:
            raise UnknownNameError("silo", name, self.silos)
        return self._rows[self.names.index(name)]

    @cached_property
    def _rows(self) -> list[NDArray[np.int64]]:
        if self.assignment is None:
            raise DataError("the whole graph of this partition is not known")
        return rows_by_silo(self.assignment, len(self.silos))

    @cached_property
    def cross_edges(self) -> NDArray[np.int64]:
        """The edges that were cut, each once, as node indices of the whole graph: 2 x ΔE."""
        if self.whole is None or self.assignment is None:
            raise DataError(
                "the whole graph of this partition is not known, so neither are its missing links"
            )
        edges = self.whole.edges.numpy()
        return edges[:, self.assignment[edges[0]] != self.assignment[edges[1]]]

    def with_surroundings(self, name: str, hops: int) -> Graph:
        """A silo's graph with every node of other silos within so many hops, and their edges.

        For measuring only: it is what no silo can see. The silo's own nodes come first, as they
        are; the others have no role, and their edges beyond the last hop are left out.
        """
        whole = self.whole
        if whole is None:
            raise DataError("the whole graph of this partition is not known")
        source, target = whole.edges
        reached = torch.zeros(whole.num_nodes, dtype=torch.bool)
        own = torch.from_numpy(self.rows(name))
        reached[own] = True
        inside = reached.clone()
        for _ in range(hops):
            inside = reached.clone()
            reached[target[inside[source]]] = True
            reached[source[inside[target]]] = True
        is_own = torch.zeros(whole.num_nodes, dtype=torch.bool)
        is_own[own] = True
        nodes = torch.cat([own, torch.nonzero(reached & ~is_own)[:, 0]])
        place = torch.full((whole.num_nodes,), -1, dtype=torch.int64)
        place[nodes] = torch.arange(len(nodes))
        seen = (inside[source] | inside[target]) & reached[source] & reached[target]
        return Graph(
            select_rows(whole.x, nodes),
            torch.stack([place[source[seen]], place[target[seen]]]),
            torch.where(is_own[nodes], whole.y[nodes], UNKNOWN_LABEL),
            train_mask=(whole.train_mask & is_own)[nodes],
            val_mask=(whole.val_mask & is_own)[nodes],
            test_mask=(whole.test_mask & is_own)[nodes],
            node_ids=whole.node_ids[nodes.numpy()],
            label_names=whole.label_names,
            feature_names=whole.feature_names,
        )

    @cached_property
    def borders(self) -> Mapping[str, Border]:
        """Each silo's edges to others: from the whole graph, or as the silos gave them."""
        if self.whole is not None:
            return borders_of(self)
        if self.given_borders is None:
            raise DataError(
                "these silos do not come with their edges to each other: give every silo's folder "
                "a table border (src, remote_silo, remote_id)"
            )
        return self.given_borders

    def statistics(self) -> PartitionStatistics:
        """The row of the papers' table 1, and each silo's share of the data."""
        graphs = self.silos.values()
        missing = None if self.whole is None else self.cross_edges.shape[1]
        edges = 0 if self.whole is None else self.whole.num_edges
        return PartitionStatistics(
            silos=len(self.silos),
            mean_nodes=sum(graph.num_nodes for graph in graphs) / len(self.silos),
            mean_edges=sum(graph.num_edges for graph in graphs) / len(self.silos),
            missing_links=missing,
            missing_share=None if missing is None else missing / max(edges, 1),
            per_silo=tuple(silo_statistics(name, graph) for name, graph in self.silos.items()),
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of name, node ids, edges, labels and roles of every silo, sorted by name.

        Equal for two results means that they were computed on the same cut. Ids count as text.
        """
        digest = hashlib.sha256()
        for name, graph in sorted(self.silos.items()):
            ids = graph.node_ids.astype(str).tolist()
            digest.update(json.dumps([name, graph.label_names, ids]).encode())
            for part in (
                graph.rowptr,
                graph.col,
                graph.y,
                graph.train_mask,
                graph.val_mask,
                graph.test_mask,
            ):
                digest.update(np.ascontiguousarray(part.numpy()).tobytes())
        return digest.hexdigest()

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of what `hash` leaves out: the features, and the edges between silos.

        Two runs are the same where both are. A cut alone may be shared by different features.
        """
        digest = hashlib.sha256()
        for name, graph in sorted(self.silos.items()):
            digest.update(f"{name} {tuple(graph.x.shape)} {graph.x.dtype}".encode())
            for part in feature_arrays(graph.x):
                digest.update(part.data)
        if self.whole is not None:
            digest.update(np.ascontiguousarray(self.cross_edges).data)
        for _, border in sorted((self.given_borders or {}).items()):
            for part in border.arrays():
                digest.update(part.data)
        return digest.hexdigest()


def _short(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def rows_by_silo(assignment: NDArray[np.int64], silos: int) -> list[NDArray[np.int64]]:
    """The nodes of every silo, in ascending order."""
    sizes = np.bincount(assignment, minlength=silos)
    return np.split(np.argsort(assignment, kind="stable"), np.cumsum(sizes)[:-1])


def silo_names(silos: int) -> list[str]:
    """silo-0, silo-1, ..., padded with zeros so that they sort in order."""
    width = len(str(silos - 1))
    return [f"silo-{silo:0{width}d}" for silo in range(silos)]


def split(
    graph: Graph,
    silos: int | None = None,
    how: str = "louvain",
    *,
    seed: int = 0,
    ratio: Sequence[float] = (0.6, 0.2, 0.2),
    **options: Any,
) -> Partition:
    """Cut a graph into silos.

    Args:
        graph: the whole graph.
        silos: how many; 5 if left out, or the number of owners for `how="column"`.
        how: a name from `fedmend splits`.
        seed: the same seed gives the same silos and roles.
        ratio: shares of train, val and test nodes, drawn on the whole graph if no node has a role
            yet, so that a node keeps its role in every silo and method.
        options: what the partitioner takes: `tolerance` (louvain, leiden), `alpha`
            (label-dirichlet), `column` (column).
    """
    check_split_options(how, options)
    if seed < 0:
        raise SettingsError(f"seed: expected 0 or more, got {seed}")
    by_owner = how == "column"
    if silos is None:
        silos = (
            len(owners(options.get("column"), graph.num_nodes)[1]) if by_owner else DEFAULT_SILOS
        )
    if silos < 1:
        raise SettingsError(f"silos: at least 1 is needed, got {silos}")
    if silos > graph.num_nodes:
        raise SettingsError(
            f"silos: {silos} is more than the graph has nodes ({graph.num_nodes}); use fewer silos"
        )
    if not has_roles(graph) and bool((graph.y != UNKNOWN_LABEL).any()):
        graph = random_masks(graph, ratio, seed)
    assignment = assigned(how, graph, silos, np.random.default_rng(seed), **options)
    names = owner_names(graph.num_nodes, **options) if by_owner else silo_names(silos)
    rows = rows_by_silo(assignment, silos)
    graphs = [graph.subgraph(torch.from_numpy(nodes)) for nodes in rows]
    return Partition(dict(zip(names, graphs, strict=True)), how, seed, graph, assignment)
