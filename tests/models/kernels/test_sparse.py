"""Sparse products and constant features against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmend.data.csbm import csbm
from fedmend.data.sampling import Hop, sample_neighbours, whole_graph_hop
from fedmend.graph import csr_tensor, is_sparse
from fedmend.models import kernels
from fedmend.models.features import Features
from fedmend.models.kernels.sparse import (
    FEW_PRODUCTS,
    SparseMatrix,
)
from fedmend.models.propagation import (
    Rule,
    heard_through,
    operator,
    own_and_heard,
    own_through,
)


def random_csr(rows: int, columns: int, density: float, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return csr_tensor(sp.random(rows, columns, density, "csr", np.float32, random_state=rng))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("reused", [False, True])
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    width=st.integers(1, 5),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_product_and_gradient_are_the_dense_ones(
    reused: bool, rows: int, columns: int, width: int, density: float, seed: int
) -> None:
    csr = random_csr(rows, columns, density, seed)
    dense = torch.randn(columns, width, generator=seeded(seed), requires_grad=True)
    same = dense.detach().clone().requires_grad_()
    matrix = SparseMatrix(csr, reused=reused)
    assert matrix.shape == (rows, columns)
    gradient = torch.randn(rows, width, generator=seeded(seed + 1))
    for _ in range(2):  # the second pass must not find anything changed by the first
        product, expected = matrix @ dense, csr.to_dense() @ same
        torch.testing.assert_close(product, expected)
        torch.autograd.backward(product, gradient)
        torch.autograd.backward(expected, gradient)
    assert dense.grad is not None
    torch.testing.assert_close(dense.grad, same.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    width=st.integers(1, 20),
    density=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 1000),
)
def test_the_plain_path_gives_the_same(
    dtype: torch.dtype, rows: int, columns: int, width: int, density: float, seed: int
) -> None:
    """torch's own CSR product and its own way back; sums are rounded in another order."""
    matrix = SparseMatrix(random_csr(rows, columns, density, seed).to(dtype), reused=True)
    dense = torch.randn(columns, width, generator=seeded(seed), dtype=dtype, requires_grad=True)
    told = torch.randn(rows, width, generator=seeded(seed + 1), dtype=dtype)

    def computed() -> list[Tensor]:
        product = matrix @ dense
        (gradient,) = torch.autograd.grad(product, [dense], told)
        back = matrix.transposed_times(told)
        return [product.detach(), gradient, matrix.times(dense.detach()), back]

    quick = computed()
    with kernels.plain("sparse"):
        usual = computed()
    for one, other in zip(quick, usual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("width", [1, 16])
def test_large_products_and_gradients_too(width: int, reused: bool) -> None:
    """Large and small products take different ways back."""
    csr = random_csr(200, 300, 0.2, 1)
    few = csr.values().numel() * width <= FEW_PRODUCTS
    assert few == (width == 1)
    dense = torch.randn(300, width, generator=seeded(0), requires_grad=True)
    gradient = torch.randn(200, width, generator=seeded(1))
    torch.autograd.backward(SparseMatrix(csr, reused=reused) @ dense, gradient)
    torch.testing.assert_close(dense.grad, csr.to_dense().t() @ gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("reused", [False, True])
def test_repeated_unsorted_columns_add_up(reused: bool) -> None:
    """Neighbours drawn with replacement stand several times in a row, in any order."""
    rowptr, col = torch.tensor([0, 3, 3, 5]), torch.tensor([2, 0, 2, 1, 0])
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    csr = torch.sparse_csr_tensor(rowptr, col, values, size=(3, 3))
    plain = torch.tensor([[2.0, 0.0, 5.0], [0.0, 0.0, 0.0], [16.0, 8.0, 0.0]])
    dense = torch.randn(3, 2, generator=seeded(0), requires_grad=True)
    gradient = torch.randn(3, 2, generator=seeded(1))
    product = SparseMatrix(csr, reused=reused) @ dense
    torch.testing.assert_close(product, plain @ dense.detach())
    torch.autograd.backward(product, gradient)
    torch.testing.assert_close(dense.grad, plain.t() @ gradient)


def same_with_gradients(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    upstream = torch.randn(found.shape, generator=seeded(9), dtype=found.dtype)
    ours = torch.autograd.grad(found, leaves, upstream)
    theirs = torch.autograd.grad(expected, leaves, upstream)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_gradient_that_is_not_contiguous() -> None:
    csr = random_csr(4, 3, 0.6, 0)
    dense = torch.randn(3, 4, generator=seeded(0), requires_grad=True)
    upstream = torch.randn(4, 4, generator=seeded(1))
    torch.autograd.backward(SparseMatrix(csr) @ dense, upstream.t())
    torch.testing.assert_close(dense.grad, csr.to_dense().t() @ upstream.t())


@pytest.mark.parametrize("density", [0.01, 0.4], ids=["thin", "thick"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_and_combinations_are_the_dense_ones(sparse: bool, density: float) -> None:
    csr = random_csr(30, 40, density, 2)
    dense = csr.to_dense()
    features = Features(csr if sparse else dense)
    weight = torch.randn(40, 3, generator=seeded(0))
    torch.testing.assert_close(features @ weight, dense @ weight)
    wanted = torch.tensor([7, 0, 29, 7])
    for own, rows in ((wanted, dense[wanted]), (11, dense[:11]), (30, dense)):
        torch.testing.assert_close(plain(features.rows(own)), rows)
    half = random_csr(10, 30, 0.1, 5)
    torch.testing.assert_close(
        plain(features.combined(SparseMatrix(half))), half.to_dense() @ dense
    )


def plain(features: Features) -> Tensor:
    return features.x.to_dense() if is_sparse(features.x) else features.x


def test_thin_rows_stay_sparse_and_thick_ones_become_dense() -> None:
    some = torch.arange(20)
    assert Features(random_csr(30, 100, 0.01, 0)).rows(some).sparse
    assert not Features(random_csr(30, 100, 0.4, 0)).rows(some).sparse


def naive(hop: Hop, rule: Rule) -> Tensor:
    """The operator's matrix, entry by entry, from the formulas in its docstring."""
    matrix = torch.zeros(hop.rows, hop.sources, dtype=torch.float64)
    for row in range(hop.rows):
        heard = hop.col[hop.rowptr[row] : hop.rowptr[row + 1]].tolist()
        if rule == "gcn":  # the closed neighbourhood: the node itself is in it
            itself = row if isinstance(hop.own, int) else int(hop.own[row])
            matrix[row, itself] += 1 / (int(hop.degree[row]) + 1)
        for column in heard:
            if rule == "mean":
                matrix[row, column] += 1 / len(heard)
            else:
                own, other = int(hop.degree[row]), int(hop.source_degree[column])
                matrix[row, column] += own / len(heard) / ((own + 1) * (other + 1)) ** 0.5
    return matrix


def sampled_hop(rows: int | None = None) -> Hop:
    graph = csbm(nodes=25, degree=3, features=2, seed=1)
    nodes = torch.arange(25 if rows is None else rows)
    drawn = sample_neighbours(graph, nodes, 4, seeded(2))
    return Hop(drawn.rowptr, drawn.col, len(nodes), graph.degree[nodes], graph.degree)


@pytest.mark.parametrize("rule", ["mean", "gcn"])
@pytest.mark.parametrize("rows", [25, 9])
def test_operator_is_its_formula(rows: int, rule: Rule) -> None:
    hop = sampled_hop(rows)
    found = operator(hop, rule).csr.to_dense().double()
    torch.testing.assert_close(found, naive(hop, rule), atol=1e-6, rtol=1e-6)
    assert not hop.cache  # a hop that serves once keeps nothing


@pytest.mark.parametrize("rule", ["mean", "gcn"])
@pytest.mark.parametrize("inputs", ["tensor", "dense features", "sparse features"])
@pytest.mark.parametrize("rows", [25, 9], ids=["all rows", "few rows"])
@pytest.mark.parametrize("width", [2, 30], ids=["narrowing", "widening"])
def test_order_of_multiplication_does_not_matter(
    rule: Rule, inputs: str, rows: int, width: int
) -> None:
    """All four ways through `heard_through` give operator @ h @ weight, and its gradient."""
    hop = sampled_hop(rows)
    csr = random_csr(25, 10, 0.3, 4)
    h: Tensor | Features = csr.to_dense()
    if inputs != "tensor":
        h = Features(csr if inputs == "sparse features" else csr.to_dense())
    weight = torch.randn(10, width, generator=seeded(0), requires_grad=True)
    expected = naive(hop, rule).float() @ csr.to_dense()
    gradient = torch.randn(rows, width, generator=seeded(1))
    out = heard_through(h, weight, hop, rule)
    torch.testing.assert_close(out, expected @ weight.detach(), atol=1e-5, rtol=1e-5)
    torch.autograd.backward(out, gradient)
    torch.testing.assert_close(weight.grad, expected.t() @ gradient, atol=1e-5, rtol=1e-5)
    own = own_through(h, weight.detach(), hop)
    torch.testing.assert_close(own, csr.to_dense()[:rows] @ weight.detach(), atol=1e-5, rtol=1e-5)


def test_kept_combination_belongs_to_its_features() -> None:
    """A hop that is used with other features must not answer from the first ones' cache."""
    graph = csbm(nodes=20, degree=3, features=4, seed=0)
    hop = whole_graph_hop(graph)
    weight = torch.eye(4)
    first, second = Features(graph.x), Features(graph.x * 2)
    one = heard_through(first, weight, hop, "mean")
    assert torch.equal(heard_through(first, weight, hop, "mean"), one)
    torch.testing.assert_close(heard_through(second, weight, hop, "mean"), 2 * one)
    torch.testing.assert_close(heard_through(first, weight, hop, "mean"), one)


@pytest.mark.parametrize("inputs", ["tensor", "dense features", "sparse features"])
@pytest.mark.parametrize("picked", [False, True], ids=["everybody", "some nodes"])
@pytest.mark.parametrize("width", [2, 30], ids=["narrowing", "widening"])
def test_own_and_heard_is_their_sum(inputs: str, picked: bool, width: int) -> None:
    graph = csbm(nodes=25, degree=3, features=2, seed=1)
    hop = whole_graph_hop(graph)
    if picked:
        nodes = torch.tensor([7, 0, 24, 11])
        drawn = sample_neighbours(graph, nodes, 4, seeded(2))
        hop = Hop(drawn.rowptr, drawn.col, nodes, graph.degree[nodes], graph.degree, reused=True)
    csr = random_csr(25, 10, 0.3, 4)
    dense = csr.to_dense().requires_grad_(inputs == "tensor")
    h: Tensor | Features = dense
    if inputs != "tensor":
        h = Features(csr if inputs == "sparse features" else dense, reused=True)
    own = torch.randn(10, width, generator=seeded(0), requires_grad=True)
    heard = torch.randn(10, width, generator=seeded(1), requires_grad=True)
    bias = torch.randn(width, generator=seeded(2), requires_grad=True)
    rows = torch.arange(25) if isinstance(hop.own, int) else hop.own
    expected = dense[rows] @ own + naive(hop, "mean").float() @ dense @ heard + bias
    leaves = [own, heard, bias] + ([dense] if inputs == "tensor" else [])
    for _ in range(2):  # the second time from the hop's cache
        same_with_gradients(own_and_heard(h, own, heard, hop, "mean", bias), expected, leaves)
        expected = dense[rows] @ own + naive(hop, "mean").float() @ dense @ heard + bias
