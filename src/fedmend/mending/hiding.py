"""Hiding some of a silo's nodes, so that what other silos hide can be learned from examples.

FedSage+ (section 4.1) and FedDEP impair a silo's graph: a share h of the nodes and all their
edges are taken out, and the generator learns to give their neighbours back what they lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmend.graph import Graph, offsets, row_entries


@dataclass(frozen=True)
class Impaired:
    """A graph without its hidden nodes, and who lost whom.

    graph: what is left of the graph.
    kept: its nodes, as rows of the whole graph.
    rowptr, lost: kept node i lost the neighbours lost[rowptr[i]:rowptr[i+1]], rows of the whole
        graph.
    """

    graph: Graph
    kept: Tensor
    rowptr: Tensor
    lost: Tensor

    @property
    def missing(self) -> Tensor:
        """How many neighbours each kept node lost (n_v)."""
        return self.rowptr[1:] - self.rowptr[:-1]


def hide(graph: Graph, share: float, generator: torch.Generator) -> Impaired:
    """Take out a share of the nodes, drawn evenly; at least one node stays."""
    count = min(round(share * graph.num_nodes), graph.num_nodes - 1)
    hidden = torch.zeros(graph.num_nodes, dtype=torch.bool)
    hidden[torch.randperm(graph.num_nodes, generator=generator)[:count]] = True
    kept = torch.nonzero(~hidden)[:, 0]
    at, degree = row_entries(graph.rowptr, kept)
    neighbours = graph.col[at]
    is_lost = hidden[neighbours]
    owner = torch.repeat_interleave(torch.arange(len(kept)), degree)
    missing = torch.bincount(owner[is_lost], minlength=len(kept))
    return Impaired(graph.subgraph(kept), kept, offsets(missing), neighbours[is_lost])
