"""What a graph method must beat: the commonest class, and logistic regression on features alone.

Both see the training nodes of all silos in one place and no edge. They are no methods (nothing is
federated, no model is kept): tables carry them so that nobody takes a figure for an achievement
that needs no graph. The third of the kind, an MLP, is the method `global` with `backbone=mlp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.errors import DataError, UnknownNameError
from fedmend.evaluation.evaluate import Scores, joint_scores, scores
from fedmend.evaluation.metrics import statistics
from fedmend.graph import Graph, is_sparse, scipy_csr

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy import sparse

BASELINES = {
    "majority": "the commonest class of the training nodes, for every node",
    "logistic": "logistic regression on the features, all training nodes in one place",
}

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse penalties that logistic regression chooses from, by validation accuracy."""

Classifier = Callable[[Graph], Tensor]
"""The class of every node of a graph."""


def run_baseline(name: str, partition: Partition, mode: str) -> Scores:
    """A baseline's figures on these silos, in the mode the methods beside it are tested in."""
    if name not in BASELINES:
        raise UnknownNameError("baseline", name, BASELINES)
    graphs = list(partition.silos.values())
    if not any(bool(graph.train_mask.any()) for graph in graphs):
        raise DataError("a baseline needs training nodes, and no silo has one")
    classify = _majority(graphs) if name == "majority" else _logistic(graphs)
    found = {
        silo: statistics(F.one_hot(classify(graph)[test], graph.num_classes), graph.y[test])
        for silo, graph in sorted(partition.silos.items())
        if bool((test := graph.test_mask).any())
    }
    if not found:
        raise DataError("nothing can be tested: no silo has test nodes")
    # Without edges it makes no difference which graph a node is asked on: all tests together.
    return scores(mode, found) if mode == "own-subgraph" else joint_scores(mode, found, apart=False)


def _majority(graphs: list[Graph]) -> Classifier:
    labels = torch.cat([graph.y[graph.train_mask] for graph in graphs])
    commonest = int(torch.bincount(labels).argmax())
    return lambda graph: torch.full((graph.num_nodes,), commonest)


def _logistic(graphs: list[Graph]) -> Classifier:
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression  # slow to import, needed only here
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    def rows(mask: str) -> tuple[sparse.csr_matrix, NDArray[Any]]:
        x = sparse.vstack([_x(graph)[getattr(graph, mask).numpy()] for graph in graphs]).tocsr()
        return x, np.concatenate([graph.y[getattr(graph, mask)].numpy() for graph in graphs])

    x, y = rows("train_mask")
    if len(np.unique(y)) == 1:
        return _majority(graphs)
    validation = rows("val_mask")
    # One thread: cells may run side by side, and they share the cores.
    with threadpool_limits(1):
        models = [LogisticRegression(C=each, max_iter=2000).fit(x, y) for each in STRENGTHS]
    if len(validation[1]):
        best = max(models, key=lambda model: float(model.score(*validation)))  # the first of equals
    else:
        best = models[STRENGTHS.index(1.0)]
    return lambda graph: torch.from_numpy(best.predict(_x(graph)).astype(np.int64))


def _x(graph: Graph) -> sparse.csr_matrix:
    from scipy import sparse

    return scipy_csr(graph.x) if is_sparse(graph.x) else sparse.csr_matrix(graph.x.numpy())
