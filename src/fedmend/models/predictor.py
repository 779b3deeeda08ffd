"""What a silo predicts with: the same as training ends, deployed, and from a saved run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmend.data.mended import mended
from fedmend.data.sampling import whole_graph_hop
from fedmend.errors import DataError
from fedmend.graph import Graph, feature_arrays
from fedmend.models.backbones import BACKBONES, Backbone, ModelShape, build
from fedmend.models.features import Features

Weights = Mapping[str, Tensor]
Insert = Callable[["Predictor", Graph, Tensor], Tensor | None]
"""Gives rows to those nodes of a graph that came after training."""

GENERATED, OWNERS, ROWS, HEARD, OF_GRAPH = (
    "generated features",
    "generated for",
    "rows",
    "heard",
    "graph",
)
"""Names of what a predictor remembers of its silo's nodes."""


@dataclass(frozen=True)
class Predictor:
    """What a silo predicts with.

    shared: the weights are every silo's, and not its own.
    ids: the nodes that the silo had in training; what follows is theirs, node by node.
    rows: what each of them brings along beside its features (FedDEP, FedGGR).
    anywhere: the rows are theirs on any graph, on the whole one too (FedGGR).
    generated: features of the nodes that mend the silo's graph, and the node each is joined to.
    heard: class probabilities of the nodes of the graph of hash `of_graph`, where silos heard each
        other as they predicted (HiFGL).
    known: what it takes, beside the model, to give rows to nodes that came later: the silo's part,
        and the server's by names that begin with `server/`.
    insert: gives them their rows, None where a part of `known` that it takes is elsewhere.
    """

    shape: ModelShape
    weights: Weights
    shared: bool
    ids: NDArray[Any]
    rows: Tensor | None = None
    anywhere: bool = False
    generated: tuple[Tensor, Tensor] | None = None
    heard: Tensor | None = None
    of_graph: str = ""
    known: Mapping[str, Tensor] = field(default_factory=dict)
    insert: Insert | None = None

    @property
    def model(self) -> Backbone:
        return model_with(self.shape, self.weights)

    def on(self, mode: str) -> Predictor:
        """As it predicts in a mode of evaluation: some of it belongs to the silo's own graph."""
        heard = self.heard if mode == "cross-edges" else None
        if mode == "own-subgraph":
            return replace(self, heard=heard)
        return replace(self, rows=self.rows if self.anywhere else None, generated=None, heard=heard)

    def places(self, graph: Graph) -> NDArray[Any]:
        """Which node of training each node of a graph is; -1: none, it is new."""
        known, asked = self.ids.astype(str), graph.node_ids.astype(str)
        order = np.argsort(known)
        near = np.searchsorted(known, asked, sorter=order).clip(max=len(known) - 1)
        found: NDArray[Any] = np.where(known[order][near] == asked, order[near], -1)
        return found

    def predict(self, graph: Graph) -> Tensor:
        """Class probabilities of every node of the silo's graph, as it is now."""
        if self.heard is not None and hash_of(graph) == self.of_graph:
            return self.heard
        rows, whole = None, graph
        if self.rows is not None or self.generated is not None:
            places = torch.from_numpy(self.places(graph))
            if self.rows is not None:
                rows = self._rows_of(self.rows, places, graph)
            if self.generated is not None:
                whole = _mended(graph, places, *self.generated)
        return predict(self.model, whole, rows)[: graph.num_nodes]

    def _rows_of(self, known: Tensor, places: Tensor, graph: Graph) -> Tensor:
        there = places >= 0
        rows = known.new_zeros(graph.num_nodes, known.shape[1])
        rows[there] = known[places[there]]
        new = torch.nonzero(~there)[:, 0]
        if len(new) and self.insert is not None:
            found = self.insert(self, graph, new)
            if found is not None:
                rows[new] = found
        return rows

    def knowing(self, server: Mapping[str, Tensor]) -> Predictor:
        """With what the server knows, which is there where everything is in one place."""
        theirs = {f"server/{key}": each for key, each in server.items()}
        return replace(self, known={**self.known, **theirs})

    def can_insert(self) -> bool:
        """Whether nodes that came later get what the others bring along."""
        return self.rows is None or any(key.startswith("server/") for key in self.known)

    # What a run's folder keeps of it, beside the weights

    def remembered(self) -> dict[str, Tensor]:
        """The silo's part of it, as tensors."""
        found = {key: each for key, each in self.known.items() if not key.startswith("server/")}
        if self.rows is not None:
            found[ROWS] = self.rows
        if self.generated is not None:
            found[GENERATED], found[OWNERS] = self.generated
        if self.heard is not None:
            found[HEARD] = self.heard
            found[OF_GRAPH] = torch.tensor(list(self.of_graph.encode()), dtype=torch.uint8)
        return found

    def remembering(self, own: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> Predictor:
        """With what `remembered` gave, from a file, in which anything may stand."""
        named = (ROWS, GENERATED, OWNERS, HEARD, OF_GRAPH)
        rest = {key: each for key, each in own.items() if key not in named}
        rows, heard = own.get(ROWS), own.get(HEARD)
        generated = None if GENERATED not in own else (own[GENERATED], own[OWNERS])
        nodes, shape = len(self.ids), self.shape
        _check(ROWS, rows, nodes, shape.embedding)
        _check(HEARD, heard, nodes, shape.num_classes)
        if generated is not None:
            features, owners = generated
            _check(GENERATED, features, len(owners), shape.num_features)
            fits = owners.dtype == torch.int64 and owners.dim() == 1
            if not fits or bool(((owners < 0) | (owners >= nodes)).any()):
                raise DataError(f"{OWNERS} are no nodes of the silo")
        return replace(
            self,
            rows=rows,
            generated=generated,
            heard=heard,
            of_graph="" if heard is None else bytes(own[OF_GRAPH].tolist()).decode("ascii"),
            known=rest,
        ).knowing(server)


def predictor(
    shape: ModelShape, ids: NDArray[Any], shared: Weights | None, own: Weights | None = None
) -> Predictor | None:
    """By the shared model, or where there is none by the silo's own; None if it has none either."""
    weights = own if shared is None else shared
    if not weights:
        return None
    return Predictor(shape, weights, shared is not None, ids)


def _check(what: str, rows: Tensor | None, count: int, width: int) -> None:
    if rows is None:
        return
    fits = tuple(rows.shape) == (count, width) and rows.dtype == torch.float32
    if not fits or not bool(torch.isfinite(rows).all()):
        raise DataError(f"{what} are {tuple(rows.shape)} of {rows.dtype}, not {(count, width)}")


def _mended(graph: Graph, places: Tensor, features: Tensor, owners: Tensor) -> Graph:
    """The graph with those generated nodes whose owners are in it."""
    there = torch.nonzero(places >= 0)[:, 0]
    now = torch.full((max(int(places.max()), int(owners.max()) if len(owners) else 0) + 1,), -1)
    now[places[there]] = there
    owner = now[owners]
    return mended(graph, owner[owner >= 0], features[owner >= 0])


def hash_of(graph: Graph) -> str:
    """Of a graph's nodes, features and edges: the same hash, the same predictions."""
    digest = hashlib.sha256("\n".join(graph.node_ids.astype(str).tolist()).encode())
    for values in (*feature_arrays(graph.x), graph.rowptr.numpy(), graph.col.numpy()):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def model_with(shape: ModelShape, weights: Weights) -> Backbone:
    """A model of this shape with these weights, ready to predict.

    The shape may come from a file: nothing of its size is made before the weights are known to fit.
    """
    if len(weights) < shape.layers and BACKBONES.plugin_of(shape.backbone) is None:
        raise DataError(f"{len(weights)} weights cannot be a model of {shape.layers} layers")
    model = build(shape, None)
    try:
        # Copies: whoever trains the model on must not change the run's own weights.
        copies = {key: value.to(torch.float32, copy=True) for key, value in weights.items()}
        model.load_state_dict(copies, assign=True)
    except RuntimeError as error:
        raise DataError(f"the weights do not fit the model: {error}".splitlines()[0]) from error
    return model.eval()


def predict(model: Backbone, graph: Graph, mended: Tensor | None = None) -> Tensor:
    """Class probabilities of every node of a graph, on full neighbourhoods.

    mended: what each node brings along where a silo predicts on its own graph (FedDEP).
    """
    with torch.no_grad():
        hops = [whole_graph_hop(graph)] * model.shape.layers
        return torch.softmax(model(Features(graph.x), hops, None, mended), dim=1)
