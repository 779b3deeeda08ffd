"""Subgraph-level privacy leakage (HiFGL, appendix A.1): who is seen across edges between silos."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmend.data.partition import Partition


@dataclass(frozen=True)
class SubgraphLeakage:
    """Nodes that another silo would see through an edge between silos.

    nodes: how many each silo has. share: their mean share of a silo's nodes, the paper's figure.
    """

    nodes: dict[str, int]
    share: float


def subgraph_leakage(partition: Partition) -> SubgraphLeakage:
    """The leakage of a method that shows silos the nodes at the other end of their edges.

    No method here does: they drop such edges (FedAvg) or hide what crosses them (HiFGL).
    """
    names = partition.names
    seen = {name: len(np.unique(partition.borders[name].rows)) for name in names}
    shares = [seen[name] / partition.silos[name].num_nodes for name in names]
    return SubgraphLeakage(seen, float(np.mean(shares)))
