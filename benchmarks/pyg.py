"""Plain centralised training with PyTorch Geometric: what federating is measured against.

Full batch: SAGEConv or GCNConv on the whole graph, features dense and edges as `edge_index`, as
PyG's examples have it. Mini-batch: PyG's NeighborLoader needs compiled extras (pyg-lib or
torch-sparse), so batches are drawn with fedmend's sampler and handed to SAGEConv as bipartite
blocks; drawing is part of the time on both sides. Training only: no validation, no selection.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.sampling import Hop, drawing, gathered_hops
from fedmend.graph import Graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv, SAGEConv


class Net(torch.nn.Module):
    """Two layers of PyG's."""

    def __init__(
        self, backbone: str, inputs: int, hidden: int, classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        conv = SAGEConv if backbone == "sage" else GCNConv
        self.first, self.second = conv(inputs, hidden), conv(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Every node's scores."""
        h = torch.relu(self.first(x, edge_index))
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        scores: Tensor = self.second(h, edge_index)
        return scores

    def blocks(self, x: Tensor, hops: Any) -> Tensor:
        """The scores of a batch, from the hops drawn for it."""
        wide, narrow = hops
        h = torch.relu(self.first((x, x[: wide.rows]), _edge_index(wide)))
        scores: Tensor = self.second((h, h[: narrow.rows]), _edge_index(narrow))
        return scores


def _edge_index(hop: Hop) -> Tensor:
    target = torch.repeat_interleave(torch.arange(hop.rows), hop.heard)
    return torch.stack([hop.col, target])


def full_batch_seconds(
    graph: Graph, backbone: str, *, epochs: int, hidden: int, lr: float
) -> float:
    """Seconds of `epochs` full-batch steps."""
    data = graph.to_pyg()
    x, edge_index = data.x, data.edge_index
    model, optimizer = _made(graph, backbone, hidden, lr)
    started = time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        scores = model(x, edge_index)
        loss = F.cross_entropy(scores[graph.train_mask], graph.y[graph.train_mask])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
    return time.perf_counter() - started


def mini_batch_seconds(
    graph: Graph, *, epochs: int, hidden: int, lr: float, batch_size: int, fan_out: int
) -> float:
    """Seconds of `epochs` passes over the training nodes in sampled mini-batches."""
    x: Tensor = graph.to_pyg().x
    model, optimizer = _made(graph, "sage", hidden, lr)
    generator = torch.Generator().manual_seed(0)
    draw = drawing(graph, fan_out, generator)
    train = torch.nonzero(graph.train_mask)[:, 0]
    started = time.perf_counter()
    for _ in range(epochs):
        order = train[torch.randperm(len(train), generator=generator)]
        for batch in torch.split(order, batch_size):
            hops, nodes = gathered_hops(graph, batch, 2, draw)
            optimizer.zero_grad()
            loss = F.cross_entropy(model.blocks(x[nodes], hops), graph.y[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
    return time.perf_counter() - started


def _made(graph: Graph, backbone: str, hidden: int, lr: float) -> tuple[Net, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net(backbone, graph.num_features, hidden, graph.num_classes)
    return model, torch.optim.Adam(model.parameters(), lr)
