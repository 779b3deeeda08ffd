"""Making a saved run's silos again, for what its record does not hold: a drawing, a confusion.

Nothing is taken on trust: the silos count only if their hash is the record's, and the confusion
only if its accuracy is. A dataset that is not on this machine is not downloaded for it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmend.data.lean_igraph import igraph
from fedmend.data.partition import Partition
from fedmend.engines.computing import computing_with
from fedmend.errors import FedmendError
from fedmend.evaluation.evaluate import answers, evaluate
from fedmend.graph import UNKNOWN_LABEL, Graph
from fedmend.reports.views import Drawing, Retraced
from fedmend.runs.plan import DEFAULT_SPLIT, Source, is_cut
from fedmend.runs.predict import predictor_of
from fedmend.runs.record import Record, SavedRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAWN = 3000
"""Most nodes of a drawing: more would be a blot, and a heavy page."""

MOST_CLASSES = 40
"""Most classes of a confusion that is shown."""


class Retracer:
    """Makes silos again and keeps the last: runs of one split come one after another."""

    def __init__(self, data_root: str | None = None) -> None:
        self._root = data_root
        self._hash = ""
        self._kept: Partition | str = ""
        self._drawings: dict[str, Drawing] = {}

    def __call__(self, saved: SavedRun) -> Retraced:
        wanted = saved.record.split.hash
        if wanted is None:
            return Retraced(note="Nobody sees the data of deployed silos together.")
        silos = self._silos(saved.record, wanted)
        if isinstance(silos, str):
            return Retraced(note=silos)
        if wanted not in self._drawings:
            self._drawings[wanted] = draw(silos)
        with computing_with(1):  # waking more of them costs more than it gives
            table, note = confusion(saved, silos)
        return Retraced(self._drawings[wanted], table, note)

    def _silos(self, record: Record, wanted: str) -> Partition | str:
        if wanted != self._hash:
            self._hash, self._kept = wanted, self._made(record)
        return self._kept

    def _made(self, record: Record) -> Partition | str:
        """The silos, or why they cannot be had."""
        given = record.source or {
            "dataset": record.dataset,
            "silos": len(record.data.per_silo),
            "split": record.split.how,
            "ratio": "60/20/20",
        }
        if not isinstance(given.get("dataset"), str):
            return "The run does not say which data it was made with."
        try:
            dataset = str(given["dataset"])
            cut = is_cut(dataset)  # then it is what it is, whatever the record calls it
            source = Source(
                dataset,
                None if cut else given.get("silos"),
                None if cut else str(given.get("split", DEFAULT_SPLIT)),
                str(given.get("ratio", "60/20/20")),
                self._root,
                download=False,
            )
            silos = source.partition(int(record.split.seed or 0))
        except (FedmendError, TypeError, ValueError) as error:
            return f"The silos could not be made again: {error}"
        if silos.hash != record.split.hash:
            return "The data of today gives other silos than those the run was made with."
        return silos


def confusion(saved: SavedRun, silos: Partition) -> tuple[list[list[int]] | None, str]:
    """Test nodes by true and found class, and why there is none.

    For a model per silo tested on the whole graph the counts of all silos' models are added up.
    """
    record = saved.record
    if record.result is None:
        return None, "Nothing was tested."
    classes = len(record.label_names)
    if classes > MOST_CLASSES:
        return None, f"{classes} classes are too many for a confusion matrix."
    counts = np.zeros((classes, classes), dtype=np.int64)
    own = record.silos_with_own_model
    try:
        predictors = {name: predictor_of(saved, name) for name in own or sorted(silos.silos)}
        scores = evaluate(predictors, silos, record.evaluation)
        for found, graph in answers(predictors, silos, record.evaluation).values():
            true, said = graph.y[graph.test_mask], found.argmax(1)[graph.test_mask]
            flat = torch.bincount(true * classes + said, minlength=classes * classes)
            counts += flat.numpy().reshape(classes, classes)
    except (FedmendError, KeyError, RuntimeError, TypeError) as error:
        return None, f"The run's predictions could not be made again: {error}"
    if abs(scores.accuracy - record.result.accuracy) > 1e-3:
        return None, (
            "The method predicts with more than the saved model, so that its confusion matrix "
            "cannot be made again."
        )
    return counts.tolist(), ""


def draw(silos: Partition) -> Drawing:
    """Each silo in a disc of its own, drawn by its own links; the discs form a ring."""
    graphs = list(silos.silos.items())
    total = sum(graph.num_nodes for _, graph in graphs)
    x: list[float] = []
    y: list[float] = []
    silo_of: list[str] = []
    labels: list[str] = []
    inside: list[tuple[int, int]] = []
    places: dict[int, int] = {}  # of nodes of the whole graph, among those drawn
    for number, (name, graph) in enumerate(graphs):
        rows = _chosen(name, graph, total)
        part = graph.subgraph(torch.from_numpy(rows))
        spots = _disc(part, number, len(graphs))
        first = len(x)
        x += spots[:, 0].round(3).tolist()
        y += spots[:, 1].round(3).tolist()
        silo_of += [name] * len(rows)
        labels += [
            "unknown" if label == UNKNOWN_LABEL else graph.label_names[label]
            for label in part.y.tolist()
        ]
        inside += [(first + a, first + b) for a, b in part.edges.T.tolist()]
        if silos.whole is not None:
            places.update(zip(silos.rows(name)[rows].tolist(), range(first, len(x)), strict=True))
    missing = []
    if silos.whole is not None:
        missing = [
            (places[a], places[b])
            for a, b in silos.cross_edges.T.tolist()
            if a in places and b in places
        ]
    return Drawing(x, y, silo_of, labels, inside, missing, len(x), total)


def _chosen(name: str, graph: Graph, total: int) -> NDArray[np.int64]:
    """The silo's rows that are drawn: all, or random ones and some neighbours of each."""
    if total <= DRAWN:
        return np.arange(graph.num_nodes)
    wanted = max(1, DRAWN * graph.num_nodes // total)
    order = np.random.default_rng(len(name) + graph.num_nodes).permutation(graph.num_nodes)
    rowptr, col = graph.rowptr.numpy(), graph.col.numpy()
    taken: dict[int, None] = {}
    for start in order.tolist():
        if len(taken) >= wanted:
            break
        near = [start, *col[rowptr[start] : rowptr[start + 1]].tolist()[:8]]
        taken.update(dict.fromkeys(near))
    return np.sort(np.array(list(taken)[:wanted], dtype=np.int64))


def _disc(graph: Graph, number: int, silos: int) -> NDArray[np.float64]:
    generator = random.Random(number)
    start = [[generator.random(), generator.random()] for _ in range(graph.num_nodes)]
    drawn = igraph().Graph(n=graph.num_nodes, edges=graph.edges.T.tolist())
    spots = np.array(
        drawn.layout_fruchterman_reingold(niter=70, seed=start, grid=True).coords
    ).reshape(-1, 2)
    spots -= np.median(spots, axis=0)
    far = np.linalg.norm(spots, axis=1, keepdims=True)
    spots *= np.minimum(1.0, np.percentile(far, 90) / np.maximum(far, 1e-9))
    spots /= max(float(np.abs(spots).max()), 1e-9)
    angle = 2 * np.pi * number / silos + np.pi / 2
    ring = 0.0 if silos == 1 else 1.25 / np.sin(np.pi / max(silos, 3))
    return np.asarray(spots + ring * np.array([np.cos(angle), np.sin(angle)]))
