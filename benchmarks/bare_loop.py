"""FedAvg as a bare loop: a yardstick of the same arithmetic with nothing in the way.

Full batch, plain tensors, CSR products whose transposes are computed beforehand, torch's fused
Adam, averaging in place. No messages, no counting, no validation, no checks: fedmend's rounds are
measured against it, and it follows the same models so that the arithmetic is the same.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.graph import Graph, csr_tensor, is_sparse, scipy_csr


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ grads[0], None, None


class _Matrix:
    """A constant sparse matrix and its transpose."""

    def __init__(self, csr: Tensor) -> None:
        self.csr = csr
        self.transposed = csr_tensor(scipy_csr(csr).T.tocsr())

    def __matmul__(self, dense: Tensor) -> Tensor:
        product: Tensor = _Product.apply(dense, self.csr, self.transposed)  # type: ignore[no-untyped-call]  # torch's
        return product


class _Silo:
    def __init__(self, graph: Graph, backbone: str, weights: list[Tensor], lr: float) -> None:
        self.x = _Matrix(graph.x if is_sparse(graph.x) else graph.x.to_sparse_csr())
        self.adjacency = _Matrix(_operator(graph, backbone))
        self.train = torch.nonzero(graph.train_mask)[:, 0]
        self.y = graph.y[self.train]
        self.forward = self._sage if backbone == "sage" else self._gcn
        self.weights = [weight.clone().requires_grad_() for weight in weights]
        self.optimizer = torch.optim.Adam(self.weights, lr, fused=True)

    def _sage(self) -> Tensor:
        own, heard, bias, own_2, heard_2, bias_2 = self.weights
        h = torch.relu(self.x @ own + self.adjacency @ (self.x @ heard) + bias)
        return h @ own_2 + self.adjacency @ (h @ heard_2) + bias_2

    def _gcn(self) -> Tensor:
        weight, bias, weight_2, bias_2 = self.weights
        h = torch.relu(self.adjacency @ (self.x @ weight) + bias)
        return self.adjacency @ (h @ weight_2) + bias_2

    def epoch(self) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.forward().index_select(0, self.train), self.y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        self.optimizer.step()


def _operator(graph: Graph, backbone: str) -> Tensor:
    """Mean over the neighbours, or GCN's normalised sum over the closed neighbourhood."""
    target, source = graph.edge_index
    if backbone == "gcn":
        everyone = torch.arange(graph.num_nodes)
        target, source = torch.cat([target, everyone]), torch.cat([source, everyone])
        scale = torch.rsqrt(graph.degree + 1.0)
        values = scale[target] * scale[source]
    else:
        values = 1.0 / graph.degree[target]
    shape = (graph.num_nodes, graph.num_nodes)
    return torch.sparse_coo_tensor(torch.stack([target, source]), values, shape).to_sparse_csr()


def seconds_per_round(
    silos: Partition, backbone: str, *, rounds: int, local_epochs: int, hidden: int, lr: float
) -> float:
    """FedAvg weighted by training nodes; only the rounds are timed."""
    graphs = list(silos.silos.values())
    inputs, classes = graphs[0].num_features, graphs[0].num_classes
    generator = torch.Generator().manual_seed(0)
    shapes = [(inputs, hidden), (hidden,), (hidden, classes), (classes,)]
    if backbone == "sage":
        shapes = [(inputs, hidden), *shapes[:2], (hidden, classes), *shapes[2:]]
    shared = [0.05 * torch.randn(shape, generator=generator) for shape in shapes]
    members = [_Silo(graph, backbone, shared, lr) for graph in graphs]
    nodes = sum(len(member.train) for member in members)
    started = time.perf_counter()
    for _ in range(rounds):
        for member in members:
            with torch.no_grad():
                for own, weight in zip(member.weights, shared, strict=True):
                    own.copy_(weight)
            for _ in range(local_epochs):
                member.epoch()
        with torch.no_grad():
            for position, weight in enumerate(shared):
                weight.zero_()
                for member in members:
                    weight.add_(member.weights[position], alpha=len(member.train) / nodes)
    return (time.perf_counter() - started) / rounds
