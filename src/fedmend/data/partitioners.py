"""How a graph is cut into silos: functions from a graph to one silo number per node.

A partitioner takes the graph, the number of silos and a seeded generator, and returns the silo
(0 to silos - 1) of every node; no silo is left empty. `PARTITIONERS` lists them all; more come from
outside (docs/extend.md).

Louvain and Leiden follow FedSage and FedDEP: communities are found, and merged into silos of
similar size. For N nodes and M silos, the rule is:

1. Communities are placed one by one, the largest first, in the silo that is emptiest so far.
2. A community fits if it leaves that silo at most (1 + tolerance) N/M nodes, and leaves enough
   nodes over to fill every silo to (1 - tolerance) N/M.
3. One that does not fit is replaced by the communities found inside it; if there are none, it is
   cut in two along a breadth-first order.
4. Nodes without edges come last and level the silos.

So every silo ends between (1 - tolerance) and (1 + tolerance) N/M nodes, rounded outwards, and only
communities that are too large are split. The tolerance is 0.1; most often sizes end much closer.

Above `MANY_EDGES`, Louvain's communities are searched by Leiden's algorithm, which is Louvain's
with a refinement and a faster way to move nodes: igraph's Louvain does not always settle there.
On a block model of 100,000 nodes and 1,000,000 edges it takes 250 s, Leiden 7 s for better ones.
"""

from __future__ import annotations

import heapq
import inspect
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, floor
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedmend.data.lean_igraph import igraph
from fedmend.errors import GraphError, SettingsError, UnknownNameError
from fedmend.graph import UNKNOWN_LABEL
from fedmend.plugins.registry import Registry, first_line

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from fedmend.graph import Graph

    Nodes = NDArray[np.int64]

TOLERANCE = 0.1
DIRICHLET_ALPHA = 0.5
MANY_EDGES = 500_000

# igraph draws from one generator for the whole process.
_IGRAPH = threading.Lock()


@contextmanager
def _igraph_seeded(rng: np.random.Generator) -> Iterator[None]:
    """Let igraph draw from our generator, then from Python's `random` again, its default."""
    module = igraph()
    with _IGRAPH:
        module.set_random_number_generator(random.Random(int(rng.integers(2**63))))
        try:
            yield
        finally:
            module.set_random_number_generator(random)


def _groups(nodes: Nodes, membership: Nodes) -> list[Nodes]:
    """`nodes` grouped by membership number, each group in the order of `nodes`."""
    order = np.argsort(membership, kind="stable")
    starts = np.flatnonzero(np.diff(membership[order])) + 1
    return np.split(nodes[order], starts)


class _Communities:
    """Community search in a graph and inside parts of it, at a cost of the part alone."""

    def __init__(self, graph: Graph, algorithm: str) -> None:
        self.rowptr: Nodes = graph.rowptr.numpy()
        self.col: Nodes = graph.col.numpy()
        self.algorithm = algorithm
        self._place: Nodes = np.full(graph.num_nodes, -1, dtype=np.int64)

    def _inside(self, nodes: Nodes) -> tuple[Nodes, Nodes]:
        """Every edge between two of `nodes`, once, as positions in `nodes`."""
        start = self.rowptr[nodes]
        count = self.rowptr[nodes + 1] - start
        source = np.repeat(np.arange(len(nodes)), count)
        # Where every neighbour stands in `col`: the start of its node's run, plus a running number.
        at = np.arange(len(source)) + np.repeat(start - (np.cumsum(count) - count), count)
        self._place[nodes] = np.arange(len(nodes))
        target = self._place[self.col[at]]
        self._place[nodes] = -1
        keep = source < target  # an end outside is -1
        return source[keep], target[keep]

    def search(self, nodes: Nodes) -> list[Nodes]:
        """The communities of the graph induced by `nodes`."""
        graph = igraph().Graph(n=len(nodes), edges=np.column_stack(self._inside(nodes)))
        if self.algorithm == "leiden" or graph.ecount() > MANY_EDGES:
            found = graph.community_leiden(objective_function="modularity", n_iterations=2)
        else:
            found = graph.community_multilevel()
        return _groups(nodes, np.asarray(found.membership, dtype=np.int64))

    def split(self, nodes: Nodes, size: int) -> list[Nodes]:
        """The communities inside a community; if there is one only, `size` nodes and the others."""
        parts = self.search(nodes)
        if len(parts) > 1:
            return parts
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        # Breadth first, all components in one call: a run of this order has few edges to the rest.
        source, target = self._inside(nodes)
        shape = (len(nodes), len(nodes))
        half = sp.coo_matrix((np.ones(len(source), dtype=np.int8), (source, target)), shape=shape)
        order = reverse_cuthill_mckee((half + half.T).tocsr(), symmetric_mode=True)
        return [np.sort(nodes[order[:size]]), np.sort(nodes[order[size:]])]


def _level(sizes: Nodes, nodes: int) -> Nodes:
    """The silos of `nodes` further nodes, so that the smallest silos are filled up evenly."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    silos = np.arange(1, len(sizes) + 1)
    # Filling the k smallest up to the size of the k-th takes this many nodes.
    needed = silos * ordered - np.cumsum(ordered)
    filled = int(np.searchsorted(needed, nodes, side="right"))
    height, more = divmod(int(ordered[:filled].sum()) + nodes, filled)
    target = np.full(filled, height)
    target[:more] += 1
    return np.repeat(order[:filled], target - ordered[:filled])


def _is_number(value: Any) -> bool:
    """Options may come from a command line, where anything may be written."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _by_communities(
    graph: Graph, silos: int, rng: np.random.Generator, algorithm: str, tolerance: float
) -> Nodes:
    if not (_is_number(tolerance) and 0 <= tolerance < 1):
        raise SettingsError(f"tolerance: expected a number from 0 to below 1, got {tolerance}")
    least = max(1, floor(graph.num_nodes / silos * (1 - tolerance)))
    most = ceil(graph.num_nodes / silos * (1 + tolerance))
    communities = _Communities(graph, algorithm)
    degree = np.diff(communities.rowptr)
    linked = np.flatnonzero(degree > 0)
    isolated = rng.permutation(np.flatnonzero(degree == 0))

    assignment: Nodes = np.empty(graph.num_nodes, dtype=np.int64)
    emptiest = [(0, silo) for silo in range(silos)]
    # Nodes that no silo needs to reach `least`. While this is not negative, all can reach it.
    spare = graph.num_nodes - silos * least
    with _igraph_seeded(rng):
        # The largest first; among equals, the one with the smallest node.
        found = communities.search(linked) if len(linked) else []
        queue = [(-len(nodes), int(nodes[0]), nodes) for nodes in found]
        heapq.heapify(queue)
        while queue:
            _, _, nodes = heapq.heappop(queue)
            size, silo = emptiest[0]
            lacking = max(least - size, 0)
            room = min(most - size, lacking + spare)
            if len(nodes) <= room:
                assignment[nodes] = silo
                spare -= max(len(nodes) - lacking, 0)
                heapq.heapreplace(emptiest, (size + len(nodes), silo))
                continue
            for part in communities.split(nodes, room):
                heapq.heappush(queue, (-len(part), int(part[0]), part))
    sizes = np.array([size for size, _ in sorted(emptiest, key=lambda entry: entry[1])])
    if len(isolated):
        assignment[isolated] = _level(sizes, len(isolated))
    return assignment


def louvain(
    graph: Graph, silos: int, rng: np.random.Generator, *, tolerance: float = TOLERANCE
) -> Nodes:
    """Louvain communities merged into silos of similar size (see the module's text)."""
    return _by_communities(graph, silos, rng, "louvain", tolerance)


def leiden(
    graph: Graph, silos: int, rng: np.random.Generator, *, tolerance: float = TOLERANCE
) -> Nodes:
    """Leiden communities (by modularity) merged into silos of similar size."""
    return _by_communities(graph, silos, rng, "leiden", tolerance)


def uniform(graph: Graph, silos: int, rng: np.random.Generator) -> Nodes:
    """Nodes at random, in silos whose sizes differ by one at most."""
    return rng.permutation(np.arange(graph.num_nodes) % silos)


def _fill_empty(assignment: Nodes, silos: int, rng: np.random.Generator) -> Nodes:
    """Give every empty silo one random node of the silo that is largest at that time."""
    sizes = np.bincount(assignment, minlength=silos)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        assignment[rng.choice(np.flatnonzero(assignment == largest))] = empty
        sizes[largest] -= 1
        sizes[empty] = 1
    return assignment


def label_dirichlet(
    graph: Graph, silos: int, rng: np.random.Generator, *, alpha: float = DIRICHLET_ALPHA
) -> Nodes:
    """Each class spread over the silos by shares drawn from Dirichlet(alpha).

    A small alpha gives silos of few classes, a large one equal silos. Nodes without a label are
    spread evenly at random.
    """
    if not (_is_number(alpha) and 1e-3 <= alpha <= 1e6):
        raise SettingsError(f"alpha: expected a number from 0.001 to 1000000, got {alpha}")
    assignment: Nodes = np.empty(graph.num_nodes, dtype=np.int64)
    labels = graph.y.numpy()
    unlabelled = np.flatnonzero(labels == UNKNOWN_LABEL)
    assignment[unlabelled] = rng.permutation(np.arange(len(unlabelled)) % silos)
    for label in range(graph.num_classes):
        nodes = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(rng.dirichlet(np.full(silos, alpha)))
        ends = np.round(ends / ends[-1] * len(nodes))
        assignment[nodes] = np.searchsorted(ends, np.arange(len(nodes)), side="right")
    return _fill_empty(assignment, silos, rng)


def owners(column: ArrayLike | None, nodes: int) -> tuple[Nodes, NDArray[Any]]:
    """Silo of every node by an ownership column, and the distinct values in the order of silos."""
    if column is None:
        raise SettingsError("the split 'column' needs column=..., the owner of every node")
    values = np.asarray(column)
    if values.shape != (nodes,):
        raise GraphError(f"column: expected one owner per node ({nodes}), got {values.shape}")
    if values.dtype.kind not in "iub":
        unknown = {"O": ["", "None", "nan", "<NA>"], "f": ["nan"]}.get(values.dtype.kind, [""])
        values = values.astype(str)
        missing = np.flatnonzero(np.isin(values, unknown))
        if len(missing):
            raise GraphError(f"column: node {missing[0]} has no owner")
    distinct, silo = np.unique(values, return_inverse=True)
    return silo.astype(np.int64), distinct


def column(
    graph: Graph, silos: int, rng: np.random.Generator, *, column: ArrayLike | None = None
) -> Nodes:
    """One silo per distinct value of an ownership column, in sorted order."""
    del rng
    silo, distinct = owners(column, graph.num_nodes)
    if len(distinct) != silos:
        raise SettingsError(
            f"column: {len(distinct)} different owners for {silos} silos; "
            f"leave the number of silos out, or set it to {len(distinct)}"
        )
    return silo


def owner_names(nodes: int, column: ArrayLike | None = None) -> list[str]:
    """Silo names from the values of an ownership column, safe as folder names, all different."""
    names: list[str] = []
    taken = {"evaluation"}  # a folder of a written partition
    for value in owners(column, nodes)[1].tolist():
        plain = re.sub(r"[^\w.-]+", "_", str(value)).strip("._")[:100] or "silo"
        name, number = plain, 2
        # Some file systems take A and a for the same name.
        while name.casefold() in taken:
            name, number = f"{plain}-{number}", number + 1
        taken.add(name.casefold())
        names.append(name)
    return names


def metis(graph: Graph, silos: int, rng: np.random.Generator) -> Nodes:
    """METIS: equal silos with as few edges between them as it can find."""
    try:
        import pymetis
    except ImportError as error:
        raise SettingsError(
            "the split 'metis' needs the package pymetis; install it with: "
            'pip install "fedmend[metis]"'
        ) from error
    seed = int(rng.integers(2**31))
    if silos == 1:
        return np.zeros(graph.num_nodes, dtype=np.int64)
    adjacency = pymetis.CSRAdjacency(graph.rowptr.numpy(), graph.col.numpy())
    _, membership = pymetis.part_graph(silos, adjacency, options=pymetis.Options(seed=seed))
    return _fill_empty(np.asarray(membership, dtype=np.int64), silos, rng)


@dataclass(frozen=True)
class Partitioner:
    """An entry of the registry; `function(graph, silos, rng, **options)` gives silo numbers."""

    function: Callable[..., Nodes]
    description: str
    options: tuple[str, ...] = ()


_OURS = {
    "louvain": Partitioner(
        louvain, "Louvain communities merged into silos of similar size", ("tolerance",)
    ),
    "leiden": Partitioner(
        leiden, "Leiden communities merged into silos of similar size", ("tolerance",)
    ),
    "random": Partitioner(uniform, "nodes at random, silos of equal size"),
    "label-dirichlet": Partitioner(
        label_dirichlet,
        "each class spread by Dirichlet(alpha) shares; small alpha: few classes",
        ("alpha",),
    ),
    "column": Partitioner(column, "one silo per value of an ownership column", ("column",)),
    "metis": Partitioner(metis, "METIS: equal silos, few edges cut (needs fedmend[metis])"),
}


def options_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """What a function takes by name only."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def _accepted(name: str, given: Any) -> Partitioner:
    """A partitioner from outside: a function, whose keyword-only parameters are its options."""
    if not callable(given):
        raise SettingsError(
            f"partitioner {name!r} must be a function (graph, silos, rng, *, options) that gives "
            f"a silo number per node, got {given!r:.80}"
        )
    return Partitioner(given, first_line(given), options_of(given))


PARTITIONERS: Registry[Partitioner] = Registry("partitioner", _OURS, _accepted)


def assigned(how: str, graph: Graph, silos: int, rng: np.random.Generator, **options: Any) -> Nodes:
    """The silo of every node by the partitioner of this name; no silo is empty."""
    with PARTITIONERS.running(how):
        found = np.asarray(PARTITIONERS[how].function(graph, silos, rng, **options))
    fits = found.shape == (graph.num_nodes,) and found.dtype.kind in "iu"
    if not fits or not np.array_equal(np.unique(found), np.arange(silos)):
        raise SettingsError(
            f"the split {how!r} must give every node ({graph.num_nodes}) a silo from 0 to "
            f"{silos - 1} and leave none empty: correct it, or choose another --split"
        )
    return found.astype(np.int64, copy=False)


def check_split_options(how: str, options: Iterable[str]) -> None:
    """Refuse a split nobody knows, or an option that the split does not have."""
    if how not in PARTITIONERS:
        raise UnknownNameError("split", how, PARTITIONERS)
    known = PARTITIONERS[how].options
    for option in options:
        if option not in known:
            if not known:
                raise SettingsError(f"the split {how!r} has no options, got {option!r}")
            raise UnknownNameError(f"option of the split {how!r}:", option, known)
