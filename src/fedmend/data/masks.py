"""Who trains, validates and tests: roles drawn once over the labelled nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmend.errors import GraphError, SettingsError
from fedmend.graph import UNKNOWN_LABEL, Graph

if TYPE_CHECKING:
    from fedmend.data.partition import Partition


def random_masks(graph: Graph, ratio: Sequence[float] = (0.6, 0.2, 0.2), seed: int = 0) -> Graph:
    """The graph with train, val and test nodes drawn uniformly from its labelled nodes.

    Args:
        graph: nodes of unknown label get no role; earlier roles are forgotten.
        ratio: shares of train, val and test, each above 0, together at most 1. The numbers of
            nodes are exact to rounding, and leave no labelled node over where the shares add to 1.
        seed: the same seed gives the same roles.
    """
    shares = [float(share) for share in ratio]
    if len(shares) != 3 or not all(math.isfinite(share) and share > 0 for share in shares):
        raise SettingsError(
            f"ratio must be three numbers above 0 (train, val, test), got {tuple(ratio)}"
        )
    if sum(shares) > 1 + 1e-9:
        raise SettingsError(f"ratio must add up to at most 1, got {tuple(ratio)}")
    if not isinstance(seed, int) or seed < 0:
        raise SettingsError(f"seed must be a whole number from 0, got {seed!r}")
    labelled = np.flatnonzero(graph.y.numpy() != UNKNOWN_LABEL)
    if not len(labelled):
        raise GraphError("no node has a label: there is nothing to train, validate or test on")
    order = np.random.default_rng(seed).permutation(labelled)
    # Rounding the running sums, not the shares: the parts then always add up.
    ends = [min(round(end), len(order)) for end in np.cumsum(shares) * len(order)]
    masks = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(order[start:end])] = True
        masks.append(mask)
    return graph.with_masks(*masks)


def has_roles(graph: Graph) -> bool:
    """Whether any node of the graph is a train, val or test node."""
    return bool((graph.train_mask | graph.val_mask | graph.test_mask).any())


def with_roles(
    silos: Partition, ratio: Sequence[float] = (0.6, 0.2, 0.2), seed: int = 0
) -> Partition:
    """The same silos with roles drawn at random, unless some silo's nodes have roles already.

    Where the whole graph is known they are drawn on it, so that a node keeps its role there;
    otherwise each silo draws its own.
    """
    if any(has_roles(graph) for graph in silos.silos.values()):
        return silos
    if silos.whole is None:
        drawn = {name: random_masks(graph, ratio, seed) for name, graph in silos.silos.items()}
        return replace(silos, silos=drawn)
    whole = random_masks(silos.whole, ratio, seed)
    roles = (whole.train_mask, whole.val_mask, whole.test_mask)
    drawn = {}
    for name, graph in silos.silos.items():
        rows = torch.from_numpy(silos.rows(name))
        drawn[name] = graph.with_masks(*(mask[rows] for mask in roles))
    return replace(silos, silos=drawn, whole=whole)
