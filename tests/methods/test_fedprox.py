"""FedProx: FedAvg at mu = 0, and held near the shared weights by a large mu."""

from __future__ import annotations

import math
from typing import Any

import torch

from fedmend.methods import fedavg
from fedmend.methods.fedavg import Weights
from fedmend.methods.fedprox import FedProxSettings, Silo
from fedmend.runs.train import train
from tests.tiny import QUICK, same_weights, tiny_graph, tiny_partition

OPTIONS: dict[str, Any] = {**QUICK, "local_epochs": 2}


def test_without_pull_it_is_fedavg_to_the_bit() -> None:
    fedprox = train("fedprox", tiny_partition(), mu=0.0, **OPTIONS)
    plain = train("fedavg", tiny_partition(), **OPTIONS)
    assert same_weights(fedprox.weights, plain.weights)
    assert fedprox.history == plain.history
    assert fedprox.scores == plain.scores
    assert fedprox.ledger.to_csv() == plain.ledger.to_csv()


def test_pull_makes_a_difference() -> None:
    pulled = train("fedprox", tiny_partition(), mu=0.1, **OPTIONS)
    plain = train("fedavg", tiny_partition(), **OPTIONS)
    assert pulled.history != plain.history


def moved(mu: float) -> float:
    """How far ten SGD steps carry a silo from the weights it received."""
    settings = FedProxSettings(
        mu=mu, optimizer="sgd", lr=0.02, hidden=8, batch_size=0, fan_out=0, local_epochs=10
    )
    silo = Silo("x", tiny_graph(), settings, 0)
    start = {key: value.clone() for key, value in silo.local.weights().items()}
    after = silo.train(Weights(start)).weights
    return math.sqrt(sum(float((after[key] - start[key]).square().sum()) for key in start))


def test_the_larger_mu_the_nearer_to_the_shared_weights() -> None:
    free, pulled, held = moved(0.0), moved(5.0), moved(49.0)
    assert held < pulled < free
    assert held < free / 5


def test_the_pull_is_the_terms_gradient() -> None:
    """Two full-batch SGD steps by hand; in the first, w is still w_shared and nothing pulls."""
    common: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "hidden": 8}
    common |= {"batch_size": 0, "fan_out": 0}
    graph, mu = tiny_graph(), 0.7
    prox = Silo("x", graph, FedProxSettings(mu=mu, local_epochs=2, **common), 0)
    plain = fedavg.Silo("x", graph, fedavg.FedAvgSettings(**common), 0)
    start = {key: value.clone() for key, value in plain.local.weights().items()}
    after = prox.train(Weights(start)).weights
    one = {key: value.clone() for key, value in plain.train(Weights(start)).weights.items()}
    two = plain.train(Weights(one)).weights
    for key in start:
        expected = two[key] - 0.1 * mu * (one[key] - start[key])
        torch.testing.assert_close(after[key], expected, atol=1e-6, rtol=1e-5)
