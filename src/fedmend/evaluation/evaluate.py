"""The only evaluation loop: test nodes, full neighbourhoods, after everything is decided.

Modes (the papers use different ones; every result names its own):
- `global-graph`: test nodes are queried on the whole graph, cut edges included (FedSage, FedDEP).
  Where every silo has a model of its own, each answers all queries and the scores are averaged.
- `own-subgraph`: each silo's test nodes on the silo's own graph; mean over the silos (FedGGR).
- `cross-edges`: every silo's test nodes with the edges between silos in use; the share of all test
  nodes that are right (HiFGL). Silos that hear each other when they predict give their nodes'
  probabilities themselves; for other methods the model is put on the whole graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.metrics import (
    Statistics,
    figures,
    mean_figures,
    metric,
    statistics,
    summed,
)
from fedmend.files import typed
from fedmend.graph import Graph
from fedmend.models.predictor import Predictor, predict

MODES = {
    "global-graph": "test nodes queried on the whole graph",
    "own-subgraph": "each silo's test nodes on its own graph, mean over the silos",
    "cross-edges": "all silos' test nodes, with edges between silos in use",
}


@dataclass(frozen=True)
class Scores:
    """Test figures of one run, by metric; `by_silo` has each silo's (or silo's model's) own."""

    mode: str
    figures: Mapping[str, float]
    test_nodes: int
    by_silo: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.figures["accuracy"]

    @property
    def macro_f1(self) -> float:
        return self.figures["macro_f1"]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a record: the figures beside the rest."""
        by_silo = {name: dict(each) for name, each in self.by_silo.items()}
        about = {"mode": self.mode, **self.figures, "test_nodes": self.test_nodes}
        return {**about, "by_silo": by_silo}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Scores:
        """From a file, in which anything may stand."""
        if missing := {"mode", "test_nodes", *ALWAYS} - set(given):
            raise ValueError(f"result: {', '.join(sorted(missing))} is missing")
        others = ("mode", "test_nodes", "by_silo")
        found = {key: each for key, each in given.items() if key not in others}
        return cls(
            typed(str, given["mode"], "result, mode"),
            typed(dict[str, float], found, "result"),
            typed(int, given["test_nodes"], "result, test_nodes"),
            typed(dict[str, dict[str, float]], given.get("by_silo", {}), "result, by_silo"),
        )


ALWAYS = ("accuracy", "macro_f1")
"""Figures that every run has: tables compare runs by them."""


def evaluate(predictors: Mapping[str, Predictor], partition: Partition, mode: str) -> Scores:
    """Test what the silos predict with; a silo without a model has nothing that could be tested."""
    found = {name: tested(*each) for name, each in answers(predictors, partition, mode).items()}
    if EVERYBODY in found:
        return joint_scores(mode, found, apart=False)
    if mode == "global-graph" and found:  # a model per silo, and all are asked the same
        nodes = test_nodes(next(iter(found.values())))
        return replace(scores(mode, found), test_nodes=nodes)
    return scores(mode, found)


def scores(mode: str, found: Mapping[str, Statistics]) -> Scores:
    """The figures of what silos give of their test nodes, in any mode; at least one silo.

    As one set of nodes where silos predict together (`cross-edges`), else the silos' mean.
    """
    if not found:
        raise DataError("nothing can be tested: no silo with a model has test nodes")
    if mode == "cross-edges":
        return joint_scores(mode, found)
    by_silo = {name: figures(each) for name, each in found.items()}
    return Scores(
        mode, mean_figures(by_silo.values()), sum(map(test_nodes, found.values())), by_silo
    )


def joint_scores(mode: str, found: Mapping[str, Statistics], *, apart: bool = True) -> Scores:
    """The figures of all nodes together; apart: each silo's own, too."""
    total = summed(found)
    by_silo = {name: figures(each) for name, each in sorted(found.items())} if apart else {}
    return Scores(mode, figures(total), test_nodes(total), by_silo)


def tested(probabilities: Tensor, graph: Graph) -> dict[str, Tensor]:
    """The statistics of a graph's test nodes: one silo's part, whoever adds them up."""
    test = graph.test_mask
    # As doubles: the logarithms of two different floats can be the same float.
    return statistics(probabilities[test].double().log(), graph.y[test])


def test_nodes(found: Statistics) -> int:
    """How many nodes statistics are of."""
    return metric("accuracy").nodes(found["accuracy"])


EVERYBODY = ""
"""In place of a silo's name, where all have the same model and are asked the same."""


def answers(
    predictors: Mapping[str, Predictor], partition: Partition, mode: str
) -> dict[str, tuple[Tensor, Graph]]:
    """Probabilities of all nodes of the graphs that have test nodes, by the silo that gives them.

    In the order of the names: float addition is not associative.
    """
    check_mode(mode, partition, any(each.heard is not None for each in predictors.values()))
    predictors = {name: each.on(mode) for name, each in sorted(predictors.items())}
    own = {name: partition.silos[name] for name in predictors}
    whole = partition.whole
    if mode == "own-subgraph" or whole is None:
        return {
            name: (each.predict(own[name]), own[name])
            for name, each in predictors.items()
            if _tests(own[name]) and (mode == "own-subgraph" or each.heard is not None)
        }
    rows = _on_whole(predictors, partition)
    found: dict[str, tuple[Tensor, Graph]] = {}
    everyone: Tensor | None = None
    for name, each in predictors.items():
        if each.heard is not None:
            found[name] = each.heard, own[name]
            continue
        if everyone is None or not each.shared:
            everyone = predict(each.model, whole, rows)
        if mode == "global-graph" and each.shared:
            return {EVERYBODY: (everyone, whole)} if _tests(whole) else {}
        mine = everyone[torch.from_numpy(partition.rows(name))]
        found[name] = (mine, own[name]) if mode == "cross-edges" else (everyone, whole)
    return {name: each for name, each in found.items() if _tests(each[1])}


def _on_whole(predictors: Mapping[str, Predictor], partition: Partition) -> Tensor | None:
    """What silos' nodes bring along, in the whole graph's order; zero for a lost silo's."""
    brought = {name: each.rows for name, each in predictors.items() if each.rows is not None}
    if not brought:
        return None
    some = next(iter(brought.values()))
    assigned = torch.as_tensor(partition.assignment)
    rows = some.new_zeros(len(assigned), some.shape[1])
    for name, each in brought.items():
        rows[torch.as_tensor(partition.rows(name))] = each
    return rows


def check_mode(mode: str, partition: Partition, predict_together: bool = False) -> None:
    """Refuse a mode that nobody knows or that these silos cannot be evaluated in.

    predict_together: silos that hear each other need no whole graph to use edges between them.
    """
    if mode not in MODES:
        raise UnknownNameError("evaluation mode", mode, MODES)
    if mode == "cross-edges" and predict_together:
        return
    if mode in ("global-graph", "cross-edges") and partition.whole is None:
        raise DataError(
            f"{mode} evaluation needs the whole graph, which these silos do not come "
            "with; use --evaluation own-subgraph"
        )


def _tests(graph: Graph) -> int:
    return int(graph.test_mask.sum())
