from __future__ import annotations

import random
import sys
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data import partitioners
from fedmend.data.datasets import load
from fedmend.data.partitioners import (
    PARTITIONERS,
    _level,
    check_split_options,
    column,
    label_dirichlet,
    leiden,
    louvain,
    metis,
    owner_names,
    uniform,
)
from fedmend.errors import GraphError, SettingsError, UnknownNameError
from fedmend.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Assign = Callable[..., NDArray[np.int64]]

CUTTING = {name: entry.function for name, entry in PARTITIONERS.items() if name != "column"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def graph_of(nodes: int, edges: Any, y: Any = None) -> Graph:
    return Graph(np.ones((nodes, 1)), np.asarray(edges, dtype=np.int64).reshape(2, -1), y)


def cliques(count: int, size: int) -> Graph:
    """Complete graphs of equal size, one edge from each to the next."""
    inside = np.array(np.triu_indices(size, 1))
    edges = [inside + size * number for number in range(count)]
    chain = np.arange(count - 1) * size
    return graph_of(count * size, np.concatenate([*edges, [chain, chain + size]], axis=1))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs of all kinds: empty, sparse, dense, stars; labels partly unknown."""
    nodes = draw(st.integers(1, 60))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["none", "random", "star", "complete", "path"]))
    edges = {
        "none": np.zeros((2, 0), dtype=np.int64),
        "random": generator.integers(0, nodes, (2, draw(st.integers(0, 200)))),
        "star": np.stack([np.zeros(nodes, dtype=np.int64), np.arange(nodes)]),
        "complete": np.array(np.triu_indices(nodes, 1)),
        "path": np.stack([np.arange(nodes - 1), np.arange(1, nodes)]),
    }[kind]
    return graph_of(nodes, edges, generator.integers(-1, 4, nodes))


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), data=st.data(), name=st.sampled_from(sorted(CUTTING)))
def test_every_node_has_a_silo_and_no_silo_is_empty(
    graph: Graph, data: st.DataObject, name: str
) -> None:
    silos = data.draw(st.integers(1, graph.num_nodes))
    assignment = CUTTING[name](graph, silos, rng())
    assert assignment.dtype == np.int64
    assert assignment.shape == (graph.num_nodes,)
    assert sorted(set(assignment.tolist())) == list(range(silos))


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), data=st.data(), tolerance=st.sampled_from([0, 0.05, 0.1, 0.5]))
@pytest.mark.parametrize("assign", [louvain, leiden])
def test_communities_make_silos_within_the_tolerance(
    assign: Assign, graph: Graph, data: st.DataObject, tolerance: float
) -> None:
    silos = data.draw(st.integers(1, graph.num_nodes))
    sizes = np.bincount(assign(graph, silos, rng(), tolerance=tolerance), minlength=silos)
    target = graph.num_nodes / silos
    assert sizes.max() <= ceil(target * (1 + tolerance))
    assert sizes.min() >= max(1, floor(target * (1 - tolerance)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 40))
def test_levelling_is_giving_each_node_to_the_smallest_silo(sizes: list[int], nodes: int) -> None:
    reference = list(sizes)
    for _ in range(nodes):
        reference[reference.index(min(reference))] += 1
    added = np.bincount(_level(np.array(sizes), nodes), minlength=len(sizes))
    assert sorted((np.array(sizes) + added).tolist()) == sorted(reference)


@pytest.mark.parametrize("assign", [louvain, leiden])
def test_communities_that_fit_are_never_cut(assign: Assign) -> None:
    assignment = assign(cliques(12, 5), 4, rng()).reshape(12, 5)
    assert (assignment == assignment[:, :1]).all()
    assert np.bincount(assignment[:, 0]).tolist() == [3, 3, 3, 3]


def test_a_community_too_large_is_cut_along_a_breadth_first_order() -> None:
    # A complete graph has no communities inside, so only the order can cut it.
    whole = graph_of(40, np.triu_indices(40, 1))
    assert np.bincount(louvain(whole, 4, rng(), tolerance=0)).tolist() == [10, 10, 10, 10]


def test_only_the_community_that_is_too_large_is_cut() -> None:
    """One clique of 27 and nine of 4, in three silos of 21: only the large one may be divided."""
    large = np.array(np.triu_indices(27, 1))
    small = np.array(np.triu_indices(4, 1))
    edges = [large, *[small + 27 + 4 * number for number in range(9)]]
    assignment = louvain(graph_of(63, np.concatenate(edges, axis=1)), 3, rng(), tolerance=0.05)
    assert len(set(assignment[:27].tolist())) == 2
    parts = assignment[27:].reshape(9, 4)
    assert (parts == parts[:, :1]).all()


def test_louvain_is_leiden_where_edges_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(300, np.random.default_rng(2).integers(0, 300, (2, 900)))
    expected = leiden(graph, 4, rng())
    assert not np.array_equal(louvain(graph, 4, rng()), expected)
    monkeypatch.setattr(partitioners, "MANY_EDGES", 0)
    assert np.array_equal(louvain(graph, 4, rng()), expected)


@pytest.mark.parametrize("name", sorted(CUTTING))
def test_the_seed_alone_decides(name: str) -> None:
    generator = np.random.default_rng(1)
    graph = graph_of(200, generator.integers(0, 200, (2, 500)), generator.integers(-1, 3, 200))
    random.seed(5)
    before = random.getstate()
    first = CUTTING[name](graph, 5, rng(3))
    assert random.getstate() == before, "the user's own random numbers are left alone"
    random.seed(6)
    assert np.array_equal(first, CUTTING[name](graph, 5, rng(3)))
    others = [CUTTING[name](graph, 5, rng(seed)) for seed in range(4, 8)]
    assert any(not np.array_equal(first, other) for other in others)


def test_random_silos_differ_by_one_at_most() -> None:
    sizes = np.bincount(uniform(graph_of(103, []), 10, rng()))
    assert sorted(sizes.tolist()) == [10] * 7 + [11] * 3


def test_dirichlet_alpha_moves_from_few_classes_to_all() -> None:
    graph = graph_of(4000, [], np.arange(4000) % 4)

    def largest_share(alpha: float) -> float:
        assignment = label_dirichlet(graph, 4, rng(), alpha=alpha)
        table = np.zeros((4, 4))
        np.add.at(table, (graph.y.numpy(), assignment), 1)
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    assert largest_share(0.01) > 0.9
    assert largest_share(10_000) < 0.3


def test_dirichlet_follows_its_shares() -> None:
    class Fixed(np.random.Generator):
        def dirichlet(self, *_: object) -> NDArray[np.float64]:
            return np.array([0.5, 0.3, 0.2])

    graph = graph_of(100, [], np.zeros(100, dtype=np.int64))
    assignment = label_dirichlet(graph, 3, Fixed(np.random.PCG64(0)))
    assert np.bincount(assignment).tolist() == [50, 30, 20]


def test_dirichlet_spreads_unlabelled_nodes_evenly() -> None:
    graph = graph_of(40, [], np.full(40, -1))
    assert np.bincount(label_dirichlet(graph, 4, rng())).tolist() == [10] * 4


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), "abc", True, None])
def test_dirichlet_refuses_a_bad_alpha(alpha: Any) -> None:
    with pytest.raises(SettingsError, match=r"alpha: expected a number from 0\.001"):
        label_dirichlet(graph_of(4, [], [0, 1, 0, 1]), 2, rng(), alpha=alpha)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan"), "abc", False, None])
def test_communities_refuse_a_bad_tolerance(tolerance: Any) -> None:
    with pytest.raises(SettingsError, match="tolerance: expected a number from 0"):
        louvain(graph_of(4, []), 2, rng(), tolerance=tolerance)


def test_column_gives_each_owner_a_silo() -> None:
    graph = graph_of(5, [])
    assert column(graph, 2, rng(), column=["b", "a", "b", "b", "a"]).tolist() == [1, 0, 1, 1, 0]
    assert column(graph, 3, rng(), column=[10, 9, 2, 2, 10]).tolist() == [2, 1, 0, 0, 2]


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (None, "needs column="),
        (["a", "b"], r"one owner per node \(3\), got \(2,\)"),
        (["a", "", "b"], "node 1 has no owner"),
        ([1.0, 2.0, float("nan")], "node 2 has no owner"),
        (np.array(["a", None, "b"], dtype=object), "node 1 has no owner"),
        (["a", "b", "c"], "3 different owners for 2 silos"),
    ],
)
def test_column_refuses_what_is_no_owner(owners: Any, message: str) -> None:
    with pytest.raises((SettingsError, GraphError), match=message):
        column(graph_of(3, []), 2, rng(), column=owners)


def test_owner_names_are_safe_and_different_as_folders() -> None:
    values = ["../etc", "a b", "a/b", "A_B", "evaluation", "  ", "Zürich", ".."]
    names = owner_names(len(values), values)
    assert dict(zip(sorted(values), names, strict=True)) == {
        "  ": "silo",
        "..": "silo-2",
        "../etc": "etc",
        "A_B": "A_B",
        "Zürich": "Zürich",
        "a b": "a_b-2",
        "a/b": "a_b-3",
        "evaluation": "evaluation-2",
    }


def test_metis_cuts_little() -> None:
    pytest.importorskip("pymetis")
    graph = cliques(6, 10)
    assignment = metis(graph, 3, rng())
    edges = graph.edges.numpy()
    assert (assignment[edges[0]] != assignment[edges[1]]).sum() == 2
    assert metis(graph, 1, rng()).tolist() == [0] * 60


def test_metis_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(SettingsError, match=r'pip install "fedmend\[metis\]"'):
        metis(graph_of(4, []), 2, rng())


@pytest.mark.parametrize("seed", [0, 1])
def test_louvain_on_cora_cuts_what_the_paper_cuts(seed: int) -> None:
    """FedDEP's table 1: Cora, 5 silos, 10.5 % of the links missing."""
    graph = load("cora")
    assignment = louvain(graph, 5, rng(seed))
    edges = graph.edges.numpy()
    assert 0.05 < (assignment[edges[0]] != assignment[edges[1]]).mean() < 0.14
    sizes = np.bincount(assignment)
    assert abs(sizes / (graph.num_nodes / 5) - 1).max() < 0.15


def test_the_registry_names_what_the_functions_take() -> None:
    for name, entry in PARTITIONERS.items():
        keywords = entry.function.__kwdefaults__ or {}
        assert tuple(keywords) == entry.options, name
        assert entry.description
        assert "\n" not in entry.description
    assert partitioners.TOLERANCE == 0.1


def test_options_are_checked_by_name() -> None:
    """Also those that are arguments of what calls the split."""
    for name, entry in PARTITIONERS.items():
        check_split_options(name, entry.options)
        for option in ("seed", "silos", "graph", "how", "ratio", "rng"):
            with pytest.raises(SettingsError, match=f"option.*'{option}'"):
                check_split_options(name, [*entry.options, option])
    with pytest.raises(UnknownNameError, match="did you mean 'louvain'"):
        check_split_options("louvian", [])
