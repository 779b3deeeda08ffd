"""The evaluation loop: its modes, and that test nodes decide nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.evaluate import evaluate
from fedmend.graph import Graph
from fedmend.methods import METHODS
from fedmend.models.backbones import ModelShape, build
from fedmend.models.predictor import Predictor, model_with, predict
from fedmend.runs.train import Result, train
from tests.tiny import QUICK, accepted, rebuilt, reordered, same_weights, tiny_graph, tiny_partition

PARTITION = tiny_partition()
SHAPE = ModelShape("sage", 6, 3, hidden=8, layers=2, heads=1, dropout=0.5)


def weights_of(seed: int, shape: ModelShape = SHAPE) -> dict[str, Tensor]:
    model = build(shape, torch.Generator().manual_seed(seed))
    return {key: value.detach() for key, value in model.named_parameters()}


OWN = {name: weights_of(number) for number, name in enumerate(PARTITION.names)}


OWNERS = {
    name: Predictor(SHAPE, weights, False, PARTITION.silos[name].node_ids)
    for name, weights in OWN.items()
}


def shared(partition: Partition) -> dict[str, Predictor]:
    return {
        name: Predictor(SHAPE, weights_of(0), True, graph.node_ids)
        for name, graph in partition.silos.items()
    }


def share_right(weights: dict[str, Tensor], graph: Graph) -> float:
    """Accuracy on a graph's test nodes, counted node by node."""
    found = predict(model_with(SHAPE, weights), graph).argmax(1).tolist()
    nodes = torch.nonzero(graph.test_mask)[:, 0].tolist()
    right = [node for node in nodes if found[node] == int(graph.y[node])]
    return len(right) / len(nodes)


def whole() -> Graph:
    assert PARTITION.whole is not None
    return PARTITION.whole


def test_shared_model_on_the_whole_graph() -> None:
    scores = evaluate(shared(PARTITION), PARTITION, "global-graph")
    assert scores.accuracy == pytest.approx(share_right(weights_of(0), whole()))
    assert (scores.mode, scores.test_nodes, scores.by_silo) == ("global-graph", 12, {})


def test_shared_model_on_the_silos_own_graphs() -> None:
    scores = evaluate(shared(PARTITION), PARTITION, "own-subgraph")
    each = {name: share_right(weights_of(0), graph) for name, graph in PARTITION.silos.items()}
    assert {name: one["accuracy"] for name, one in scores.by_silo.items()} == pytest.approx(each)
    assert scores.accuracy == pytest.approx(sum(each.values()) / 3)
    assert scores.test_nodes == 12


def test_own_models_on_the_whole_graph_are_averaged() -> None:
    scores = evaluate(OWNERS, PARTITION, "global-graph")
    each = {name: share_right(weights, whole()) for name, weights in OWN.items()}
    assert {name: one["accuracy"] for name, one in scores.by_silo.items()} == pytest.approx(each)
    assert scores.accuracy == pytest.approx(sum(each.values()) / 3)
    assert scores.test_nodes == 12  # the same twelve, asked of every model


def test_own_models_on_their_own_graphs() -> None:
    scores = evaluate(OWNERS, PARTITION, "own-subgraph")
    each = {name: share_right(OWN[name], graph) for name, graph in PARTITION.silos.items()}
    assert {name: one["accuracy"] for name, one in scores.by_silo.items()} == pytest.approx(each)


@pytest.mark.parametrize("mode", ["own-subgraph", "global-graph"])
def test_figures_are_added_up_in_the_order_of_the_names(mode: str) -> None:
    scores = evaluate(OWNERS, reordered(PARTITION), mode)
    assert list(scores.by_silo) == sorted(PARTITION.names)


def test_a_silo_may_be_called_shared() -> None:
    graphs = dict(zip(["shared", "b", "c"], PARTITION.silos.values(), strict=True))
    partition = Partition(graphs, "x", None)
    scores = evaluate(shared(partition), partition, "own-subgraph")
    assert set(scores.by_silo) == {"shared", "b", "c"}


def test_silos_without_test_nodes_are_left_out() -> None:
    first, *others = PARTITION.silos.items()
    nobody = torch.zeros(first[1].num_nodes, dtype=torch.bool)
    untested = first[1].with_masks(first[1].train_mask, first[1].val_mask, nobody)
    partition = Partition({first[0]: untested, **dict(others)}, "x", None)
    scores = evaluate(shared(partition), partition, "own-subgraph")
    assert set(scores.by_silo) == {name for name, _ in others}
    assert scores.test_nodes == sum(int(graph.test_mask.sum()) for _, graph in others)
    alone = Partition({"a": untested}, "x", None)
    with pytest.raises(DataError, match="nothing can be tested"):
        evaluate(shared(alone), alone, "own-subgraph")


def test_modes_that_cannot_be() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'global-graph'"):
        evaluate(shared(PARTITION), PARTITION, "global")
    alone = Partition(PARTITION.silos, "x", None)
    with pytest.raises(DataError, match="needs the whole graph"):
        evaluate(shared(alone), alone, "global-graph")


def test_without_test_nodes_there_are_no_scores() -> None:
    nobody = torch.zeros(60, dtype=torch.bool)
    graph = whole().with_masks(whole().train_mask, whole().val_mask, nobody)
    silos = {
        name: graph.subgraph(torch.from_numpy(PARTITION.rows(name))) for name in PARTITION.names
    }
    partition = Partition(silos, "x", None, graph, PARTITION.assignment)
    for mode in ("global-graph", "own-subgraph"):
        result = train("local", partition, evaluation=mode, **QUICK)
        assert result.scores is None
        assert result.record.result is None
        with pytest.raises(DataError, match="nothing was tested"):
            _ = result.accuracy


def test_prediction_has_no_dropout_and_uses_all_neighbours() -> None:
    model = model_with(SHAPE, weights_of(0))
    first, second = predict(model, whole()), predict(model, whole())
    assert torch.equal(first, second)
    assert not model.training
    torch.testing.assert_close(first.sum(1), torch.ones(60))


def test_models_are_copies() -> None:
    weights = weights_of(0)
    before = {key: value.clone() for key, value in weights.items()}
    model = model_with(SHAPE, weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert same_weights(weights, before)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({}, "0 weights cannot be a model of 2 layers"),
        ({**weights_of(0), "layers.0.bias": torch.zeros(9)}, "do not fit the model"),
        ({k: v for k, v in weights_of(0).items() if k != "layers.0.bias"}, "do not fit the model"),
        ({**weights_of(0), "more": torch.zeros(1)}, "do not fit the model"),
    ],
)
def test_weights_that_do_not_fit(weights: dict[str, Tensor], text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        model_with(SHAPE, weights)
    assert "\n" not in str(caught.value)


def test_a_shape_that_lies_allocates_nothing() -> None:
    giant = ModelShape("sage", 2**30, 2**30, hidden=2**30, layers=2, heads=1, dropout=0.0)
    with pytest.raises(DataError, match="do not fit"):
        model_with(giant, weights_of(0))


# Test nodes decide nothing


def with_other_test_labels(partition: Partition) -> Partition:
    """The same federation, every test node's label another one."""

    def relabelled(graph: Graph) -> Graph:
        y = torch.where(graph.test_mask, (graph.y + 1) % 3, graph.y)
        return rebuilt(graph, y=y)

    silos = {name: relabelled(graph) for name, graph in partition.silos.items()}
    assert partition.whole is not None
    return Partition(silos, "x", None, relabelled(partition.whole), partition.assignment)


def run(method: str, partition: Partition, **options: Any) -> Result:
    settings = {**accepted(method, QUICK), "rounds": 6, "lr": 0.1, **options}
    return train(method, partition, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_training_and_selection_never_see_test_labels(method: str) -> None:
    one, other = run(method, PARTITION), run(method, with_other_test_labels(PARTITION))
    assert same_weights(one.weights, other.weights)
    assert one.own.keys() == other.own.keys()
    assert all(same_weights(one.own[name], other.own[name]) for name in one.own)
    assert one.history == other.history
    assert one.scores != other.scores  # the scores do, or this would prove nothing


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_validation_labels_decide_the_selection(method: str) -> None:
    """The counterpart: swapping the roles of test and validation does change what is kept."""

    def swapped(graph: Graph) -> Graph:
        return graph.with_masks(graph.train_mask, graph.test_mask, graph.val_mask)

    silos = {name: swapped(graph) for name, graph in PARTITION.silos.items()}
    partition = Partition(silos, "x", None, swapped(whole()), PARTITION.assignment)
    one, other = run(method, PARTITION), run(method, partition)
    assert one.history != other.history
    losses = [
        [result.history["training"][n]["training_loss"] for n in range(1, 7)]
        for result in (one, other)
    ]
    assert losses[0] == losses[1]  # training itself heeds neither


def test_cut_edges_count_only_on_the_whole_graph() -> None:
    """A node whose neighbours are all across the cut: heard in one mode, not in the other."""
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    graph = Graph(x, [[0], [1]], [0, 1], test_mask=[True, True], label_names=["a", "b"])
    silos = {"p": graph.subgraph(torch.tensor([0])), "q": graph.subgraph(torch.tensor([1]))}
    partition = Partition(silos, "x", None, graph, np.array([0, 1]))
    shape = ModelShape("sage", 2, 2, hidden=1, layers=1, heads=1, dropout=0.0)
    weights = {  # says what the neighbour is; alone, the first class
        "layers.0.own": torch.zeros(2, 2),
        "layers.0.neighbours": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        "layers.0.bias": torch.tensor([0.1, 0.0]),
    }
    predictors = {
        name: Predictor(shape, weights, True, each.node_ids) for name, each in silos.items()
    }
    assert evaluate(predictors, partition, "global-graph").accuracy == 1.0
    assert evaluate(predictors, partition, "own-subgraph").accuracy == 0.5


def test_unseen_graphs_are_predicted_and_others_refused() -> None:
    result = run("fedavg", PARTITION)
    prediction = result.predict(tiny_graph(20, seed=7))
    assert len(prediction.labels) == 20
    assert set(prediction.labels) <= set(result.label_names)
    with pytest.raises(DataError, match="4 features, the model was trained on 6"):
        result.predict(Graph(np.zeros((2, 4)), [[0], [1]]))
