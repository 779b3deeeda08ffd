"""The k most similar rows of every row by cosine: in tiles, in O(N k) memory.

The exact search multiplies each pair of blocks once, since similarity is symmetric, and its tile
serves the rows of both: half the products of a plain search. The index (faiss, an optional extra)
looks at some of the pairs only and is for graphs where even half of all of them are too many.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedmend.errors import SettingsError

TILE = 2048
"""Rows and columns of similarities held at a time."""
PROBED = 16
"""Groups of the index that a row looks into."""


@torch.no_grad()
def nearest_neighbours(points: Tensor, k: int) -> Tensor:
    """For every row of unit length (or zero) itself and its k most similar other rows, exactly.

    Gives N x (min(k, N - 1) + 1) indices: the row itself first, then others by falling similarity.
    """
    nodes = len(points)
    itself = torch.arange(nodes)[:, None]
    k = min(k, nodes - 1)
    if k < 1:
        return itself
    best = _Best(points, k)
    blocks = torch.split(points, TILE)
    for i, rows in enumerate(blocks):
        for j in range(i, len(blocks)):
            similar = rows @ blocks[j].T
            if i == j:
                similar.fill_diagonal_(-math.inf)
            best.consider(similar, i * TILE, j * TILE)
            if i != j:
                best.consider(similar.T.contiguous(), j * TILE, i * TILE)
    return torch.cat([itself, best.columns], dim=1)


class _Best:
    """The k most similar columns of every row so far."""

    def __init__(self, points: Tensor, k: int) -> None:
        self._similar = points.new_full((len(points), k), -math.inf)
        self.columns = torch.zeros(len(points), k, dtype=torch.int64)

    def consider(self, similar: Tensor, first_row: int, first_column: int) -> None:
        """Take a tile of similarities into account."""
        k = self._similar.shape[1]
        rows = slice(first_row, first_row + len(similar))
        values, columns = similar.topk(min(k, similar.shape[1]), dim=1)
        values = torch.cat([self._similar[rows], values], dim=1)
        columns = torch.cat([self.columns[rows], columns + first_column], dim=1)
        self._similar[rows], kept = values.topk(k, dim=1)
        self.columns[rows] = columns.gather(1, kept)


@torch.no_grad()
def indexed_neighbours(points: Tensor, k: int) -> Tensor:
    """The same by an inverted-file index (faiss): quicker on large graphs, and not exact.

    The rows are put in sqrt(N) groups, and each row looks into the nearest PROBED of them only.
    Where those hold fewer than k others, the row's own number fills the rest.
    """
    try:
        import faiss
    except ImportError as error:
        raise SettingsError(
            "search=index needs the package faiss-cpu; install it with: "
            "pip install 'fedmend[index]', or use search=exact"
        ) from error
    nodes, width = points.shape
    itself = torch.arange(nodes)[:, None]
    k = min(k, nodes - 1)
    if k < 1:
        return itself
    faiss.omp_set_num_threads(torch.get_num_threads())
    rows = points.to(torch.float32).contiguous().numpy()
    groups = math.isqrt(nodes)
    centres = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(centres, width, groups, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # else it warns about small graphs
    index.train(rows)
    index.add(rows)
    index.nprobe = min(PROBED, groups)
    found = torch.from_numpy(index.search(rows, k + 1)[1])
    # The row itself is usually first, but not among equals: sort it out, and keep k of the rest.
    found = torch.where(found < 0, itself, found)
    order = torch.argsort((found == itself).to(torch.uint8), dim=1, stable=True)
    return torch.cat([itself, found.gather(1, order)[:, :k]], dim=1)
