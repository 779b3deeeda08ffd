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
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.metrics import accuracy, counts_by_class, figures_of, macro_f1
from fedmend.graph import Graph
from fedmend.models.predictor import Predictor, predict

MODES = {
    "global-graph": "test nodes queried on the whole graph",
    "own-subgraph": "each silo's test nodes on its own graph, mean over the silos",
    "cross-edges": "all silos' test nodes, with edges between silos in use",
}


@dataclass(frozen=True)
class Scores:
    """Test figures of one run; `by_silo` has each silo's (or each silo's model's) own."""

    mode: str
    accuracy: float
    macro_f1: float
    test_nodes: int
    by_silo: dict[str, dict[str, float]] = field(default_factory=dict)


def evaluate(predictors: Mapping[str, Predictor], partition: Partition, mode: str) -> Scores:
    """Test what the silos predict with; a silo without a model has nothing that could be tested."""
    found = answers(predictors, partition, mode)
    if not found:
        raise DataError("nothing can be tested: no silo with a model has test nodes")
    if mode == "cross-edges":
        return joint_scores({name: count_silo(*each) for name, each in found.items()})
    by_silo = {name: _figures(*each) for name, each in found.items()}
    if EVERYBODY in by_silo:
        return Scores(
            mode=mode, **by_silo[EVERYBODY], test_nodes=_tests(found[EVERYBODY][1]), by_silo={}
        )
    graphs = [graph for _, graph in found.values()]
    tested = _tests(graphs[0]) if mode == "global-graph" else sum(map(_tests, graphs))
    return mean_scores(mode, by_silo, tested)


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


def mean_scores(mode: str, by_silo: dict[str, dict[str, float]], test_nodes: int) -> Scores:
    """The mean of the silos' (or their models') figures; at least one of them."""
    count = len(by_silo)
    return Scores(
        mode=mode,
        accuracy=sum(each["accuracy"] for each in by_silo.values()) / count,
        macro_f1=sum(each["macro_f1"] for each in by_silo.values()) / count,
        test_nodes=test_nodes,
        by_silo=by_silo,
    )


def score_silo(predictor: Predictor, graph: Graph) -> dict[str, float]:
    """One silo's part of `own-subgraph`, for a silo that nobody else can look into."""
    return _figures(predictor.predict(graph), graph)


def count_silo(probabilities: Tensor, graph: Graph) -> Tensor:
    """One silo's part of `cross-edges`: its test nodes by class, see `counts_by_class`."""
    test = graph.test_mask
    return counts_by_class(probabilities.argmax(1)[test], graph.y[test], graph.num_classes)


def joint_scores(counts: Mapping[str, Tensor]) -> Scores:
    """`cross-edges`, of the test nodes by class of each silo that has any; at least one."""
    total = torch.stack(list(counts.values())).sum(0)
    return Scores(
        mode="cross-edges",
        **figures_of(total),
        test_nodes=int(total[1].sum()),
        by_silo={name: figures_of(each) for name, each in sorted(counts.items())},
    )


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


def _figures(probabilities: Tensor, graph: Graph) -> dict[str, float]:
    test = graph.test_mask
    if not bool(test.any()):
        raise DataError("the graph has no test nodes: give some nodes the role 'test'")
    found, true = probabilities.argmax(1)[test], graph.y[test]
    return {"accuracy": accuracy(found, true), "macro_f1": macro_f1(found, true)}
