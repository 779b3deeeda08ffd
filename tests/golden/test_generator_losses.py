"""The generators' losses on a graph of six nodes, computed by plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedmend.federation import Schema
from fedmend.graph import Graph
from fedmend.mending.deep import DGen, new_encoder
from fedmend.mending.generator import NeighbourGenerator
from fedmend.methods.feddep import FedDEPSettings
from fedmend.methods.fedsage_plus import NeighGen, NeighGenSettings

#   0 - 1     3 - 4
#    \ /    /
#     2 - -     5 hangs on 4 and on 0
X = [[1.0, 0.5], [0.0, 2.0], [-1.0, 1.0], [2.0, -0.5], [0.5, 0.5], [-2.0, 1.5]]
LABELS = [0, 1, 1, 0, 1, 0]
TRAIN = [True, True, False, True, True, True]
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]
NEIGHBOURS: dict[int, list[int]] = {
    v: sorted([b for a, b in EDGES if a == v] + [a for a, b in EDGES if b == v]) for v in range(6)
}
GRAPH = Graph(X, np.array(EDGES).T, LABELS, train_mask=TRAIN, label_names=["no", "yes"])
WIDTH, SLOTS, LEAST = 3, 2, 1
Row = list[float]
Rows = dict[Any, Row]


def weights_of(module: torch.nn.Module) -> dict[str, Any]:
    return {key: each.detach().double().tolist() for key, each in module.named_parameters()}


def times(row: Row, matrix: list[Row]) -> Row:
    columns = range(len(matrix[0]))
    return [sum(row[i] * matrix[i][j] for i in range(len(row))) for j in columns]


def plus(*rows: Row) -> Row:
    return [sum(values) for values in zip(*rows, strict=True)]


def mean(rows: list[Row], width: int) -> Row:
    return [value / len(rows) for value in plus(*rows)] if rows else [0.0] * width


def relu(row: Row) -> Row:
    return [max(value, 0.0) for value in row]


def tanh(row: Row) -> Row:
    return [math.tanh(value) for value in row]


def distance(one: Row, other: Row) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def sage(
    w: dict[str, Any], x: Rows, neighbours: dict[Any, list[Any]], mended: Rows | None = None
) -> Rows:
    """Two GraphSAGE layers with ReLU between; every layer may add what a node brings along."""
    h = x
    for layer in range(2):
        out = {}
        for v in neighbours:
            heard = mean([h[u] for u in neighbours[v]], len(h[v]))
            out[v] = plus(
                times(h[v], w[f"layers.{layer}.own"]),
                times(heard, w[f"layers.{layer}.neighbours"]),
                w[f"layers.{layer}.bias"],
            )
            if mended is not None:
                out[v] = plus(out[v], times(mended[v], w[f"mended.{layer}.weight"]))
        h = out if layer else {v: relu(row) for v, row in out.items()}
    return h


def cross_entropy(scores: Row, label: int) -> float:
    return math.log(sum(math.exp(score) for score in scores)) - scores[label]


class Impaired:
    """Who is left and who lost whom, from the list of edges; what the generator makes of it."""

    def __init__(self, learner: NeighbourGenerator, noise: torch.Tensor) -> None:
        self.kept = learner.impaired.kept.tolist()
        self.left = {v: [u for u in NEIGHBOURS[v] if u in self.kept] for v in self.kept}
        self.lost = {v: [u for u in NEIGHBOURS[v] if u not in self.kept] for v in self.kept}
        self.x: Rows = {v: X[v] for v in self.kept}
        self.w = weights_of(learner.encoder)
        self.number, self.head = weights_of(learner.number), weights_of(learner.head)
        self.noise = dict(zip(self.kept, noise.double().tolist(), strict=True))

    def predicted(self, z: Rows) -> dict[int, float]:
        weight, bias = self.number["weight"], self.number["bias"]
        return {v: relu(plus(times(z[v], weight), bias))[0] for v in z}

    def made(self, z: Rows, layers: int) -> dict[int, list[Row]]:
        """All neighbours that there are slots for."""
        out = {}
        for v in z:
            h = plus(z[v], self.noise[v])
            for layer in range(layers):
                h = relu(
                    plus(times(h, self.head[f"hidden.{layer}"]), self.head[f"hidden_bias.{layer}"])
                )
            out[v] = [
                tanh(plus(times(h, self.head[f"last.{slot}"]), self.head[f"last_bias.{slot}"]))
                for slot in range(SLOTS)
            ]
        return out

    def number_loss(self, predicted: dict[int, float]) -> float:
        total = 0.0
        for v in self.kept:
            off = abs(predicted[v] - len(self.lost[v]))
            total += 0.5 * off**2 if off < 1 else off - 0.5
        return total / len(self.kept)

    def lost_loss(self, made: dict[int, list[Row]], target: Rows) -> float:
        """Each generated neighbour, as many as were lost, against the nearest lost one."""
        total = 0.0
        for v in self.kept:
            for row in made[v][: len(self.lost[v])]:
                total += min(distance(row, target[u]) for u in self.lost[v])
        return total / len(self.kept)

    def self_loss(self, made: dict[int, list[Row]], asked: dict[int, int]) -> float:
        """Each generated neighbour, lost or asked for, against the node it is made for."""
        total = 0.0
        for v in self.kept:
            for row in made[v][: max(asked[v], min(len(self.lost[v]), SLOTS))]:
                total += distance(row, X[v])
        return total / len(self.kept)

    def class_loss(self, scores: Rows) -> float:
        trained = [v for v in self.kept if TRAIN[v]]
        return sum(cross_entropy(scores[v], LABELS[v]) for v in trained) / len(trained)


def asked_of(predicted: dict[int, float], short: dict[int, int] | None = None) -> dict[int, int]:
    """As many as predicted, at least LEAST and what a node is short of its least degree."""
    return {
        v: min(max(round(value), LEAST, (short or {}).get(v, 0)), SLOTS)
        for v, value in predicted.items()
    }


def spread(learner: NeighbourGenerator) -> None:
    """Let the number head ask for none, one and more neighbours."""
    with torch.no_grad():
        learner.number.weight.mul_(2)
        values = learner.embeddings() @ learner.number.weight
        learner.number.bias.fill_(1.1 - float(values.mean()))


def common() -> dict[str, Any]:
    return {
        "hidden": 4,
        "embedding": WIDTH,
        "neighbours": SLOTS,
        "least_neighbours": LEAST,
        "hide": 0.34,
        "generator_hidden": 5,
        "number_weight": 0.7,
    }


@pytest.mark.parametrize(("self_weight", "least_degree"), [(0.0, 0), (0.4, 0), (0.4, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_neighgen(seed: int, self_weight: float, least_degree: int) -> None:
    """lambda^d L^d + lambda^f L^f + lambda^c L^c of Eq. (4) and (5); the node itself within L^f."""
    settings = NeighGenSettings(
        **common(),
        generator_width=6,
        feature_weight=0.3,
        class_weight=1.1,
        self_weight=self_weight,
        least_degree=least_degree,
        noise=0.7,
    )
    learner = NeighGen("silo", GRAPH, settings, seed)
    spread(learner)
    batch, noise = learner.draw_batch()
    plain = Impaired(learner, noise)
    assert len(plain.kept) == 4

    z = {v: relu(row) for v, row in sage(plain.w, plain.x, plain.left).items()}
    predicted = plain.predicted(z)
    made = plain.made(z, layers=2)
    x: Rows = dict(plain.x)
    neighbours: dict[Any, list[Any]] = {v: list(others) for v, others in plain.left.items()}
    short = {v: least_degree - len(seen) for v, seen in plain.left.items()}
    asked = asked_of(predicted, short)
    for v, count in asked.items():
        for slot in range(count):
            new = (v, slot)
            x[new] = made[v][slot]
            neighbours[v].append(new)
            neighbours[new] = [v]
    scores = sage(weights_of(learner.classifier), x, neighbours)
    terms = (
        plain.number_loss(predicted),
        plain.lost_loss(made, dict(enumerate(X))),
        plain.class_loss(scores),
    )
    assert min(terms) > 0
    lost = terms[1] + self_weight * plain.self_loss(made, asked)
    expected = 0.7 * terms[0] + 0.3 * lost + 1.1 * terms[2]
    before = weights_of(learner.head)
    assert learner.step(batch, noise) == pytest.approx(expected, abs=1e-5)
    assert weights_of(learner.head) != before


@pytest.mark.parametrize("seed", range(5))
def test_dgen(seed: int) -> None:
    """beta^d, beta^f and beta^n of FedDEP and the loss of the classifier that is given z~."""
    settings = FedDEPSettings(**common(), own_weight=0.3, others_weight=0.2, rate=1.0)
    schema = Schema(2, ("no", "yes"))
    generator = torch.Generator().manual_seed(seed)
    gnn = new_encoder(settings, schema, generator)
    targets = torch.rand(6, WIDTH, generator=generator) * 2 - 1
    others = [torch.rand(count, WIDTH, generator=generator) * 2 - 1 for count in (3, 1, 4)]
    learner = DGen("silo", GRAPH, gnn, targets, others, settings, seed)
    spread(learner)
    batch, noise = learner.draw_batch()
    plain = Impaired(learner, noise)
    assert plain.w == weights_of(gnn), "it starts as the local GNN"

    z = {v: tanh(row) for v, row in sage(plain.w, plain.x, plain.left).items()}
    predicted = plain.predicted(z)
    asked = asked_of(predicted)
    made = plain.made(z, layers=1)
    nearest = 0.0
    for v in plain.kept:
        for row in made[v][: max(asked[v], min(len(plain.lost[v]), SLOTS))]:
            for theirs in others:
                nearest += min(distance(row, centre) for centre in theirs.tolist())
    nearest /= len(plain.kept)
    brought = {v: mean(made[v][: asked[v]], WIDTH) for v in plain.kept}
    scores = sage(weights_of(learner.classifier), plain.x, plain.left, brought)
    terms = (
        plain.number_loss(predicted),
        plain.lost_loss(made, dict(enumerate(targets.tolist()))),
        nearest,
        plain.class_loss(scores),
    )
    assert min(terms) > 0
    expected = 0.7 * terms[0] + 0.3 * terms[1] + 0.2 * terms[2] + terms[3]
    assert learner.step(batch, noise) == pytest.approx(expected, abs=1e-5)
