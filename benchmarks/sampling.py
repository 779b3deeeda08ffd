"""The vectorised neighbour sampler beside a plain Python loop that follows the same rule."""

from __future__ import annotations

import random

import torch

from benchmarks.common import Measured, Options, Row, medians_in_turns, working_on
from fedmend.data.csbm import csbm
from fedmend.data.sampling import sample_neighbours
from fedmend.graph import Graph

FAN_OUT = 5


def sampling(options: Options) -> Measured:
    """Microseconds per node, for batches from small to all nodes."""
    nodes = 2_000 if options.quick else 100_000
    repeats = 3 if options.quick else 7
    with working_on("sampling"):
        graph = csbm(nodes=nodes, degree=20.0)
        rows = [_row(graph, batch, repeats) for batch in (64, 1_000, nodes)]
    return Measured(rows, {"nodes": nodes, "degree": 20, "fan_out": FAN_OUT, "repeats": repeats})


def _row(graph: Graph, batch: int, repeats: int) -> Row:
    chosen = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[:batch]
    generator = torch.Generator().manual_seed(0)
    neighbours = [
        graph.col[start:end].tolist()
        for start, end in zip(
            graph.rowptr[chosen].tolist(), graph.rowptr[chosen + 1].tolist(), strict=True
        )
    ]
    drawn = random.Random(0)
    ours, loop = medians_in_turns(
        repeats,
        lambda: sample_neighbours(graph, chosen, FAN_OUT, generator),
        lambda: [_plain(each, drawn) for each in neighbours],
    )
    micro = 1e6 / batch
    return {
        "nodes": batch,
        "fedmend_us": ours * micro,
        "loop_us": loop * micro,
        "ratio": loop / ours,
    }


def _plain(neighbours: list[int], drawn: random.Random) -> list[int]:
    if len(neighbours) > FAN_OUT:
        return drawn.sample(neighbours, FAN_OUT)
    return drawn.choices(neighbours, k=FAN_OUT) if neighbours else []
