"""The k most similar rows of every row by cosine: in tiles, in O(N k) memory.

The exact search asks of every pair once whether it can matter, and looks closer at the few that
can. What it takes is a lower bound for every row's k-th similarity: from a guess of its neighbours
(last round's are nearly this round's), or from a sample of all rows. A pair matters if it reaches
the lower of its two rows' bounds. Rows are sorted by them, so that one comparison tells.

Whether a pair *can* reach it takes only a part of its products: the rows are turned onto their
main axes, and by Cauchy and Schwarz the similarity is at most the product over the first axes plus
that of the two lengths that are left, which is one more axis. How many axes pay is estimated on a
sample. Nothing of this changes what is found.

The index (faiss, an optional extra) looks at some of the pairs only and is for graphs where even
that is too much.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedmend.graph  # noqa: F401  # has torch say once, in silence, that CSR matrices are new
from fedmend.errors import SettingsError

TILE = 1024
"""Rows and columns of similarities held at a time."""
SAMPLED = 4096
"""Rows that every row is compared with where there is no guess of its neighbours."""
TRIED = 256
"""Rows on which the number of axes is chosen."""
PAIRS = 2**22
"""Pairs that may wait before each row keeps its best of them."""
CLOSER_LOOK = 16
"""What a pair's similarity costs by itself, over one in a tile (measured)."""
AXES = 16
"""Numbers of axes are multiples of this one: products of others take longer than more axes."""
PROBED = 16
"""Groups of the index that a row looks into."""

Each = Callable[..., Iterable[Any]]
"""`map`, or one that does several at a time."""


@torch.no_grad()
def nearest_neighbours(points: Tensor, k: int, guess: Tensor | None = None) -> Tensor:
    """For every row of unit length (or zero) itself and its k most similar other rows, exactly.

    Gives N x (min(k, N - 1) + 1) indices: the row itself first, then others by falling similarity.
    guess: such indices from before; the better they are the quicker the search.
    """
    nodes = len(points)
    itself = torch.arange(nodes)[:, None]
    k = min(k, nodes - 1)
    if k < 1:
        return itself
    with _side_by_side() as each:
        if guess is None or guess.shape != (nodes, k + 1):
            least, columns = _nearest_of_sample(points, k, each)
            if columns is not None:
                return torch.cat([itself, columns], dim=1)
        else:
            ends = torch.arange(0, nodes * k + 1, k)
            least = _dots(points, points, ends, guess[:, 1:].reshape(-1)).view(nodes, k).amin(1)
        # Products are rounded in an order of their own each: what misses by less may still belong.
        least = least - 4 * points.shape[1] * torch.finfo(points.dtype).eps
        order = torch.argsort(least, descending=True)
        best = _search(points[order], least[order], k, each)
    columns = torch.empty_like(best)
    columns[order] = order[best]
    return torch.cat([itself, columns], dim=1)


def _nearest_of_sample(points: Tensor, k: int, each: Each) -> tuple[Tensor, Tensor | None]:
    """Every row's k-th similarity in a sample of the others; with the columns if it is all."""
    nodes = len(points)
    count = min(nodes, max(SAMPLED, 2 * k + 2))
    chosen = torch.arange(count) * nodes // count
    sample = points[chosen]
    place = torch.full((nodes,), -1)
    place[chosen] = torch.arange(count)

    def best_of_block(start: int) -> tuple[Tensor, Tensor]:
        similar = points[start : start + TILE] @ sample.T
        own = place[start : start + TILE]
        rows = torch.nonzero(own >= 0)[:, 0]
        similar[rows, own[rows]] = -math.inf
        values, found = similar.topk(k, dim=1)
        return values[:, -1], found

    least, columns = zip(*each(best_of_block, range(0, nodes, TILE)), strict=True)
    return torch.cat(least), torch.cat(columns) if count == nodes else None


def _search(points: Tensor, least: Tensor, k: int, each: Each) -> Tensor:
    """The k most similar others of every row; `least`: what they reach, falling from row to row."""
    short = _shortened(points, least)
    exact = short is points
    best = _Best(points, least, k)
    blocks = torch.split(short, TILE)
    bounds = torch.split(least, TILE)

    def reached(i: int, j: int) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs of a tile that can matter: rows, columns, similarities."""
        similar = blocks[i] @ blocks[j].T
        # Of a pair of this tile, the column's bound is the lower one.
        enough = similar >= bounds[j]
        if i == j:
            enough.triu_(1)
        # Of few true ones numpy makes a list ten times as quickly as torch.
        place = torch.from_numpy(np.flatnonzero(enough.numpy()))
        row = place // similar.shape[1]
        column = place - row * similar.shape[1] + j * TILE
        if exact:
            found = similar.view(-1)[place]
        else:
            ends = torch.searchsorted(row, torch.arange(len(similar) + 1))
            found = _dots(points[i * TILE :][:TILE], points, ends, column)
            # Most can and do not: left out here, where several tiles are looked at at a time.
            does = torch.nonzero(found >= least[column])[:, 0]
            row, column, found = row[does], column[does], found[does]
        return row + i * TILE, column, found

    for i in range(len(blocks)):
        for found in each(partial(reached, i), range(i, len(blocks))):
            best.consider(*found)
    return best.columns()


@contextmanager
def _side_by_side() -> Iterator[Each]:
    """A `map` over tiles with as many threads as torch has, each of which computes by itself.

    Sharing every small product among threads has them wait for each other, and on a busy machine
    for nothing else (five times the processor time, measured). And a tile that one thread computes
    is the same for any number of them.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield partial(_ahead, pool, 2 * threads)
    finally:
        torch.set_num_threads(threads)


def _ahead(
    pool: ThreadPoolExecutor, most: int, function: Callable[[int], Any], items: Iterable[int]
) -> Iterator[Any]:
    """`map` in a pool, with at most so many results that wait for the reader.

    The pool's own map computes all items ahead, however slowly they are read.
    """
    waiting: deque[Future[Any]] = deque()
    for item in items:
        if len(waiting) == most:
            yield waiting.popleft().result()
        waiting.append(pool.submit(function, item))
    while waiting:
        yield waiting.popleft().result()


def _shortened(points: Tensor, least: Tensor) -> Tensor:
    """Rows whose products are at least the similarities, with as few axes as pay; or the points."""
    nodes, width = points.shape
    if nodes <= TRIED:
        return points
    axes = torch.linalg.eigh(points.T @ points).eigenvectors.flip(1)
    turned = points @ axes
    rows = torch.arange(TRIED) * nodes // TRIED
    columns = torch.arange(min(nodes, TILE)) * nodes // min(nodes, TILE)
    lower = torch.minimum(least[rows][:, None], least[columns])
    some, others = turned[rows], turned[columns]
    chosen, lowest = width, float(width)
    for count in range(AXES - 1, width - AXES, AXES):
        bound = _upper_part(some, count) @ _upper_part(others, count).T
        cost = count + 1 + float((bound >= lower).double().mean()) * CLOSER_LOOK * width
        if cost < lowest:
            chosen, lowest = count, cost
    return points if chosen == width else _upper_part(turned, chosen)


def _upper_part(turned: Tensor, count: int) -> Tensor:
    """Some axes of every row, and the length that is left as one more."""
    return torch.cat([turned[:, :count], turned[:, count:].norm(dim=1, keepdim=True)], dim=1)


def _dots(rows: Tensor, points: Tensor, ends: Tensor, columns: Tensor) -> Tensor:
    """The products of rows with some points each, as a CSR matrix lists them."""
    size = (len(rows), len(points))
    empty = points.new_zeros(len(columns))
    listed = torch.sparse_csr_tensor(ends, columns, empty, size=size, check_invariants=False)
    found: Tensor = torch.sparse.sampled_addmm(listed, rows, points.T, beta=0.0).values()
    return found


class _Best:
    """The k most similar columns of every row so far, among pairs that are considered once each."""

    def __init__(self, points: Tensor, least: Tensor, k: int) -> None:
        nodes = len(points)
        self._least, self._k = least.clone(), k
        self._similar = points.new_full((nodes, k), -math.inf)
        self._columns = torch.arange(nodes)[:, None].repeat(1, k)
        # Copied into room of their own: as small blocks among tiles that come and go they would
        # break the memory into pieces that no tile fits into (gigabytes on 100,000 nodes).
        room = min(max(PAIRS, TILE * TILE), nodes * nodes)
        self._waiting = (
            torch.empty(room, dtype=torch.int64),
            torch.empty(room, dtype=torch.int64),
            points.new_empty(room),
        )
        self._count = 0

    def consider(self, left: Tensor, right: Tensor, similar: Tensor) -> None:
        """Take pairs into account, for both of their rows."""
        for row, column in ((left, right), (right, left)):
            enough = torch.nonzero(similar > self._least[row])[:, 0]
            if self._count + len(enough) > len(self._waiting[0]):
                self._merge()
            for room, found in zip(self._waiting, (row, column, similar), strict=True):
                room[self._count : self._count + len(enough)] = found[enough]
            self._count += len(enough)

    def columns(self) -> Tensor:
        """What was found, by falling similarity."""
        self._merge()
        return self._columns

    def _merge(self) -> None:
        """Keep each row's k best of what it had and what was waiting."""
        if not self._count:
            return
        row, column, similar = (room[: self._count] for room in self._waiting)
        self._count = 0
        k = self._k
        counts = torch.bincount(row, minlength=len(self._least))
        rows = torch.nonzero(counts)[:, 0]
        row = torch.cat([row, rows.repeat_interleave(k)])
        column = torch.cat([column, self._columns[rows].view(-1)])
        similar = torch.cat([similar, self._similar[rows].view(-1)])
        # By row, and within it by falling similarity.
        order = torch.argsort(similar, descending=True)
        order = order[torch.argsort(row[order], stable=True)]
        counts = counts[rows] + k
        first = counts.cumsum(0) - counts
        kept = order[(first[:, None] + torch.arange(k)).view(-1)].view(-1, k)
        self._columns[rows], self._similar[rows] = column[kept], similar[kept]
        self._least[rows] = torch.maximum(self._least[rows], self._similar[rows][:, -1])


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
