"""Neighbour sampling: the rule, its uniformity, and the two ways of computing a batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import plain_graph, tiny_graph
from torch import Tensor

from fedmend.data.sampling import (
    ALL_NEIGHBOURS,
    Draw,
    Neighbours,
    all_rows_hops,
    covers_most,
    drawing,
    every_neighbour,
    gathered_hops,
    hops_from_everybody,
    sample_neighbours,
    whole_graph_hop,
)
from fedmend.graph import Graph, select_rows
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features

int64 = torch.int64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def neighbours_of(graph: Graph, node: int) -> list[int]:
    listed: list[int] = graph.col[graph.rowptr[node] : graph.rowptr[node + 1]].tolist()
    return listed


def picks(found: Neighbours) -> list[list[int]]:
    ends = found.rowptr.tolist()
    col = found.col.tolist()
    return [col[start:end] for start, end in pairwise(ends)]


def star(leaves: int) -> Graph:
    """Node 0 knows 1, 2, ..., `leaves`; node `leaves` + 1 knows nobody."""
    return plain_graph(leaves + 2, [(0, leaf) for leaf in range(1, leaves + 1)])


@given(
    seed=st.integers(0, 10**6),
    fan_out=st.integers(1, 8),
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60),
    nodes=st.lists(st.integers(0, 11), max_size=12, unique=True),
)
def test_rule(seed: int, fan_out: int, edges: list[tuple[int, int]], nodes: list[int]) -> None:
    """Distinct where the degree is greater than the fan-out; else with replacement; or nobody."""
    graph = plain_graph(12, edges)
    found = sample_neighbours(graph, torch.tensor(nodes, dtype=torch.int64), fan_out, seeded(seed))
    assert len(found.rowptr) == len(nodes) + 1
    for node, chosen in zip(nodes, picks(found), strict=True):
        true = neighbours_of(graph, node)
        assert set(chosen) <= set(true)
        assert len(chosen) == (fan_out if true else 0)
        if len(true) > fan_out:
            assert len(set(chosen)) == fan_out
    again = sample_neighbours(graph, torch.tensor(nodes, dtype=torch.int64), fan_out, seeded(seed))
    assert torch.equal(found.col, again.col)


def test_another_seed_gives_another_sample_and_the_global_stream_is_left_alone() -> None:
    graph = star(50)
    before = torch.get_rng_state()
    one, other = (sample_neighbours(graph, torch.tensor([0]), 5, seeded(s)) for s in (0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted(one.col.tolist()) != sorted(other.col.tolist())


# Uniformity. The seeds are fixed, so these cannot fail by chance; the same tests must refuse a
# sampler that is a little biased, or they would prove nothing.

REPEATS = 60_000
REFUSED = 1e-3  # p-value below which a sampler is held to be biased

Sampler = Callable[[int, int, torch.Generator], Tensor]
"""Leaves 0 .. degree-1 drawn REPEATS times: (degree, fan_out, generator) -> REPEATS x fan_out."""


def ours(degree: int, fan_out: int, generator: torch.Generator) -> Tensor:
    found = sample_neighbours(star(degree), torch.zeros(REPEATS, dtype=int64), fan_out, generator)
    return found.col.view(REPEATS, fan_out) - 1


def p_value(outcomes: list[tuple[int, ...]], possible: int) -> float:
    """Chi-square: how likely a uniform draw from `possible` outcomes is to look so uneven."""
    counts = list(Counter(outcomes).values())
    counts += [0] * (possible - len(counts))
    assert len(counts) == possible
    return float(scipy.stats.chisquare(counts).pvalue)


def single_picks(sampler: Sampler, degree: int, fan_out: int, place: int) -> float:
    drawn = sampler(degree, fan_out, seeded(11))
    return p_value([(leaf,) for leaf in drawn[:, place].tolist()], degree)


def all_members(sampler: Sampler, degree: int, fan_out: int) -> float:
    """How often each leaf is in the sample; without replacement these vary less than chi-square
    says, so the statistic is scaled by (degree - 1) / (degree - fan_out)."""
    drawn = sampler(degree, fan_out, seeded(12))
    counts = torch.bincount(drawn.reshape(-1), minlength=degree).double()
    expected = REPEATS * fan_out / degree
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(scipy.stats.chi2.sf(statistic * (degree - 1) / (degree - fan_out), degree - 1))


def subsets(sampler: Sampler, degree: int, fan_out: int) -> float:
    drawn = sampler(degree, fan_out, seeded(13)).sort(1).values
    return p_value([tuple(row) for row in drawn.tolist()], math.comb(degree, fan_out))


@pytest.mark.parametrize(("degree", "fan_out"), [(3, 5), (5, 5), (2, 3)])
def test_with_replacement_is_uniform(degree: int, fan_out: int) -> None:
    for place in range(fan_out):
        assert single_picks(ours, degree, fan_out, place) > REFUSED
    pairs = ours(degree, fan_out, seeded(14))[:, [0, fan_out - 1]].tolist()
    assert p_value([tuple(pair) for pair in pairs], degree**2) > REFUSED


@pytest.mark.parametrize(("degree", "fan_out"), [(6, 1), (6, 2), (7, 3), (8, 5), (6, 5)])
def test_without_replacement_every_subset_is_equally_likely(degree: int, fan_out: int) -> None:
    assert all_members(ours, degree, fan_out) > REFUSED
    assert subsets(ours, degree, fan_out) > REFUSED


def always_takes_the_top(degree: int, fan_out: int, generator: torch.Generator) -> Tensor:
    """Floyd's method with the range one too short: the usual slip."""
    rows = []
    uniform = torch.rand(REPEATS, fan_out, generator=generator).tolist()
    for row in uniform:
        taken: list[int] = []
        for top, draw in zip(range(degree - fan_out, degree), row, strict=True):
            leaf = int(draw * max(top, 1))
            taken.append(top if leaf in taken else leaf)
        rows.append(taken)
    return torch.tensor(rows)


def neighbouring_runs(degree: int, fan_out: int, generator: torch.Generator) -> Tensor:
    """A random start and those that follow it: every leaf equally often, but few subsets."""
    start = torch.randint(degree, (REPEATS, 1), generator=generator)
    return (start + torch.arange(fan_out)) % degree


def slightly_uneven(degree: int, fan_out: int, generator: torch.Generator) -> Tensor:
    """With replacement, but the first leaf five percent more often than the others."""
    share = torch.ones(degree)
    share[0] = 1.05
    return torch.multinomial(share.expand(REPEATS, -1), fan_out, True, generator=generator)


def test_biased_samplers_are_refused() -> None:
    assert single_picks(slightly_uneven, 3, 5, 0) < REFUSED
    assert all_members(always_takes_the_top, 7, 3) < REFUSED
    assert subsets(always_takes_the_top, 7, 3) < REFUSED
    assert single_picks(neighbouring_runs, 7, 3, 0) > REFUSED  # blind to it, hence subsets
    assert subsets(neighbouring_runs, 7, 3) < REFUSED


def test_each_node_is_drawn_independently() -> None:
    """Two listeners of the same neighbours: all pairs of picks are equally likely."""
    graph = plain_graph(5, [(a, b) for a in (0, 1) for b in (2, 3, 4)])
    nodes = torch.tensor([0, 1]).repeat(REPEATS // 2)
    found = sample_neighbours(graph, nodes, 1, seeded(5)).col.view(-1, 2).tolist()
    assert p_value([tuple(pair) for pair in found], 9) > REFUSED


# All neighbours


def test_every_neighbour() -> None:
    graph = plain_graph(6, [(0, 1), (0, 2), (0, 3), (4, 1)])
    nodes = torch.tensor([4, 5, 0])
    assert picks(every_neighbour(graph, nodes)) == [[1], [], [1, 2, 3]]
    assert picks(drawing(graph, ALL_NEIGHBOURS, seeded())(0, nodes)) == [[1], [], [1, 2, 3]]
    assert picks(every_neighbour(graph, nodes[:0])) == []


def test_drawing_samples_anew_each_time() -> None:
    draw = drawing(star(100), 5, seeded())
    first, second = (draw(0, torch.tensor([0])).col.tolist() for _ in range(2))
    assert sorted(first) != sorted(second)


# Gathering a batch's neighbourhood, computing all rows, and a plain loop: all the same


def fixed_table(graph: Graph, layers: int, fan_out: int) -> Draw:
    """Samples drawn once for every layer and node, then only looked up."""
    everyone = torch.arange(graph.num_nodes)
    table = [
        picks(sample_neighbours(graph, everyone, fan_out, seeded(layer))) for layer in range(layers)
    ]

    def look_up(layer: int, nodes: Tensor) -> Neighbours:
        chosen = [table[layer][node] for node in nodes.tolist()]
        ends = torch.tensor([0] + [len(each) for each in chosen]).cumsum(0)
        return Neighbours(ends, torch.tensor([n for each in chosen for n in each], dtype=int64))

    return look_up


def backbone_of(kind: str, layers: int, features: int) -> Backbone:
    shape = ModelShape(kind, features, 3, hidden=4, layers=layers, heads=2, dropout=0.0)
    model = build(shape, seeded(3))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(generator=seeded(4))
    return model


def naive_scores(model: Backbone, graph: Graph, batch: list[int], draw: Draw) -> list[list[float]]:
    """The network written out node by node, from the papers' formulas, in double precision."""
    x = (graph.x.to_dense() if graph.x.layout != torch.strided else graph.x).double()
    degree: list[int] = graph.degree.tolist()
    weights = {name: value.detach().double() for name, value in model.named_parameters()}
    last = len(model.layers) - 1

    def value(layer: int, node: int) -> Tensor:
        """A node's output of this layer; layer -1 is its features."""
        if layer < 0:
            return x[node]
        heard = draw(layer, torch.tensor([node])).col.tolist()
        own, others = passed(layer - 1, node), [passed(layer - 1, other) for other in heard]
        w = {k.removeprefix(f"layers.{layer}."): v for k, v in weights.items()}
        if model.shape.backbone == "sage":
            mean = torch.stack(others).mean(0) if others else torch.zeros_like(own)
            return own @ w_of(layer, "own") + mean @ w_of(layer, "neighbours") + w_of(layer, "bias")
        if model.shape.backbone == "gcn":
            out = own / (degree[node] + 1)
            for other, row in zip(heard, others, strict=True):
                stands_for = degree[node] / len(heard)
                out = out + stands_for * row / math.sqrt((degree[node] + 1) * (degree[other] + 1))
            return out @ w_of(layer, "weight") + w_of(layer, "bias")
        heads = 1 if layer == last else model.shape.heads
        projected = [(row @ w_of(layer, "weight")).view(heads, -1) for row in [*others, own]]
        by_head = []
        for head in range(heads):
            target = float(projected[-1][head] @ w["as_target"][head])
            scores = [target + float(row[head] @ w["as_source"][head]) for row in projected]
            powers = [math.exp(s if s > 0 else 0.2 * s) for s in scores]
            shares = [power / sum(powers) for power in powers]
            told = [share * row[head] for share, row in zip(shares, projected, strict=True)]
            by_head.append(torch.stack(told).sum(0))
        return torch.cat(by_head) + w_of(layer, "bias")

    def passed(layer: int, node: int) -> Tensor:
        return torch.relu(value(layer, node)) if layer >= 0 else value(layer, node)

    def w_of(layer: int, name: str) -> Tensor:
        return weights[f"layers.{layer}.{name}"]

    return [value(last, node).tolist() for node in batch]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_gathered_all_rows_and_naive_agree(kind: str, layers: int, sparse: bool) -> None:
    graph = with_isolated(tiny_graph(40, seed=2, sparse=sparse))
    batch = torch.tensor([40, 3, 17, 5, 29])
    draw = fixed_table(graph, layers, 3)
    model = backbone_of(kind, layers, graph.num_features)
    hops, nodes = gathered_hops(graph, batch, layers, draw)
    assert torch.equal(nodes[: len(batch)], batch)
    assert len(set(nodes.tolist())) == len(nodes)
    gathered = model(Features(select_rows(graph.x, nodes)), hops)
    all_rows = model(Features(graph.x), all_rows_hops(graph, batch, layers, draw))
    naive = torch.tensor(naive_scores(model, graph, batch.tolist(), draw))
    torch.testing.assert_close(gathered, all_rows, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gathered, naive.float(), atol=1e-5, rtol=1e-5)
    partly = hops_from_everybody(graph, batch, layers, draw)
    assert [hop.rows for hop in partly] == [hop.rows for hop in hops]
    for reused in (False, True):
        from_everybody = model(Features(graph.x, reused=reused), partly)
        torch.testing.assert_close(gathered, from_everybody, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_gradients_agree_too(kind: str, layers: int, sparse: bool) -> None:
    graph = with_isolated(tiny_graph(40, seed=2, sparse=sparse))
    batch = torch.tensor([40, 3, 17, 5, 29])
    draw = fixed_table(graph, layers, 3)
    hops, nodes = gathered_hops(graph, batch, layers, draw)
    gathered, all_rows, partly = (backbone_of(kind, layers, 6) for _ in range(3))
    torch.autograd.backward(gathered(Features(select_rows(graph.x, nodes)), hops).sum())
    every = all_rows_hops(graph, batch, layers, draw)
    torch.autograd.backward(all_rows(Features(graph.x), every).sum())
    some = hops_from_everybody(graph, batch, layers, draw)
    torch.autograd.backward(partly(Features(graph.x, reused=True), some).sum())
    models = (gathered, all_rows, partly)
    for one, *others in zip(*(model.parameters() for model in models), strict=True):
        for other in others:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-5)


def with_isolated(graph: Graph) -> Graph:
    """The graph and one more node, that nobody knows."""
    x = graph.x if graph.x.layout == torch.strided else graph.x.to_dense()
    more = torch.cat([x, torch.ones(1, x.shape[1])])
    return Graph(more if graph.x is x else more.to_sparse_csr(), graph.edges)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_full_neighbourhoods_gathered_are_the_whole_graph(kind: str, layers: int) -> None:
    graph = with_isolated(tiny_graph(40, seed=5))
    batch = torch.tensor([7, 40, 0])
    model = backbone_of(kind, layers, 6)
    whole = model(Features(graph.x), [whole_graph_hop(graph)] * layers)[batch]
    hops, nodes = gathered_hops(graph, batch, layers, drawing(graph, ALL_NEIGHBOURS, seeded()))
    gathered = model(Features(graph.x[nodes]), hops)
    torch.testing.assert_close(gathered, whole, atol=1e-6, rtol=1e-6)


def test_gathering_stays_within_the_batchs_neighbourhood() -> None:
    """On a path, two layers reach two steps away and no further."""
    path = plain_graph(10, [(node, node + 1) for node in range(9)])
    draw = drawing(path, ALL_NEIGHBOURS, seeded())
    hops, nodes = gathered_hops(path, torch.tensor([5]), 2, draw)
    assert sorted(nodes.tolist()) == [3, 4, 5, 6, 7]
    assert [hop.rows for hop in hops] == [3, 1]
    assert [hop.sources for hop in hops] == [5, 3]


def test_sampled_gcn_is_right_on_average() -> None:
    """Over all equally likely samples, the mean of the sampled sum is the full sum."""
    graph = star(4)
    model = backbone_of("gcn", 1, 3)
    full = model(Features(graph.x), [whole_graph_hop(graph)])[0]
    sampled = []
    for pair in permutations(range(1, 5), 2):
        chosen = Neighbours(torch.tensor([0, 2]), torch.tensor(pair))
        hops = all_rows_hops(graph, torch.tensor([0]), 1, partial(always, chosen))
        sampled.append(model(Features(graph.x), hops)[0])
    assert len(sampled) == 12
    torch.testing.assert_close(torch.stack(sampled).mean(0), full)


def always(chosen: Neighbours, layer: int, nodes: Tensor) -> Neighbours:
    return chosen


def test_covers_most_asks_how_far_a_batch_reaches() -> None:
    graph = tiny_graph(600)
    assert covers_most(graph, 200, 2, 5)
    assert not covers_most(graph, 199, 2, 5)
    assert covers_most(graph, 240, 2, ALL_NEIGHBOURS)  # mean degree 4: 240 * (4 + 1)
    assert not covers_most(graph, 239, 2, ALL_NEIGHBOURS)
    assert not covers_most(graph, 600, 1, 5)  # one layer computes nothing but the batch
