"""One FedAvg round on a graph of six nodes, computed by plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedmend.data.partition import Partition
from fedmend.federation import Schema
from fedmend.graph import Graph
from fedmend.methods.fedavg import FedAvgSettings
from fedmend.models.backbones import build
from fedmend.runs.train import train
from fedmend.training.streams import stream

#   0 - 1     3 - 4
#    \ /      |         the edge 2 - 3 is cut: silo "a" has 0, 1, 2, silo "b" has 3, 4, 5
#     2  ...  3   5     node 5 knows nobody
X = [[1.0, 0.5], [0.0, 2.0], [-1.0, 1.0], [2.0, -0.5], [0.5, 0.5], [-2.0, 1.5]]
LABELS = [0, 1, 1, 0, 1, 0]
TRAIN = [True, True, False, True, False, False]
NEIGHBOURS = {0: [1, 2], 1: [0, 2], 2: [0, 1], 3: [4], 4: [3], 5: []}
SILO_NODES = {"a": [0, 1, 2], "b": [3, 4, 5]}
LR = 0.5

Parameters = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]


def sage_row(w: Parameters, layer: int, rows: dict[int, list[float]], node: int) -> list[float]:
    """own @ W_own + mean of the neighbours @ W_neighbours + b, number by number."""
    own, heard = rows[node], NEIGHBOURS[node]
    mean = [
        sum(rows[other][i] for other in heard) / len(heard) if heard else 0.0
        for i in range(len(own))
    ]
    out = []
    for j in range(w[f"layers.{layer}.bias"].shape[0]):
        value = float(w[f"layers.{layer}.bias"][j])
        for i in range(len(own)):
            value += own[i] * float(w[f"layers.{layer}.own"][i, j])
            value += mean[i] * float(w[f"layers.{layer}.neighbours"][i, j])
        out.append(value)
    return out


def gcn_row(w: Parameters, layer: int, rows: dict[int, list[float]], node: int) -> list[float]:
    """sum over the closed neighbourhood of h_u / sqrt((d_v + 1)(d_u + 1)), @ W + b."""
    degree = {other: len(NEIGHBOURS[other]) for other in NEIGHBOURS}
    mixed = [value / (degree[node] + 1) for value in rows[node]]
    for other in NEIGHBOURS[node]:
        share = 1 / math.sqrt((degree[node] + 1) * (degree[other] + 1))
        mixed = [m + share * value for m, value in zip(mixed, rows[other], strict=True)]
    out = []
    for j in range(w[f"layers.{layer}.bias"].shape[0]):
        value = float(w[f"layers.{layer}.bias"][j])
        for i in range(len(mixed)):
            value += mixed[i] * float(w[f"layers.{layer}.weight"][i, j])
        out.append(value)
    return out


Row = Callable[[Parameters, int, dict[int, list[float]], int], list[float]]
ROWS: dict[str, Row] = {"sage": sage_row, "gcn": gcn_row}


def loss(w: Parameters, nodes: list[int], row: Row) -> float:
    """Mean cross-entropy of a silo's training nodes under two layers with ReLU between."""
    hidden = {n: [max(v, 0.0) for v in row(w, 0, {m: X[m] for m in nodes}, n)] for n in nodes}
    total, count = 0.0, 0
    for node in nodes:
        if TRAIN[node]:
            scores = row(w, 1, hidden, node)
            total -= scores[LABELS[node]] - math.log(sum(math.exp(s) for s in scores))
            count += 1
    return total / count


def gradient(w: Parameters, nodes: list[int], row: Row) -> Parameters:
    """Central differences, one weight at a time."""
    found: Parameters = {key: np.zeros_like(value) for key, value in w.items()}
    step = 1e-6
    for key, value in w.items():
        for place in np.ndindex(value.shape):
            kept = value[place]
            value[place] = kept + step
            above = loss(w, nodes, row)
            value[place] = kept - step
            below = loss(w, nodes, row)
            value[place] = kept
            found[key][place] = (above - below) / (2 * step)
    return found


@pytest.mark.parametrize("weighting", ["nodes", "equal"])
@pytest.mark.parametrize("backbone", ["sage", "gcn"])
def test_one_round(backbone: str, weighting: str) -> None:
    edges = [[a, b] for a, others in NEIGHBOURS.items() for b in others]
    whole = Graph(
        X, np.array([*edges, [2, 3]]).T, LABELS, train_mask=TRAIN, label_names=["no", "yes"]
    )
    silos = {name: whole.subgraph(torch.tensor(nodes)) for name, nodes in SILO_NODES.items()}
    options: dict[str, Any] = {
        "rounds": 1,
        "backbone": backbone,
        "hidden": 3,
        "optimizer": "sgd",
        "lr": LR,
        "batch_size": 0,
        "fan_out": 0,
        "weighting": weighting,
    }
    partition = Partition(silos, "by hand", None, whole, np.array([0, 0, 0, 1, 1, 1]))
    result = train("fedavg", partition, seed=5, **options)
    assert result.weights is not None

    shape = FedAvgSettings(**options).shape(Schema(2, ("no", "yes")))
    start = build(shape, stream(5, "server", "initial weights"))
    row = ROWS[backbone]
    expected: Parameters = {}
    losses = {}
    shares = {"a": 2 / 3, "b": 1 / 3} if weighting == "nodes" else {"a": 1 / 2, "b": 1 / 2}
    for name, share in shares.items():
        w = {key: value.detach().double().numpy() for key, value in start.named_parameters()}
        slope = gradient(w, SILO_NODES[name], row)
        losses[name] = loss(w, SILO_NODES[name], row)
        for key in w:
            expected[key] = expected.get(key, 0.0) + share * (w[key] - LR * slope[key])
    for key, value in result.weights.items():
        assert value.double().numpy() == pytest.approx(expected[key], abs=1e-6), key
        assert not torch.equal(value, start.get_parameter(key))
    noted = result.history["training"][1]["training_loss"]
    assert noted == pytest.approx((2 * losses["a"] + losses["b"]) / 3, abs=1e-6)
