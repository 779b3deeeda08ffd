"""The learned graph without an N x N matrix equals the dense formula, forward and gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.models.learned_graph import LearnedGraph, Pairs
from fedmend.models.neighbour_search import nearest_neighbours


def dense(module: LearnedGraph, embeddings: Tensor, k: int) -> Tensor:
    """Eqs. (6) to (8) as printed, with N x N matrices."""
    mapped = torch.tanh(embeddings @ torch.diag(module.first_diagonal))
    mapped = mapped @ torch.diag(module.second_diagonal)
    points = mapped / mapped.norm(dim=1, keepdim=True).clamp(min=1e-12)
    similar = points @ points.T
    ranked = similar.detach().clone().fill_diagonal_(math.inf)
    chosen = ranked.topk(min(k + 1, len(points)), dim=1).indices
    mask = torch.zeros_like(similar).scatter_(1, chosen, 1.0)
    activated = F.elu(6.0 * (similar * mask) - 6.0) + 1.0
    if not module.background:
        activated = activated * mask
    symmetric = (activated + activated.T) / 2.0
    scale = torch.diag(symmetric.sum(1) ** -0.5)
    graph = scale @ symmetric @ scale
    hidden = torch.relu(graph @ embeddings @ module.first_weight + module.first_bias)
    return graph @ hidden @ module.second_weight + module.second_bias


def made(*, background: bool, embedding: int = 4) -> LearnedGraph:
    generator = torch.Generator().manual_seed(1)
    module = LearnedGraph(embedding, 6, 3, generator, background=background).double()
    with torch.no_grad():  # at ones, the diagonals' gradients could hide a mistake
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.rand(parameter.shape, generator=generator))
    return module


def drawn(nodes: int, embedding: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(nodes)
    return torch.randn(nodes, embedding, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(("nodes", "k"), [(17, 4), (17, 1), (5, 4), (5, 9), (2, 1), (1, 3)])
def test_equals_the_dense_formula(nodes: int, k: int, background: bool) -> None:
    module, embeddings = made(background=background), drawn(nodes)
    pairs = Pairs(nearest_neighbours(module.points(embeddings), k))
    sparse, reference = module(embeddings, pairs), dense(module, embeddings, k)
    torch.testing.assert_close(sparse, reference)
    upstream = torch.randn(sparse.shape, generator=torch.Generator().manual_seed(2)).double()
    parameters = list(module.parameters())
    found = torch.autograd.grad(sparse, parameters, upstream)
    expected = torch.autograd.grad(reference, parameters, upstream)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_background_matters() -> None:
    embeddings = drawn(17)
    pairs = Pairs(nearest_neighbours(made(background=True).points(embeddings), 4))
    with_it, without = (made(background=each)(embeddings, pairs) for each in (True, False))
    assert not torch.allclose(with_it, without, rtol=1e-3)


def test_gradients_reach_the_generator_through_the_edges() -> None:
    """The diagonals act on nothing but the edges' weights: without edges they get no gradient."""
    module, embeddings = made(background=True), drawn(12)
    pairs = Pairs(nearest_neighbours(module.points(embeddings), 3))
    assert torch.autograd.gradcheck(
        lambda first, second: torch.func.functional_call(
            module, {"first_diagonal": first, "second_diagonal": second}, (embeddings, pairs)
        ),
        (module.first_diagonal, module.second_diagonal),
    )


def test_duplicate_and_zero_embeddings() -> None:
    embeddings = torch.zeros(9, 4, dtype=torch.float64)
    embeddings[:6] = drawn(1)
    module = made(background=True)
    pairs = Pairs(nearest_neighbours(module.points(embeddings), 3))
    rows = module(embeddings, pairs)
    assert bool(torch.isfinite(rows).all())
    rows.sum().backward()
    gradients = [each.grad for each in module.parameters() if each.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(each).all()) for each in gradients)


def test_pairs_are_a_symmetric_operator() -> None:
    neighbours = torch.tensor([[0, 2], [1, 2], [2, 0], [3, 0], [4, 4]])
    pairs = Pairs(neighbours)
    ends = list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
    assert ends == [(0, 0), (0, 2), (0, 3), (1, 1), (1, 2), (2, 2), (3, 3), (4, 4)]
    # 0 and 2 have chosen each other, 4 itself twice, the others once each.
    assert pairs.share.tolist() == [0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]
    values = torch.arange(1.0, 9.0)
    matrix = torch.zeros(5, 5)
    for value, (left, right) in zip(values, ends, strict=True):
        matrix[left, right] += value
        matrix[right, left] += value
    x = drawn(5).float()
    torch.testing.assert_close(pairs.times(values, x), matrix @ x)
    torch.testing.assert_close(pairs.row_sums(values), matrix.sum(1))
    expected = torch.stack([x[left] @ (2 * x[right]) for left, right in ends])
    torch.testing.assert_close(pairs.dots(x, 2 * x), expected)
