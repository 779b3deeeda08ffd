"""Small graphs and federations that many test files train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.csbm import csbm
from fedmend.data.masks import random_masks
from fedmend.data.partition import Partition, split
from fedmend.files import plain, typed
from fedmend.graph import Graph
from fedmend.runs.cells import known_settings
from fedmend.runs.record import Figures

QUICK: dict[str, Any] = {"rounds": 3, "hidden": 8, "batch_size": 8, "fan_out": 2, "lr": 0.01}
"""Settings with which a run on a tiny federation takes a few hundredths of a second."""


def accepted(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of these settings that have an effect in a method."""
    return {key: value for key, value in settings.items() if key in known_settings(method)}


def tiny_graph(nodes: int = 60, *, seed: int = 0, sparse: bool = False) -> Graph:
    """Three classes, six features, mean degree four; every node has a role."""
    graph = csbm(nodes=nodes, degree=4, classes=3, features=6, signal=2.0, seed=seed)
    if sparse:
        x = graph.x * (graph.x > 0.5)
        graph = Graph(x.to_sparse_csr(), graph.edges, graph.y, label_names=graph.label_names)
    return random_masks(graph, seed=seed)


def tiny_partition(silos: int = 3, nodes: int = 60, *, seed: int = 0) -> Partition:
    """A tiny graph cut at random, so that every silo has all roles."""
    return split(tiny_graph(nodes, seed=seed), silos, "random", seed=seed)


def rebuilt(graph: Graph, **changes: Any) -> Graph:
    """The same graph with some of its parts exchanged."""
    parts: dict[str, Any] = {
        "x": graph.x,
        "edges": graph.edges,
        "y": graph.y,
        "train_mask": graph.train_mask,
        "val_mask": graph.val_mask,
        "test_mask": graph.test_mask,
        "node_ids": graph.node_ids,
        "label_names": graph.label_names,
        "feature_names": graph.feature_names,
    }
    return Graph(**{**parts, **changes})


def reordered(partition: Partition) -> Partition:
    """The same silos, listed the other way round."""
    if partition.assignment is None:
        raise ValueError("made for partitions that know their whole graph")
    return Partition(
        dict(reversed(list(partition.silos.items()))),
        partition.how,
        partition.seed,
        partition.whole,
        np.asarray(len(partition.silos) - 1 - partition.assignment),
    )


def plain_graph(nodes: int, edges: list[tuple[int, int]], *, features: int = 3) -> Graph:
    """A graph with these edges and Gaussian features, for tests of layers and sampling."""
    x = torch.randn(nodes, features, generator=torch.Generator().manual_seed(nodes))
    return Graph(x, np.array(edges, dtype=np.int64).reshape(-1, 2).T)


def same_weights(one: Mapping[str, Tensor] | None, other: Mapping[str, Tensor] | None) -> bool:
    """Whether two models are the same to the bit."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def comparable(run: Figures) -> dict[str, Any]:
    """A record without what may differ between two runs of the same: times, memory, the date."""
    return {key: each for key, each in plain(run).items() if key != "measured"}


def some_figures(**changes: Any) -> Figures:
    """What tables read of a run, of which a test cares only for a part; as JSON has it."""
    known = {
        "method": "fedavg",
        "settings": {},
        "seed": 0,
        "evaluation": "global-graph",
        "split": {"how": "random", "seed": 0, "hash": "h"},
        "content_hash": "",
        "dataset": "tiny",
        "data": {"silos": 2, "missing_share": 0.2},
        "pooled": False,
        "result": {"mode": "global-graph", "accuracy": 0.5, "macro_f1": 0.5, "test_nodes": 2},
        "bytes": {"up": 1, "down": 2},
        "measured": {"seconds": 1.0},
    }
    found: Figures = typed(Figures, {**known, **changes})
    return found
