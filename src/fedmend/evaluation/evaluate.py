"""The only evaluation loop: test nodes, full neighbourhoods, after everything is decided.

Modes (the papers use different ones; every result names its own):
- `global-graph`: test nodes are queried on the whole graph, cut edges included (FedSage, FedDEP).
  Where every silo has a model of its own, each answers all queries and the scores are averaged.
- `own-subgraph`: each silo's test nodes on the silo's own graph; mean over the silos (FedGGR).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.metrics import accuracy, macro_f1
from fedmend.graph import Graph
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features

MODES = {
    "global-graph": "test nodes queried on the whole graph",
    "own-subgraph": "each silo's test nodes on its own graph, mean over the silos",
}

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Scores:
    """Test figures of one run; `by_silo` has each silo's (or each silo's model's) own."""

    mode: str
    accuracy: float
    macro_f1: float
    test_nodes: int
    by_silo: dict[str, dict[str, float]]


def model_with(shape: ModelShape, weights: Weights) -> Backbone:
    """A model of this shape with these weights, ready to predict.

    The shape may come from a file: nothing of its size is made before the weights are known to fit.
    """
    if len(weights) < shape.layers:
        raise DataError(f"{len(weights)} weights cannot be a model of {shape.layers} layers")
    model = build(shape, None)
    try:
        # Copies: whoever trains the model on must not change the run's own weights.
        copies = {key: value.to(torch.float32, copy=True) for key, value in weights.items()}
        model.load_state_dict(copies, assign=True)
    except RuntimeError as error:
        raise DataError(f"the weights do not fit the model: {error}".splitlines()[0]) from error
    return model.eval()


def predict(model: Backbone, graph: Graph) -> Tensor:
    """Class probabilities of every node of a graph, on full neighbourhoods."""
    with torch.no_grad():
        hops = [whole_graph_hop(graph)] * len(model.layers)
        return torch.softmax(model(Features(graph.x), hops), dim=1)


def evaluate(
    shape: ModelShape,
    weights: Weights | None,
    own: Mapping[str, Weights],
    partition: Partition,
    mode: str,
) -> Scores:
    """Test the shared model (`weights`) or, where there is none, the silos' own ones."""
    check_mode(mode, partition)
    shared = None if weights is None else model_with(shape, weights)
    whole = partition.whole if mode == "global-graph" else None
    if shared is not None and whole is not None:
        return Scores(mode, **_test(shared, whole), test_nodes=_tests(whole), by_silo={})
    # In the order of the names: float addition is not associative. A silo that was lost before
    # it had a model of its own has nothing that could be tested.
    graphs = {
        name: graph if whole is None else whole
        for name, graph in sorted(partition.silos.items())
        if shared is not None or name in own
    }
    by_silo = {
        name: _test(shared or model_with(shape, own[name]), graph)
        for name, graph in graphs.items()
        if _tests(graph)
    }
    if not by_silo:
        raise DataError("nothing can be tested: no silo with a model has test nodes")
    tested = _tests(whole) if whole is not None else sum(map(_tests, graphs.values()))
    return mean_scores(mode, by_silo, tested)


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


def score_silo(shape: ModelShape, weights: Weights, graph: Graph) -> dict[str, float]:
    """One silo's part of `own-subgraph`, for a silo that nobody else can look into."""
    return _test(model_with(shape, weights), graph)


def check_mode(mode: str, partition: Partition) -> None:
    """Refuse a mode that nobody knows or that these silos cannot be evaluated in."""
    if mode not in MODES:
        raise UnknownNameError("evaluation mode", mode, MODES)
    if mode == "global-graph" and partition.whole is None:
        raise DataError(
            "global-graph evaluation needs the whole graph, which these silos do not come "
            "with; use --evaluation own-subgraph"
        )


def _tests(graph: Graph) -> int:
    return int(graph.test_mask.sum())


def _test(model: Backbone, graph: Graph) -> dict[str, float]:
    test = graph.test_mask
    if not bool(test.any()):
        raise DataError("the graph has no test nodes: give some nodes the role 'test'")
    found = predict(model, graph).argmax(1)[test]
    true = graph.y[test]
    return {"accuracy": accuracy(found, true), "macro_f1": macro_f1(found, true)}
