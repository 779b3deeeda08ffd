"""The baselines that need no graph, against counting by hand and scikit-learn used plainly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedmend.data.partition import Partition
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.baselines import STRENGTHS, run_baseline
from fedmend.graph import Graph
from tests.tiny import plain_graph, tiny_graph, tiny_partition


def test_majority_is_the_commonest_training_class() -> None:
    silos = tiny_partition()
    whole = silos.whole
    assert whole is not None
    commonest = torch.bincount(whole.y[whole.train_mask]).argmax()
    expected = float((whole.y[whole.test_mask] == commonest).double().mean())
    assert run_baseline("majority", silos, "global-graph").accuracy == pytest.approx(expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_logistic_regression_is_scikit_learns_with_the_best_validated_penalty(
    sparse: bool,
) -> None:
    graph = tiny_graph(120, sparse=sparse)
    x = graph.x.to_dense().numpy()
    y = graph.y.numpy()
    train, val, test = (m.numpy() for m in (graph.train_mask, graph.val_mask, graph.test_mask))
    models = [LogisticRegression(C=c, max_iter=2000).fit(x[train], y[train]) for c in STRENGTHS]
    best = max(models, key=lambda model: model.score(x[val], y[val]))
    silos = Partition({"all": graph}, "none", None)
    scores = run_baseline("logistic", silos, "own-subgraph")
    assert scores.accuracy == pytest.approx(best.score(x[test], y[test]), abs=0.01)
    assert scores.test_nodes == int(test.sum())


def test_the_mode_decides_how_silos_count() -> None:
    silos = tiny_partition()
    whole = run_baseline("logistic", silos, "global-graph")
    own = run_baseline("logistic", silos, "own-subgraph")
    assert whole.by_silo == {}
    assert own.accuracy == pytest.approx(np.mean([e["accuracy"] for e in own.by_silo.values()]))
    sizes = {name: int(graph.test_mask.sum()) for name, graph in silos.silos.items()}
    pooled = sum(own.by_silo[name]["accuracy"] * size for name, size in sizes.items())
    assert whole.accuracy == pytest.approx(pooled / sum(sizes.values()))


def test_one_class_and_no_validation_nodes() -> None:
    masks = torch.tensor([True, True, False, False])
    labels = torch.tensor([1, 1, 1, 0])
    x = torch.eye(4)
    one = Graph(x, torch.tensor([[0], [1]]), labels, train_mask=masks, test_mask=~masks)
    scores = run_baseline("logistic", Partition({"a": one}, "none", None), "own-subgraph")
    assert scores.accuracy == 0.5
    both = Graph(
        x, torch.tensor([[0], [1]]), torch.tensor([1, 0, 1, 0]), train_mask=masks, test_mask=~masks
    )
    scores = run_baseline("logistic", Partition({"a": both}, "none", None), "own-subgraph")
    assert (scores.accuracy, scores.test_nodes) == (0.5, 2)


def test_what_cannot_be_a_baseline() -> None:
    with pytest.raises(UnknownNameError, match="unknown baseline"):
        run_baseline("oracle", tiny_partition(), "global-graph")
    bare = Partition({"a": plain_graph(3, [(0, 1)])}, "none", None)
    with pytest.raises(DataError, match="needs training nodes"):
        run_baseline("majority", bare, "own-subgraph")
