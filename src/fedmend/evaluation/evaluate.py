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
    """A model of this shape with these weights, ready to predict."""
    model = build(shape, torch.Generator())
    model.load_state_dict(dict(weights))
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
    if mode not in MODES:
        raise UnknownNameError("evaluation mode", mode, MODES)
    shared = None if weights is None else model_with(shape, weights)
    models = {name: shared or model_with(shape, own[name]) for name in partition.names}
    if mode == "own-subgraph":
        queries = {
            name: (models[name], graph)
            for name, graph in partition.silos.items()
            if bool(graph.test_mask.any())
        }
    else:
        if partition.whole is None:
            raise DataError(
                "global-graph evaluation needs the whole graph, which these silos do not come "
                "with; use --evaluation own-subgraph"
            )
        whole = partition.whole
        queries = (
            {"shared": (shared, whole)}
            if shared is not None
            else {name: (model, whole) for name, model in models.items()}
        )
    by_silo = {name: _test(model, graph) for name, (model, graph) in queries.items()}
    if not by_silo:
        raise DataError("no silo has test nodes: give some nodes the role 'test'")
    count = len(by_silo)
    return Scores(
        mode=mode,
        accuracy=sum(each["accuracy"] for each in by_silo.values()) / count,
        macro_f1=sum(each["macro_f1"] for each in by_silo.values()) / count,
        test_nodes=sum(int(graph.test_mask.sum()) for graph in _tested(partition, mode)),
        by_silo={} if "shared" in by_silo else by_silo,
    )


def _tested(partition: Partition, mode: str) -> list[Graph]:
    if mode == "global-graph" and partition.whole is not None:
        return [partition.whole]
    return list(partition.silos.values())


def _test(model: Backbone, graph: Graph) -> dict[str, float]:
    test = graph.test_mask
    if not bool(test.any()):
        raise DataError("the graph has no test nodes: give some nodes the role 'test'")
    found = predict(model, graph).argmax(1)[test]
    true = graph.y[test]
    return {"accuracy": accuracy(found, true), "macro_f1": macro_f1(found, true)}
