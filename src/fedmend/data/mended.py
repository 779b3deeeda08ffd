"""Mended graphs: generated neighbours become real extra nodes, each with one undirected edge.

In two public ports of FedSage+ the edge runs one way only, so that a generated neighbour never
reaches a prediction. Here it is an edge like any other.
"""

from __future__ import annotations

import scipy.sparse as sp
import torch
from torch import Tensor

from fedmend.graph import Graph, is_sparse, scipy_csr


def mended(graph: Graph, owners: Tensor, features: Tensor) -> Graph:
    """The graph with one more node per row of `features`, joined to the node owners[i].

    The graph's own nodes keep their rows, features, edges, labels and roles; the new ones come
    after them and have neither label nor role. Generated features have hardly a zero: where sparse
    ones would take more memory with them than dense ones, they become dense.
    """
    if not len(owners):
        return graph
    nodes, new = graph.num_nodes, len(owners)
    added = features.detach()
    # A stored value of a sparse matrix takes 12 bytes, of a dense one 4.
    sparse = is_sparse(graph.x)
    if sparse and 3 * (graph.x.values().numel() + added.numel()) < (nodes + new) * added.shape[1]:
        x = sp.vstack([scipy_csr(graph.x), sp.csr_matrix(added.numpy())], format="csr")
    else:
        x = torch.cat([graph.x.to_dense() if sparse else graph.x, added])
    edges = torch.cat([graph.edges, torch.stack([owners, torch.arange(nodes, nodes + new)])], 1)
    nobody = torch.zeros(new, dtype=torch.bool)
    return Graph(
        x,
        edges,
        torch.cat([graph.y, torch.full((new,), -1)]),
        train_mask=torch.cat([graph.train_mask, nobody]),
        val_mask=torch.cat([graph.val_mask, nobody]),
        test_mask=torch.cat([graph.test_mask, nobody]),
        label_names=graph.label_names,
        feature_names=graph.feature_names,
    )
