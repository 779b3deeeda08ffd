"""Graphs with something added or left out, while generators learn and classifiers train."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmend.data.sampling import Adjacency, Hop
from fedmend.graph import Graph, offsets, row_entries, spans
from fedmend.mending.reconstruction import rows_as_dense


def copies_of_isolated(graph: Graph, least_degree: int, most: int) -> tuple[Tensor, Tensor]:
    """For nodes that see fewer than `least_degree` neighbours, copies of themselves to make it up.

    Returns the copies' features and the node of each, as a generator would; `most` per node.
    """
    wanted = (least_degree - graph.degree).clamp(0, most)
    owner = torch.repeat_interleave(torch.arange(graph.num_nodes), wanted)
    return rows_as_dense(graph.x, owner), owner


def without_nodes(graph: Graph, kept: Tensor) -> Adjacency:
    """The edges between nodes that are kept: whoever is not hears nobody and is not heard."""
    row = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    both = kept[row] & kept[graph.col]
    count = torch.bincount(row[both], minlength=graph.num_nodes)
    return Adjacency(offsets(count), graph.col[both])


def estimated_missing(graph: Graph, most: int) -> Tensor:
    """How many neighbours each node misses by what the cut did to the whole silo; `most` at most.

    Where nobody was alone before a random cut, the share p of nodes that see nobody is on average
    at most the share of the edges that were cut: a node with a single edge is alone with just that
    chance, others with a smaller one. So who still sees d neighbours misses d p / (1 - p) or more.
    Who sees nobody surely misses one. (Nodes that were alone before the cut raise p; that is an
    error the silo cannot see.)
    """
    alone = graph.degree == 0
    seen = max(graph.num_nodes - int(alone.sum()), 1)
    ratio = int(alone.sum()) / seen
    return torch.where(alone, 1.0, graph.degree * ratio).clamp(max=most)


def with_self_loops(graph: Graph, times: Tensor) -> Adjacency:
    """The graph's edges, and so many more from every node to itself.

    Where a node sees nobody, to hear itself is the same in every layer as to hear a copy of itself
    that has it as its only neighbour, and takes no other row of features.
    """
    rowptr = offsets(graph.degree + times)
    col = torch.empty(int(rowptr[-1]), dtype=torch.int64)
    col[spans(rowptr[:-1], graph.degree)] = graph.col
    itself = torch.repeat_interleave(torch.arange(graph.num_nodes), times)
    col[spans(rowptr[:-1] + graph.degree, times)] = itself
    return Adjacency(rowptr, col)


def mended_hops(
    graph: Graph, owners: Tensor, nodes: Tensor, layers: int, joined: Tensor | None = None
) -> Sequence[Hop]:
    """Hops that compute `nodes` from the mended graph, without building it as a `Graph`.

    For training steps in which the generated neighbours are other ones every time. joined: which
    of the generated are joined to their owners; by default all.
    """
    if joined is None:
        joined = torch.ones(len(owners), dtype=torch.bool)
    total = graph.num_nodes + len(owners)
    new = torch.arange(graph.num_nodes, total)[joined]
    owners = owners[joined]
    extra = torch.bincount(owners, minlength=graph.num_nodes)
    # Every node's own neighbours first, then its generated ones; a generated node has its owner.
    degree = torch.cat([graph.degree + extra, joined.long()])
    rowptr = offsets(degree)
    starts = rowptr[: graph.num_nodes]
    col = torch.empty(int(rowptr[-1]), dtype=torch.int64)
    col[spans(starts, graph.degree)] = graph.col
    order = torch.argsort(owners, stable=True)
    col[spans(starts + graph.degree, extra)] = new[order]
    col[rowptr[new]] = owners
    hops: list[Hop] = []
    for _ in range(layers - 1):
        at, count = row_entries(rowptr, nodes)
        needed = torch.unique(torch.cat([nodes, col[at]]))
        place = torch.empty(total, dtype=torch.int64)
        place[needed] = torch.arange(len(needed))
        rows = offsets(count), place[col[at]], place[nodes]
        hops.insert(0, Hop(*rows, degree[nodes], degree[needed]))
        nodes = needed
    at, count = row_entries(rowptr, nodes)
    return [Hop(offsets(count), col[at], nodes, degree[nodes], degree), *hops]
