"""A way to cut a graph, and a graph to cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedmend import Graph


def by_degree(
    graph: Graph, silos: int, rng: np.random.Generator, *, largest_first: bool = True
) -> Any:
    """Silos of similar size, from the nodes with most edges to those with fewest."""
    order = rng.permutation(graph.num_nodes)  # decides among nodes of one degree
    order = order[np.argsort(graph.degree.numpy()[order], kind="stable")]
    if largest_first:
        order = order[::-1]
    found = np.empty(graph.num_nodes, dtype=np.int64)
    found[order] = np.arange(graph.num_nodes) * silos // graph.num_nodes
    return found


def caves(caves: int = 12, people: int = 8, seed: int = 0) -> Graph:
    """Caves whose people all know each other, in a ring; whether a cave is cold is the class."""
    nodes = caves * people
    cave = torch.arange(nodes) // people
    inside = (cave[:, None] == cave) & ~torch.eye(nodes, dtype=torch.bool)
    ring = torch.arange(caves) * people
    bridges = torch.stack([ring, (ring + people + 1) % nodes])
    edges = torch.cat([inside.nonzero().T, bridges, bridges.flip(0)], dim=1)
    cold = cave % 2
    noise = torch.randn(nodes, 5, generator=torch.Generator().manual_seed(seed))
    return Graph(noise + cold[:, None], edges, cold, label_names=["warm", "cold"])
