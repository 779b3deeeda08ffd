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
from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.metrics import accuracy, counts_by_class, figures_of, macro_f1
from fedmend.graph import Graph
from fedmend.models.backbones import BACKBONES, Backbone, ModelShape, build
from fedmend.models.features import Features

MODES = {
    "global-graph": "test nodes queried on the whole graph",
    "own-subgraph": "each silo's test nodes on its own graph, mean over the silos",
    "cross-edges": "all silos' test nodes, with edges between silos in use",
}

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Scores:
    """Test figures of one run; `by_silo` has each silo's (or each silo's model's) own."""

    mode: str
    accuracy: float
    macro_f1: float
    test_nodes: int
    by_silo: dict[str, dict[str, float]] = field(default_factory=dict)


def model_with(shape: ModelShape, weights: Weights) -> Backbone:
    """A model of this shape with these weights, ready to predict.

    The shape may come from a file: nothing of its size is made before the weights are known to fit.
    """
    if len(weights) < shape.layers and BACKBONES.plugin_of(shape.backbone) is None:
        raise DataError(f"{len(weights)} weights cannot be a model of {shape.layers} layers")
    model = build(shape, None)
    try:
        # Copies: whoever trains the model on must not change the run's own weights.
        copies = {key: value.to(torch.float32, copy=True) for key, value in weights.items()}
        model.load_state_dict(copies, assign=True)
    except RuntimeError as error:
        raise DataError(f"the weights do not fit the model: {error}".splitlines()[0]) from error
    return model.eval()


def predict(model: Backbone, graph: Graph, mended: Tensor | None = None) -> Tensor:
    """Class probabilities of every node of a graph, on full neighbourhoods.

    mended: what each node brings along where a silo predicts on its own graph (FedDEP).
    """
    with torch.no_grad():
        hops = [whole_graph_hop(graph)] * model.shape.layers
        return torch.softmax(model(Features(graph.x), hops, None, mended), dim=1)


def evaluate(
    shape: ModelShape,
    weights: Weights | None,
    own: Mapping[str, Weights],
    partition: Partition,
    mode: str,
    mended: Mapping[str, Tensor] | None = None,
    probabilities: Mapping[str, Tensor] | None = None,
    own_graphs: Mapping[str, Graph] | None = None,
) -> Scores:
    """Test the shared model (`weights`) or, where there is none, the silos' own ones.

    mended: what silos' nodes bring along; on the whole graph only where it is theirs there too.
    probabilities: those of each silo's nodes, from a method whose silos predict together; they
    are what `cross-edges` tests.
    own_graphs: what silos made of their graphs: `own-subgraph` tests on it.
    """
    if mode == "cross-edges":
        return _cross_edges(shape, weights, own, partition, mended, probabilities)
    check_mode(mode, partition)
    shared = None if weights is None else model_with(shape, weights)
    whole = partition.whole if mode == "global-graph" else None
    everywhere = _on_whole(mended, partition) if mended and whole is not None else None
    if shared is not None and whole is not None:
        figures = _test(shared, whole, everywhere)
        return Scores(mode, **figures, test_nodes=_tests(whole), by_silo={})
    # In the order of the names: float addition is not associative. A silo that was lost before
    # it had a model of its own has nothing that could be tested.
    graphs = {
        name: graph if whole is None else whole
        for name, graph in sorted({**partition.silos, **(own_graphs or {})}.items())
        if shared is not None or name in own
    }
    by_silo = {
        name: _test(
            shared or model_with(shape, own[name]),
            graph,
            mended.get(name) if mended and whole is None else everywhere,
        )
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


def score_silo(
    shape: ModelShape, weights: Weights, graph: Graph, mended: Tensor | None = None
) -> dict[str, float]:
    """One silo's part of `own-subgraph`, for a silo that nobody else can look into."""
    return _test(model_with(shape, weights), graph, mended)


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


def _on_whole(mended: Mapping[str, Tensor], partition: Partition) -> Tensor:
    """What silos' nodes bring along, in the whole graph's order; zero for a lost silo's."""
    some = next(iter(mended.values()))
    assigned = torch.as_tensor(partition.assignment)
    rows = some.new_zeros(len(assigned), some.shape[1])
    for name, brought in mended.items():
        rows[torch.as_tensor(partition.rows(name))] = brought
    return rows


def _cross_edges(
    shape: ModelShape,
    weights: Weights | None,
    own: Mapping[str, Weights],
    partition: Partition,
    mended: Mapping[str, Tensor] | None,
    probabilities: Mapping[str, Tensor] | None,
) -> Scores:
    if probabilities is None:
        check_mode("cross-edges", partition)
        probabilities = _on_the_whole_graph(shape, weights, own, partition, mended)
    counts = {
        name: count_silo(probabilities[name], graph)
        for name, graph in partition.silos.items()
        if name in probabilities and _tests(graph)
    }
    if not counts:
        raise DataError("nothing can be tested: no silo with a model has test nodes")
    return joint_scores(counts)


def _on_the_whole_graph(
    shape: ModelShape,
    weights: Weights | None,
    own: Mapping[str, Weights],
    partition: Partition,
    mended: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    """Every silo's nodes on the whole graph, by the shared model or the silo's own."""
    if partition.whole is None:
        raise DataError("the whole graph of this partition is not known")
    everywhere = _on_whole(mended, partition) if mended else None
    shared = None
    if weights is not None:
        shared = predict(model_with(shape, weights), partition.whole, everywhere)
    found = {}
    for name in partition.names:
        if shared is not None:
            found[name] = shared[torch.from_numpy(partition.rows(name))]
        elif name in own:
            everyone = predict(model_with(shape, own[name]), partition.whole, everywhere)
            found[name] = everyone[torch.from_numpy(partition.rows(name))]
    return found


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


def _test(model: Backbone, graph: Graph, mended: Tensor | None = None) -> dict[str, float]:
    test = graph.test_mask
    if not bool(test.any()):
        raise DataError("the graph has no test nodes: give some nodes the role 'test'")
    found = predict(model, graph, mended).argmax(1)[test]
    true = graph.y[test]
    return {"accuracy": accuracy(found, true), "macro_f1": macro_f1(found, true)}
