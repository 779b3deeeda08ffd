"""A contextual stochastic block model: graphs of any size for tests and for measuring growth.

Every class has the same number of nodes (to within one). Of all simple graphs with the wanted
number of edges inside classes and between classes, one is drawn uniformly, so the edge count and
the homophily are exact, not expected values. A node's features are its class's mean, a random
direction of length `signal`, plus Gaussian noise of unit variance.

Edges are drawn as ranks: the node pairs inside classes are numbered 0, 1, 2, ..., so are those
between classes; distinct numbers are drawn and turned back into pairs. No step loops over nodes
or edges, and none holds more than a few arrays as long as the edge list.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmend.errors import SettingsError
from fedmend.graph import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

_MAX_NODES = 100_000_000  # above it, pair numbers times eight leave the exact range of a float64

_MOST = 1e9  # features, or a mean degree or length of class means: far beyond any use

_STREAM = 0x6373626D  # "csbm"


def csbm(
    nodes: int = 1000,
    degree: float | None = None,
    edges: int | None = None,
    classes: int = 4,
    features: int = 32,
    homophily: float = 0.8,
    signal: float = 1.0,
    seed: int = 0,
) -> Graph:
    """Draw a graph from the contextual stochastic block model.

    Args:
        nodes: how many nodes.
        degree: mean degree; 10 unless `edges` is given instead.
        edges: exact number of undirected edges, in place of `degree`.
        classes: how many classes, all of the same size.
        features: how many features a node has.
        homophily: share of the edges that join two nodes of one class.
        signal: length of the class means; the noise has unit variance in every direction.
        seed: the same seed gives the same graph.
    """
    count = _check(nodes, degree, edges, classes, features, homophily, signal, seed)
    # A stream of its own: roles drawn with the same seed would otherwise repeat the permutation
    # that gives the nodes their classes, and leave a class without training nodes.
    rng = np.random.default_rng([seed, _STREAM])
    size = np.full(classes, nodes // classes, dtype=np.int64)
    size[: nodes % classes] += 1
    # Places 0 .. nodes-1 are sorted by class; `order` says which node stands in which place.
    order = rng.permutation(nodes)
    y = np.empty(nodes, dtype=np.int64)
    y[order] = np.repeat(np.arange(classes), size)

    within = round(homophily * count)
    pairs = np.empty((2, count), dtype=np.int64)
    _draw_within(rng, size, within, pairs[:, :within])
    _draw_between(rng, size, count - within, pairs[:, within:])
    pairs[0] = order[pairs[0]]
    pairs[1] = order[pairs[1]]

    means = rng.standard_normal((classes, features), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    x += means[y]
    names = [str(label) for label in range(classes)]
    return Graph(torch.from_numpy(x), pairs, y, label_names=names)


def _check(
    nodes: int,
    degree: float | None,
    edges: int | None,
    classes: int,
    features: int,
    homophily: float,
    signal: float,
    seed: int,
) -> int:
    """Refuse what cannot be drawn; the number of edges."""
    whole = {"nodes": nodes, "classes": classes, "features": features, "seed": seed}
    if edges is not None:
        whole["edges"] = edges
    for name, value in whole.items():
        least = 0 if name in ("seed", "edges") else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SettingsError(f"csbm: {name} must be a whole number from {least}, got {value!r}")
    if nodes > _MAX_NODES:
        raise SettingsError(f"csbm: nodes must be at most {_MAX_NODES}, got {nodes}")
    if classes > nodes:
        raise SettingsError(f"csbm: {classes} classes need at least {classes} nodes, got {nodes}")
    real = {"homophily": homophily, "signal": signal}
    if degree is not None:
        real["degree"] = degree
    for name, number in real.items():
        if not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
            raise SettingsError(f"csbm: {name} must be a number from 0, got {number!r}")
    for name, number in {"features": features, **real}.items():
        if number > _MOST:
            raise SettingsError(f"csbm: {name} must be at most {_MOST:.0f}, got {number!r}")
    if homophily > 1:
        raise SettingsError(f"csbm: homophily must be from 0 to 1, got {homophily}")
    if degree is not None and edges is not None:
        raise SettingsError("csbm: give degree or edges, not both")

    count = edges if edges is not None else round(nodes * (10 if degree is None else degree) / 2)
    within = round(homophily * count)
    small, larger = nodes // classes, nodes % classes
    room_within = larger * (small + 1) * small // 2 + (classes - larger) * small * (small - 1) // 2
    room_between = nodes * (nodes - 1) // 2 - room_within
    for what, wanted, room in (
        ("inside classes", within, room_within),
        ("between classes", count - within, room_between),
    ):
        if wanted > room:
            raise SettingsError(
                f"csbm: {wanted} edges {what} are wanted, but {nodes} nodes in {classes} classes "
                f"have only {room} such pairs; ask for fewer edges or another homophily"
            )
    return count


def _distinct(rng: np.random.Generator, population: int, count: int) -> Indices:
    """`count` distinct numbers below `population`, uniform over all such sets."""
    if count > population // 2:
        # Drawing would meet old numbers too often: leave out a drawn set instead.
        keep = np.ones(population, dtype=np.bool_)
        keep[_distinct(rng, population, population - count)] = False
        return np.flatnonzero(keep)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        # Aim a little above what is missing, so that one or two passes do; a draw is new with
        # probability 1 - |drawn| / population, at least a half.
        missing = count - len(drawn)
        more = int(missing * (1 + 2 * count / population)) + 16
        drawn = np.concatenate([drawn, rng.integers(0, population, more)])
        drawn.sort()
        fresh = np.empty(len(drawn), dtype=np.bool_)
        fresh[0] = True
        np.not_equal(drawn[1:], drawn[:-1], out=fresh[1:])
        drawn = drawn[fresh]
    if len(drawn) > count:
        surplus = rng.choice(len(drawn), len(drawn) - count, replace=False, shuffle=False)
        drawn = np.delete(drawn, surplus)
    return drawn


def _blocks(room: Indices, ranks: Indices) -> tuple[Indices, Indices]:
    """The block every sorted rank falls in, and its rank within that block."""
    first = np.concatenate([[0], np.cumsum(room)])
    block = np.repeat(np.arange(len(room)), np.diff(np.searchsorted(ranks, first)))
    return block, ranks - first[block]


def _draw_within(rng: np.random.Generator, size: Indices, count: int, out: Indices) -> None:
    """`count` distinct pairs of places of one class, into `out`."""
    room = size * (size - 1) // 2
    ranks = _distinct(rng, int(room.sum()), count)
    block, rank = _blocks(room, ranks)
    # Pairs of a class in the order (1,0), (2,0), (2,1), (3,0), ...: the higher place is the
    # largest h with h(h-1)/2 <= rank; the root may be off by one where a float64 rounds.
    higher = ((1 + np.sqrt(1 + 8 * rank.astype(np.float64))) / 2).astype(np.int64)
    higher -= higher * (higher - 1) // 2 > rank
    higher += higher * (higher + 1) // 2 <= rank
    start = (np.cumsum(size) - size)[block]
    out[0] = start + higher
    out[1] = start + rank - higher * (higher - 1) // 2


def _draw_between(rng: np.random.Generator, size: Indices, count: int, out: Indices) -> None:
    """`count` distinct pairs of places of two classes, into `out`."""
    end = np.cumsum(size)
    later = end[-1] - end  # places of all later classes: the second place of a pair
    room = size * later
    ranks = _distinct(rng, int(room.sum()), count)
    block, rank = _blocks(room, ranks)
    width = np.maximum(later, 1)[block]
    out[0] = (end - size)[block] + rank // width
    out[1] = end[block] + rank % width
