"""How generated neighbours compare with the true ones: looked at after a run, never by a method.

Only where the whole graph is known is it also known who was cut off from whom. What is kept in a
run's record is small whatever the graph's size: some nodes' numbers, and points on a plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.graph import is_sparse, select_rows

MOST_NODES = 2000
MOST_POINTS = 300


class Generated(NamedTuple):
    """What a silo generated, and what it is compared with.

    rows: generated features or embeddings. owner: the silo's node each belongs to.
    of_nodes: the same for the silo's own nodes, which other silos may have missed.
    """

    rows: Tensor
    owner: Tensor
    of_nodes: Tensor


def compare_generated(found: Mapping[str, Generated], partition: Partition) -> dict[str, Any]:
    """Predicted against true numbers of missing neighbours, and both kinds of rows on a plane."""
    whole, assignment = partition.whole, partition.assignment
    if whole is None or assignment is None:
        return {}
    predicted, true = [], []
    for name, each in found.items():
        graph = partition.silos[name]
        rows = torch.from_numpy(partition.rows(name))
        true.append(whole.degree[rows] - graph.degree)
        predicted.append(torch.bincount(each.owner, minlength=graph.num_nodes))
    all_true, all_predicted = torch.cat(true), torch.cat(predicted)
    some = _spread(len(all_true), MOST_NODES)
    return {
        "predicted": all_predicted[some].tolist(),
        "true": all_true[some].tolist(),
        "generated": int(all_predicted.sum()),
        "missing": int(all_true.sum()),
        "projection": _projection(found, partition, whole.num_nodes),
    }


def _spread(count: int, most: int) -> Tensor:
    """At most so many indices, evenly spread."""
    if count <= most:
        return torch.arange(count)
    return torch.linspace(0, count - 1, most).long()


def _projection(found: Mapping[str, Generated], partition: Partition, nodes: int) -> dict[str, Any]:
    """Generated rows and the rows of truly missing neighbours, on their two main axes."""
    made = torch.cat([each.rows for each in found.values()])
    if not len(made):
        return {"generated": [], "true": []}
    made = made[_spread(len(made), MOST_POINTS)]
    missing = _rows_of_missing(found, partition, nodes)
    both = torch.cat([made, missing])
    centred = both - both.mean(0)
    # Of the points and not of their covariance: they are a few hundred, features may be thousands.
    along, lengths, _ = torch.linalg.svd(centred, full_matrices=False)
    points = F.pad(along[:, :2] * lengths[:2], (0, 2 - len(lengths[:2])))
    rounded = [[round(value, 4) for value in point] for point in points.tolist()]
    return {"generated": rounded[: len(made)], "true": rounded[len(made) :]}


def _rows_of_missing(found: Mapping[str, Generated], partition: Partition, nodes: int) -> Tensor:
    """The rows, at their own silos, of nodes at both ends of some of the missing links."""
    ends = torch.from_numpy(partition.cross_edges).reshape(-1)
    ends = ends[_spread(len(ends), MOST_POINTS)]
    rows = []
    for name, each in found.items():
        place = torch.full((nodes,), -1)
        place[torch.from_numpy(partition.rows(name))] = torch.arange(len(each.of_nodes))
        mine = place[ends]
        chosen = select_rows(each.of_nodes, mine[mine >= 0])
        rows.append(chosen.to_dense() if is_sparse(chosen) else chosen)
    return torch.cat(rows)
