"""FedAvg in the steps OpenFGL takes in a round, written anew with PyG, and fedmend's by turns.

OpenFGL is in no package index, so that it cannot run here. What it does in a round is public: every
client copies the weights, takes its full-batch epochs with PyG's layers on dense features (dropout,
Adam with weight decay), the server averages, and every client predicts once and computes losses and
accuracies of its training, validation and test nodes. Its printing and logging are left out.
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score
from torch import Tensor

from benchmarks.common import Row
from benchmarks.pyg import Net
from benchmarks.rounds import ratio, seconds_per_round, taking_turns
from fedmend.data.datasets import load
from fedmend.data.partition import Partition, split
from fedmend.graph import Graph

DROPOUT, WEIGHT_DECAY, LR = 0.5, 5e-4, 1e-2
"""OpenFGL's defaults."""

THREADS = 2
"""Of torch, as many as cores: what someone who starts OpenFGL gets. fedmend's rounds have one."""


def beside_openfgl_steps(given: dict[str, Any]) -> Row:
    """Seconds per round of both, and fedmend's as a share of the other's."""
    torch.set_num_threads(1)
    graph = load(given["dataset"], data_root=given["root"], download=False)
    silos = split(graph, given["silos"], "louvain")
    backbone, rounds, settings = given["backbone"], given["rounds"], given["settings"]
    seconds = taking_turns(
        f"{given['dataset']}, {backbone}, full batch, beside OpenFGL's steps",
        given["repeats"],
        {
            "one": lambda: seconds_per_round(silos, backbone, rounds, settings, workers=1),
            "steps": lambda: _seconds_per_round(
                silos, backbone, rounds, settings["local_epochs"], settings["hidden"]
            ),
        },
    )
    return {
        "beside_steps_seconds": statistics.median(seconds["one"]),
        "openfgl_steps_seconds": statistics.median(seconds["steps"]),
        "of_openfgl_steps": ratio(seconds["one"], seconds["steps"]),
    }


def _seconds_per_round(
    silos: Partition, backbone: str, rounds: int, local_epochs: int, hidden: int
) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        clients = [_Client(graph, backbone, hidden) for graph in silos.silos.values()]
        server = copy.deepcopy(clients[0].model)
        nodes = sum(len(client.y) for client in clients)
        started = time.perf_counter()
        for _ in range(rounds):
            for client in clients:
                client.train(server, local_epochs)
            _average(server, [(client.model, len(client.y) / nodes) for client in clients])
            for client in clients:
                client.scores()
        return (time.perf_counter() - started) / rounds
    finally:
        torch.set_num_threads(before)


class _Client:
    def __init__(self, graph: Graph, backbone: str, hidden: int) -> None:
        data = graph.to_pyg()
        self.x, self.edge_index, self.y = data.x, data.edge_index, graph.y
        self.masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        self.model = Net(backbone, graph.num_features, hidden, graph.num_classes, DROPOUT)
        self.optimizer = torch.optim.Adam(self.model.parameters(), LR, weight_decay=WEIGHT_DECAY)

    def train(self, server: Net, epochs: int) -> None:
        with torch.no_grad():
            for own, shared in zip(self.model.parameters(), server.parameters(), strict=True):
                own.copy_(shared)
        self.model.train()
        for _ in range(epochs):
            self.optimizer.zero_grad()
            loss = self._loss(self.model(self.x, self.edge_index), self.masks[0])
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            self.optimizer.step()

    @torch.no_grad()
    def scores(self) -> list[tuple[float, float]]:
        """Loss and accuracy of the training, validation and test nodes."""
        self.model.eval()
        logits = self.model(self.x, self.edge_index)
        return [
            (
                float(self._loss(logits, mask)),
                accuracy_score(self.y[mask].numpy(), logits[mask].argmax(1).numpy()),
            )
            for mask in self.masks
        ]

    def _loss(self, logits: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(logits[mask], self.y[mask])


@torch.no_grad()
def _average(server: Net, parts: list[tuple[Net, float]]) -> None:
    for position, (model, weight) in enumerate(parts):
        for shared, own in zip(server.parameters(), model.parameters(), strict=True):
            if position == 0:
                shared.copy_(weight * own)
            else:
                shared.add_(weight * own)
