"""Which neighbours each layer of a GNN listens to: all of them, or a few drawn anew each time.

A `Hop` is one layer's bipartite graph in CSR form. Row i is the i-th node the layer computes; its
columns are rows of the layer's input. A network of K layers takes K hops, the widest first.

Drawing follows the rule of FedDEP's appendix: `fan_out` neighbours without replacement where the
degree is greater than the fan-out, with replacement otherwise; a node without neighbours hears
nobody. Everything is vectorised over the CSR arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedmend.graph import Graph, offsets, row_entries

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALL_NEIGHBOURS = 0
"""The fan-out that means: every neighbour."""


@dataclass(frozen=True)
class Adjacency:
    """Who can hear whom, where it is not (or not always) the graph's own edges.

    CSR as in a `Graph`, whose nodes it has. A node may hear itself here, which no `Graph` has.
    """

    rowptr: Tensor
    col: Tensor

    @property
    def num_nodes(self) -> int:
        return len(self.rowptr) - 1

    @cached_property
    def degree(self) -> Tensor:
        return self.rowptr[1:] - self.rowptr[:-1]


Edges: TypeAlias = Graph | Adjacency


@dataclass(frozen=True)
class Neighbours:
    """For a list of nodes, the neighbours each one listens to: CSR with graph node indices."""

    rowptr: Tensor
    col: Tensor


@dataclass(frozen=True)
class Hop:
    """One layer's neighbourhood.

    rowptr, col: row i listens to the input rows col[rowptr[i]:rowptr[i+1]].
    own: where the computed nodes themselves are among the input rows: their number if they are
        the first rows (in order), else their indices.
    degree, source_degree: the true degree of the computed nodes and of the input rows.
    reused: this hop serves many steps, so what layers derive from it is worth keeping in `cache`.
    """

    rowptr: Tensor
    col: Tensor
    own: int | Tensor
    degree: Tensor
    source_degree: Tensor
    reused: bool = False
    cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def rows(self) -> int:
        return len(self.rowptr) - 1

    @property
    def sources(self) -> int:
        return len(self.source_degree)

    @property
    def heard(self) -> Tensor:
        """How many values each row listens to (with replacement: counted as often as drawn)."""
        return self.rowptr[1:] - self.rowptr[:-1]

    def own_rows(self, h: Tensor) -> Tensor:
        """The computed nodes' own rows of the input."""
        if isinstance(self.own, int):
            return h if self.own == len(h) else h[: self.own]
        # Not h[own]: its backward pass sorts, index_select's only adds.
        return h.index_select(0, self.own)

    def to(self, device: torch.device) -> Hop:
        """The same hop on another device; itself if it is there already."""
        if self.rowptr.device == device:
            return self
        return Hop(
            self.rowptr.to(device),
            self.col.to(device),
            self.own if isinstance(self.own, int) else self.own.to(device),
            self.degree.to(device),
            self.source_degree.to(device),
            self.reused,
        )


def every_neighbour(graph: Edges, nodes: Tensor) -> Neighbours:
    """All neighbours of `nodes`."""
    at, count = row_entries(graph.rowptr, nodes)
    return Neighbours(offsets(count), graph.col[at])


def sample_neighbours(
    graph: Edges, nodes: Tensor, fan_out: int, generator: torch.Generator
) -> Neighbours:
    """`fan_out` neighbours of each of `nodes`, drawn by the rule in the module's text.

    In numpy but for the random numbers: on a batch's few hundred rows torch spends three times as
    long, nearly all of it on starting its operations.
    """
    rowptr, which = graph.rowptr.numpy(), nodes.numpy()
    start = rowptr[which]
    degree = rowptr[which + 1] - start
    # float64: a float32 uniform cannot address more than 2^24 neighbours without bias.
    uniform = torch.rand(len(which), fan_out, generator=generator, dtype=torch.float64).numpy()
    picks = (uniform * degree[:, None]).astype(np.int64)  # with replacement
    crowded = np.flatnonzero(degree > fan_out)
    if len(crowded):
        picks[crowded] = _floyd(uniform[crowded], degree[crowded])
    linked = degree > 0
    ends = np.zeros(len(which) + 1, dtype=np.int64)
    np.cumsum(linked * fan_out, out=ends[1:])
    chosen = graph.col.numpy()[(start[:, None] + picks)[linked].reshape(-1)]
    return Neighbours(torch.from_numpy(ends), torch.from_numpy(chosen))


def _floyd(uniform: NDArray[np.float64], degree: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct picks from range(degree) in every row, by Floyd's method: one pass per pick.

    Pick i draws t from 0..top with top = degree - fan_out + i, and takes `top` itself if t was
    taken before: every subset of the range is equally likely.
    """
    fan_out = uniform.shape[1]
    picks = np.empty(uniform.shape, dtype=np.int64)
    for i in range(fan_out):
        top = degree - fan_out + i
        drawn = (uniform[:, i] * (top + 1)).astype(np.int64)
        taken = (picks[:, :i] == drawn[:, None]).any(axis=1)
        picks[:, i] = np.where(taken, top, drawn)
    return picks


Draw = Callable[[int, Tensor], Neighbours]
"""The neighbours that the layer of this number (0 = first) uses for these nodes."""


def drawing(graph: Edges, fan_out: int, generator: torch.Generator) -> Draw:
    """A `Draw` that samples anew at every call, or takes all neighbours if `fan_out` is 0."""
    if fan_out == ALL_NEIGHBOURS:
        return lambda _, nodes: every_neighbour(graph, nodes)
    return lambda _, nodes: sample_neighbours(graph, nodes, fan_out, generator)


def whole_graph_hop(graph: Edges) -> Hop:
    """The hop in which every node is computed and hears all its neighbours."""
    return Hop(graph.rowptr, graph.col, graph.num_nodes, graph.degree, graph.degree, reused=True)


def hop_to(graph: Edges, nodes: Tensor) -> Hop:
    """The hop in which `nodes` are computed from everybody, hearing all their neighbours."""
    chosen = every_neighbour(graph, nodes)
    degree = graph.degree
    return Hop(chosen.rowptr, chosen.col, nodes, degree[nodes], degree, reused=True)


def gathered_hops(
    graph: Edges, batch: Tensor, layers: int, draw: Draw
) -> tuple[Sequence[Hop], Tensor]:
    """Hops that compute only what `batch` needs, and the nodes whose features go in."""
    return _gathered(graph, batch, range(layers), draw)


def hops_from_everybody(graph: Edges, batch: Tensor, layers: int, draw: Draw) -> Sequence[Hop]:
    """The same, but everybody's features go in and only rows after the first layer are gathered."""
    hops, nodes = _gathered(graph, batch, range(1, layers), draw)
    chosen = draw(0, nodes)
    return [Hop(chosen.rowptr, chosen.col, nodes, graph.degree[nodes], graph.degree), *hops]


def _gathered(
    graph: Edges, batch: Tensor, layers: range, draw: Draw
) -> tuple[Sequence[Hop], Tensor]:
    """Hops of some layers, the last of which computes `batch`, and the nodes of the first's input.

    Built from the last layer back: each layer's input rows are its own nodes first, then the
    neighbours not yet among them.
    """
    place = torch.full((graph.num_nodes,), -1, dtype=torch.int64)
    degree = graph.degree
    nodes = batch
    place[nodes] = torch.arange(len(nodes))
    hops: list[Hop] = []
    for layer in reversed(layers):
        chosen = draw(layer, nodes)
        new = torch.unique(chosen.col[place[chosen.col] < 0])
        place[new] = torch.arange(len(nodes), len(nodes) + len(new))
        sources = torch.cat([nodes, new])
        hops.insert(
            0, Hop(chosen.rowptr, place[chosen.col], len(nodes), degree[nodes], degree[sources])
        )
        nodes = sources
    return hops, nodes


def all_rows_hops(graph: Edges, batch: Tensor, layers: int, draw: Draw) -> Sequence[Hop]:
    """Hops that compute every node in all layers but the last, which computes `batch`.

    Cheaper than gathering where a batch's neighbourhood covers most of the graph anyway.
    """
    everyone = torch.arange(graph.num_nodes)
    degree = graph.degree
    hops = []
    for layer in range(layers - 1):
        chosen = draw(layer, everyone)
        hops.append(Hop(chosen.rowptr, chosen.col, graph.num_nodes, degree, degree))
    chosen = draw(layers - 1, batch)
    hops.append(Hop(chosen.rowptr, chosen.col, batch, degree[batch], degree))
    return hops


def covers_most(graph: Edges, batch: int, layers: int, fan_out: int) -> bool:
    """Whether a batch's neighbourhood covers the graph so often over that computing all rows pays.

    Draws overlap: a neighbourhood of as many draws as there are nodes still leaves out a third of
    them, so gathering stays cheaper up to about twice that (measured on Cora, CiteSeer, PubMed).
    """
    # The rows the last hidden layer would compute.
    return _draws(graph, batch, layers - 1, fan_out) >= 2 * graph.num_nodes


def needs_many(graph: Edges, batch: int, layers: int, fan_out: int) -> bool:
    """Whether a batch takes in the features of so many nodes that taking everybody's pays.

    Sparse features that stay where they are keep their transpose for the backward pass; gathered
    ones are copied and multiplied from the other side, at several times the cost of a row.
    """
    return _draws(graph, batch, layers, fan_out) >= graph.num_nodes


def _draws(graph: Edges, batch: int, layers: int, fan_out: int) -> int:
    """How many nodes a batch would reach within so many layers if no two drew the same."""
    if fan_out == ALL_NEIGHBOURS:
        fan_out = int(graph.degree.float().mean().ceil())
    return int(batch * (fan_out + 1) ** layers)
