"""Graph: what it accepts, what it makes of it, and what it says about bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmend.errors import GraphError
from fedmend.graph import Graph, csr_tensor, is_sparse, scipy_csr, select_rows

NO_EDGES = np.zeros((2, 0), dtype=np.int64)


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    return {(int(u), int(v)) for u, v in graph.edges.T.tolist()}


@st.composite
def pairs_of_nodes(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    nodes = draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    return nodes, draw(st.lists(st.tuples(node, node), max_size=40))


@given(pairs_of_nodes(), st.sampled_from(["array", "tensor", "list", "int32", "uint8"]))
def test_edges_become_undirected_and_simple(
    case: tuple[int, list[tuple[int, int]]], form: str
) -> None:
    nodes, pairs = case
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    given_as: dict[str, Any] = {
        "array": array,
        "tensor": torch.from_numpy(array.copy()),
        "list": array.tolist(),
        "int32": array.astype(np.int32),
        "uint8": array.astype(np.uint8),
    }
    graph = Graph(np.zeros((nodes, 1)), given_as[form])

    expected = set()
    for u, v in pairs:
        if u != v:
            expected.add((min(u, v), max(u, v)))
    assert edge_set(graph) == expected
    assert graph.num_edges == len(expected)
    neighbours: list[list[int]] = [[] for _ in range(nodes)]
    for u, v in expected:
        neighbours[u].append(v)
        neighbours[v].append(u)
    for node in range(nodes):
        row = graph.col[graph.rowptr[node] : graph.rowptr[node + 1]].tolist()
        assert row == sorted(neighbours[node])
    assert graph.degree.tolist() == [len(row) for row in neighbours]
    assert {(u, v) for u, v in graph.edge_index.T.tolist()} == expected | {
        (v, u) for u, v in expected
    }


@given(pairs_of_nodes(), st.data())
@settings(max_examples=60)
def test_subgraph_is_the_induced_graph(
    case: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    nodes, pairs = case
    x = np.arange(nodes * 3).reshape(nodes, 3) % 4
    y = np.arange(nodes) % 3 - 1
    roles = np.arange(nodes) % 4
    graph = Graph(
        sp.csr_matrix(x) if data.draw(st.booleans()) else x,
        np.array(pairs, dtype=np.int64).reshape(-1, 2).T,
        y,
        train_mask=(roles == 1) & (y >= 0),
        val_mask=(roles == 2) & (y >= 0),
        test_mask=(roles == 3) & (y >= 0),
        node_ids=[f"n{node}" for node in range(nodes)],
        label_names=["a", "b"],
        feature_names=["p", "q", "r"],
    )
    chosen = data.draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=nodes, unique=True))
    part = graph.subgraph(torch.tensor(chosen))

    expected = set()
    for u, v in edge_set(graph):
        if u in chosen and v in chosen:
            a, b = chosen.index(u), chosen.index(v)
            expected.add((min(a, b), max(a, b)))
    assert edge_set(part) == expected
    assert is_sparse(part.x) == is_sparse(graph.x)
    assert torch.equal(part.x.to_dense(), graph.x.to_dense()[chosen])
    assert part.y.tolist() == [int(graph.y[node]) for node in chosen]
    for name in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(part, name), getattr(graph, name)[chosen])
    assert part.node_ids.tolist() == [f"n{node}" for node in chosen]
    assert part.label_names == ("a", "b")
    assert part.feature_names == ("p", "q", "r")


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_select_rows_of_sparse_is_select_rows_of_dense(
    table: list[list[int]], wanted: list[int]
) -> None:
    dense = torch.tensor(table, dtype=torch.float32)
    rows = torch.tensor([row % len(table) for row in wanted], dtype=torch.int64)
    sparse = csr_tensor(sp.csr_matrix(np.array(table)))
    result = select_rows(sparse, rows)
    assert is_sparse(result)
    assert torch.equal(result.to_dense(), select_rows(dense, rows))


def unsorted_csr() -> sp.csr_matrix:
    """[[0, 3, 1], [0, 0, 2]] with unsorted columns and a value given in two parts."""
    return sp.csr_matrix(
        (np.array([1.0, 3.0, 0.5, 1.5]), np.array([2, 1, 2, 2]), np.array([0, 2, 4])), shape=(2, 3)
    )


@pytest.mark.parametrize(
    "form",
    [
        lambda: unsorted_csr(),
        lambda: unsorted_csr().tocoo(),
        lambda: unsorted_csr().tocsc(),
        lambda: sp.csr_array(unsorted_csr()),
        lambda: torch.tensor([[0, 3, 1], [0, 0, 2.0]]).to_sparse(),
        lambda: torch.tensor([[0, 3, 1], [0, 0, 2.0]], dtype=torch.bfloat16).to_sparse_csr(),
        lambda: torch.sparse_csr_tensor(
            torch.tensor([0, 2, 4]),
            torch.tensor([2, 1, 2, 2]),
            torch.tensor([1.0, 3.0, 0.5, 1.5]),
            size=(2, 3),
        ),
    ],
)
def test_sparse_features_stay_sparse_and_get_sorted(form: Callable[[], Any]) -> None:
    graph = Graph(form(), NO_EDGES)
    assert is_sparse(graph.x)
    assert graph.x.dtype == torch.float32
    assert graph.x.to_dense().tolist() == [[0, 3, 1], [0, 0, 2]]
    assert graph.x.col_indices().tolist() == [1, 2, 2]
    assert (scipy_csr(graph.x).toarray() == [[0, 3, 1], [0, 0, 2]]).all()


def test_the_callers_sparse_matrix_is_left_alone() -> None:
    matrix = unsorted_csr()
    Graph(matrix, NO_EDGES)
    assert matrix.indices.tolist() == [2, 1, 2, 2]


def test_dense_features_stay_dense() -> None:
    graph = Graph([[1, 2], [3, 4]], [[0], [1]])
    assert not is_sparse(graph.x)
    assert graph.x.tolist() == [[1, 2], [3, 4]]
    assert graph.x.dtype == torch.float32
    assert repr(graph) == "Graph(2 nodes, 1 edges, 2 dense features, 0 classes)"


def test_defaults() -> None:
    graph = Graph(np.zeros((3, 2)), NO_EDGES)
    assert graph.y.tolist() == [-1, -1, -1]
    assert graph.node_ids.tolist() == [0, 1, 2]
    assert graph.label_names == ()
    assert graph.num_classes == 0
    assert graph.feature_names is None
    assert not (graph.train_mask | graph.val_mask | graph.test_mask).any()
    assert Graph(np.zeros((2, 1)), NO_EDGES, [2, 0]).label_names == ("0", "1", "2")


def bad_csr(columns: list[int]) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]), torch.tensor(columns), torch.ones(2), size=(2, 3)
    )


def bad_rows(rowptr: list[int]) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.tensor(rowptr), torch.tensor([0, 1]), torch.ones(2), size=(len(rowptr) - 1, 3)
    )


def sparse_with(value: float, row: int) -> sp.csr_matrix:
    matrix = sp.lil_matrix((4, 3))
    matrix[0, 1] = 1.0
    matrix[row, 2] = value
    return matrix.tocsr()


def dense_with(value: float, row: int) -> Tensor:
    x = torch.zeros(4, 3)
    x[row, 2] = value
    return x


X = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Graph(np.zeros(4), NO_EDGES), "x: features must be a matrix"),
        (lambda: Graph(np.zeros((0, 3)), NO_EDGES), "x: a graph needs at least one node"),
        (lambda: Graph(dense_with(np.nan, 2), NO_EDGES), "x: row 2 has a feature that is NaN"),
        (lambda: Graph(dense_with(np.inf, 3), NO_EDGES), "x: row 3 has a feature that is NaN"),
        (lambda: Graph(sparse_with(np.nan, 2), NO_EDGES), "x: row 2 has a feature that is NaN"),
        (lambda: Graph(sparse_with(-np.inf, 0), NO_EDGES), "x: row 0 has a feature that is NaN"),
        (lambda: Graph(sparse_with(1e300, 1), NO_EDGES), "x: row 1 has a feature that is NaN"),
        (
            lambda: Graph(dense_with(np.nan, 3).to_sparse_csr(), NO_EDGES),
            "x: row 3 has a feature that is NaN",
        ),
        (lambda: Graph(bad_csr([0, 3]), NO_EDGES), "matrix: row 1 has a column index outside 0 to"),
        (lambda: Graph(bad_csr([-1, 0]), NO_EDGES), "matrix: row 0 has a column index outside"),
        (lambda: Graph(bad_rows([0, 5, -3, 0]), NO_EDGES), "x: not a valid sparse matrix: row poi"),
        (lambda: Graph(bad_rows([0, 2, 1, 2]), NO_EDGES), "x: not a valid sparse matrix: row poin"),
        (lambda: Graph(bad_rows([0, 1, 5]), NO_EDGES), "x: not a valid sparse matrix"),
        (lambda: Graph([["a", "b"]], NO_EDGES), "x: expected a matrix of numbers"),
        (lambda: Graph([[1, 2], [3]], NO_EDGES), "x: expected a matrix of numbers"),
        (lambda: Graph(np.zeros((2, 2), dtype=complex), NO_EDGES), "x: features must be real"),
        (lambda: Graph(sp.eye(3, dtype=complex), NO_EDGES), "x: features must be real"),
        (lambda: Graph(X, [[0, 1, 2]]), r"edges: expected a 2 x E array .* got shape \(1, 3\)"),
        (lambda: Graph(X, [[0, 1], [2]]), "edges: expected a 2 x E array"),
        (lambda: Graph(X, [[0.0], [1.0]]), "edges: node indices must be integers, got float64"),
        (
            lambda: Graph(X, [[0, 1, 2], [1, 4, 0]]),
            "edges: edge 1 joins 1 and 4, but node indices run from 0 to 3",
        ),
        (lambda: Graph(X, [[0, 1, -2], [1, 3, 0]]), "edges: edge 2 joins -2 and 0"),
        (lambda: Graph(X, NO_EDGES, [0, 1]), "y: 2 labels for 4 nodes"),
        (lambda: Graph(X, NO_EDGES, [0.0, 1, 1, 1]), "y: labels must be one whole number"),
        (lambda: Graph(X, NO_EDGES, ["a", "b", "c", "d"]), "y: expected one whole number"),
        (lambda: Graph(X, NO_EDGES, [0, 1, -2, 0]), "y: row 2 has label -2, allowed are -1 to 1"),
        (
            lambda: Graph(X, NO_EDGES, [0, 1, 0, 2], label_names=["a", "b"]),
            "y: row 3 has label 2, allowed are -1 to 1",
        ),
        (lambda: Graph(X, NO_EDGES, [0, 10**15, 0, 2]), "y: row 1 has label 1000000000000000"),
        (lambda: Graph(X, NO_EDGES, label_names=["a", "a"]), "label_names: two classes"),
        (lambda: Graph(X, NO_EDGES, feature_names=["a"]), "feature_names: 1 names for 2 features"),
        (
            lambda: Graph(X, NO_EDGES, node_ids=[7, 8, 9, 8]),
            "node_ids: rows 1 and 3 have the same id 8",
        ),
        (
            lambda: Graph(X, NO_EDGES, node_ids=["p", "q", "p", "r"]),
            "node_ids: rows 0 and 2 have the same id p",
        ),
        (lambda: Graph(X, NO_EDGES, node_ids=[1, 2]), "node_ids: 2 ids for 4 nodes"),
        (
            lambda: Graph(X, NO_EDGES, [0] * 4, val_mask=[True, False]),
            r"val_mask: expected one true/false per node \(4\)",
        ),
        (
            lambda: Graph(X, NO_EDGES, [0] * 4, test_mask=[1, 0, 0, 1]),
            r"test_mask: expected one true/false per node \(4\)",
        ),
        (
            lambda: Graph(
                X,
                NO_EDGES,
                [0] * 4,
                train_mask=[True, False, True, False],
                test_mask=[False, False, True, False],
            ),
            "masks: node 2 has more than one of the roles",
        ),
        (
            lambda: Graph(X, NO_EDGES, [0, -1, 0, 0], train_mask=[False, True, False, False]),
            "masks: node 1 is a train, val or test node but has no label",
        ),
    ],
)
def test_bad_input_is_named(build: Callable[[], Graph], message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_with_masks_shares_everything_else() -> None:
    graph = Graph(X, [[0, 1], [1, 2]], [0, 1, 0, -1], node_ids=[5, 6, 7, 8])
    mask = torch.eye(4, dtype=torch.bool)
    other = graph.with_masks(mask[0], mask[1], mask[2])
    assert other.x is graph.x
    assert other.col is graph.col
    assert other.node_ids is graph.node_ids
    assert other.train_mask.tolist() == [True, False, False, False]
    assert not graph.train_mask.any()
    with pytest.raises(GraphError, match="node 3 is a train, val or test node but has no label"):
        graph.with_masks(mask[0], mask[1], mask[3])
    with pytest.raises(GraphError, match="node 0 has more than one"):
        graph.with_masks(mask[0], mask[0], mask[2])


@pytest.mark.parametrize("sparse", [False, True])
def test_pyg_round_trip(sparse: bool) -> None:
    pytest.importorskip("torch_geometric", reason="needs the extra fedmend[pyg]")
    x = np.array([[0, 1.5], [2, 0], [0, 0]])
    mask = torch.eye(3, dtype=torch.bool)
    graph = Graph(
        sp.csr_matrix(x) if sparse else x,
        [[0, 2], [1, 1]],
        [1, 0, 1],
        train_mask=mask[0],
        val_mask=mask[1],
        test_mask=mask[2],
    )
    data = graph.to_pyg()
    assert data.num_nodes == 3
    assert data.num_edges == 4
    assert data.is_undirected()
    back = Graph.from_pyg(data)
    assert torch.equal(back.x, graph.x.to_dense())
    assert torch.equal(back.edge_index, graph.edge_index)
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(back, name), getattr(graph, name))
