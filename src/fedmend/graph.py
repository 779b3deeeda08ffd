"""`Graph`: node features, undirected edges, labels and masks, checked on construction.

Features are a dense matrix or a sparse one in CSR form and stay what they are. Edges are
undirected and simple: given in any form (one direction or both, repeated, with self-loops), kept
as a symmetric adjacency in CSR form (`rowptr`, `col`), rows sorted. A label of -1 is unknown.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedmend.errors import GraphError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

UNKNOWN_LABEL = -1
MAX_CLASSES = 1_000_000  # a label above it is an id or a mistake, and would name endless classes

with warnings.catch_warnings():
    # torch says once per process that CSR tensors are in beta and that it does not check their
    # indices (Graph does): said here, it bothers nobody.
    warnings.simplefilter("ignore")
    _empty = torch.zeros(1, 1).to_sparse_csr()
    torch.sparse_csr_tensor(_empty.crow_indices(), _empty.col_indices(), _empty.values())


def csr_fault(matrix: sp.csr_matrix | sp.csr_array) -> str | None:
    """What is wrong with a CSR matrix, or None.

    scipy's own full check does nothing where the last row pointer is zero, whatever the others
    are, and what follows trusts them.
    """
    rowptr, columns = matrix.indptr, matrix.indices
    if rowptr[0] != 0 or (np.diff(rowptr) < 0).any():
        return "row pointers must start at 0 and never go down"
    if not rowptr[-1] == len(columns) == len(matrix.data):
        return f"{rowptr[-1]} entries by the row pointers, but {len(columns)} column indices"
    outside = (columns < 0) | (columns >= matrix.shape[1])
    if outside.any():
        row = int(np.searchsorted(rowptr, int(np.flatnonzero(outside)[0]), side="right")) - 1
        return f"row {row} has a column index outside 0 to {matrix.shape[1] - 1}"
    return None


def csr_tensor(matrix: sp.csr_matrix | sp.csr_array) -> Tensor:
    """A scipy CSR matrix as a torch CSR tensor of float32, with sorted columns."""
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # the caller's matrix stays as it is
        matrix.sum_duplicates()  # also sorts the columns of each row
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data.astype(np.float32)),
        size=matrix.shape,
    )


def scipy_csr(x: Tensor) -> sp.csr_matrix:
    """A torch CSR tensor as a scipy CSR matrix that shares its memory."""
    parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return sp.csr_matrix(parts, shape=tuple(x.shape))


def is_sparse(x: Tensor) -> bool:
    """Whether a feature matrix is kept sparse."""
    return x.layout == torch.sparse_csr


def feature_arrays(x: Tensor) -> list[NDArray[Any]]:
    """What a feature matrix consists of, for a digest: of a sparse one, where its values stand."""
    parts = (x.crow_indices(), x.col_indices(), x.values()) if is_sparse(x) else (x,)
    return [part.contiguous().numpy() for part in parts]


def hash_of_names(names: tuple[str, ...] | None) -> str:
    """A hash of the features' names, so that they can be compared without telling; "" for none."""
    return "" if names is None else hashlib.sha256(json.dumps(names).encode()).hexdigest()


def spans(start: Tensor, count: Tensor) -> Tensor:
    """The positions start[i], start[i] + 1, ... (count[i] of them), for one i after another."""
    shift = torch.repeat_interleave(start - (torch.cumsum(count, 0) - count), count)
    return torch.arange(len(shift), device=shift.device) + shift


def row_entries(rowptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where the entries of `rows` stand in a CSR matrix, row by row, and how many each row has."""
    start = rowptr[rows]
    count = rowptr[rows + 1] - start
    return spans(start, count), count


def offsets(count: Tensor) -> Tensor:
    """Row pointers of a CSR matrix whose rows have these numbers of entries."""
    rowptr = torch.zeros(len(count) + 1, dtype=torch.int64, device=count.device)
    torch.cumsum(count, 0, out=rowptr[1:])
    return rowptr


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of a feature matrix, sparse or dense, as a matrix of the same kind."""
    if not is_sparse(x):
        return x[rows]
    at, count = row_entries(x.crow_indices(), rows)
    rowptr = offsets(count)
    size = (len(rows), x.shape[1])
    return torch.sparse_csr_tensor(rowptr, x.col_indices()[at], x.values()[at], size=size)


def _as_tensor(value: Any, name: str, what: str) -> Tensor:
    """A tensor of numbers from anything array-like; a GraphError if that is not possible."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, OverflowError) as error:
        # Texts, mixed types, rows of different lengths: numpy or torch refuses them.
        raise GraphError(f"{name}: expected {what}, got {type(value).__name__}: {error}") from error


def _as_sparse_features(x: Any, name: str) -> Tensor:
    """Checked features from a scipy sparse matrix: indices first, they are followed unchecked."""
    if x.dtype.kind not in "fiub":
        raise GraphError(f"{name}: features must be real numbers, got {x.dtype}")
    try:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite: found below
            matrix = sp.csr_matrix(x, dtype=np.float32)
    except ValueError as error:
        raise GraphError(f"{name}: not a valid sparse matrix: {error}") from error
    fault = csr_fault(matrix)
    if fault is not None:
        raise GraphError(f"{name}: not a valid sparse matrix: {fault}")
    tensor = csr_tensor(matrix)
    wrong = torch.nonzero(~torch.isfinite(tensor.values()))
    if len(wrong):
        row = int(torch.searchsorted(tensor.crow_indices(), int(wrong[0]), right=True)) - 1
        raise GraphError(f"{name}: row {row} has a feature that is NaN or infinite")
    return tensor


def _as_features(x: Any, name: str = "x") -> Tensor:
    if sp.issparse(x):
        return _as_sparse_features(x, name)
    tensor = _as_tensor(x, name, "a matrix of numbers (nodes x features)").detach()
    if tensor.dim() != 2:
        raise GraphError(
            f"{name}: features must be a matrix (nodes x features), got {tensor.dim()} dimension(s)"
        )
    if tensor.is_complex():
        raise GraphError(f"{name}: features must be real numbers, got {tensor.dtype}")
    if tensor.layout != torch.strided:
        try:
            x = scipy_csr(tensor.to(torch.float32).to_sparse_csr())
        except ValueError as error:
            raise GraphError(f"{name}: not a valid sparse matrix: {error}") from error
        return _as_sparse_features(x, name)
    tensor = tensor.to(torch.float32)
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        row = int(torch.nonzero(~finite.all(1))[0])
        raise GraphError(f"{name}: row {row} has a feature that is NaN or infinite")
    return tensor


def _as_adjacency(edges: Any, nodes: int) -> tuple[Tensor, Tensor]:
    """Symmetric simple adjacency in CSR form from a 2 x E array of node indices."""
    pairs = _as_tensor(edges, "edges", "a 2 x E array of node indices").numpy()
    if pairs.size == 0:
        pairs = np.zeros((2, 0), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise GraphError(
            f"edges: expected a 2 x E array of node indices, got shape {tuple(pairs.shape)}"
        )
    if pairs.dtype.kind not in "iu":
        raise GraphError(f"edges: node indices must be integers, got {pairs.dtype}")
    outside = (pairs < 0) | (pairs >= nodes)
    if outside.any():
        edge = int(np.flatnonzero(outside.any(axis=0))[0])
        raise GraphError(
            f"edges: edge {edge} joins {pairs[0, edge]} and {pairs[1, edge]}, "
            f"but node indices run from 0 to {nodes - 1}"
        )
    source, target = pairs
    keep = source != target
    source, target = source[keep], target[keep]
    both = (np.concatenate([source, target]), np.concatenate([target, source]))
    ones = np.ones(len(both[0]), dtype=np.bool_)
    matrix = sp.csr_matrix((ones, both), shape=(nodes, nodes))
    matrix.sum_duplicates()
    return (
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
    )


def _as_labels(y: Any, nodes: int, names: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    if y is None:
        labels = torch.full((nodes,), UNKNOWN_LABEL, dtype=torch.int64)
    else:
        labels = _as_tensor(y, "y", "one whole number per node (-1 = unknown)")
        if labels.is_floating_point() or labels.is_complex() or labels.dim() != 1:
            raise GraphError("y: labels must be one whole number per node (-1 = unknown)")
        labels = labels.to(torch.int64)
    if len(labels) != nodes:
        raise GraphError(f"y: {len(labels)} labels for {nodes} nodes")
    largest = int(labels.max()) if nodes else UNKNOWN_LABEL
    if names is None:
        if largest >= MAX_CLASSES:
            row = int(torch.argmax(labels))
            raise GraphError(
                f"y: row {row} has label {largest}, allowed are -1 to {MAX_CLASSES - 1}; "
                f"number the classes 0, 1, 2, ..."
            )
        names = tuple(str(label) for label in range(largest + 1))
    wrong = (labels < UNKNOWN_LABEL) | (labels >= len(names))
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        raise GraphError(
            f"y: row {row} has label {int(labels[row])}, allowed are -1 to {len(names) - 1}"
        )
    return labels, names


def _as_mask(mask: Any, nodes: int, name: str) -> Tensor:
    if mask is None:
        return torch.zeros(nodes, dtype=torch.bool)
    tensor = _as_tensor(mask, name, "one true/false per node")
    if tensor.dtype != torch.bool or tensor.shape != (nodes,):
        raise GraphError(
            f"{name}: expected one true/false per node ({nodes}), "
            f"got {tuple(tensor.shape)} of {tensor.dtype}"
        )
    return tensor


def _as_ids(ids: Any, nodes: int) -> NDArray[Any]:
    if ids is None:
        return np.arange(nodes, dtype=np.int64)
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        array = array.astype(str)
    if array.shape != (nodes,):
        raise GraphError(f"node_ids: {array.size} ids for {nodes} nodes")
    order = np.argsort(array, kind="stable")
    same = array[order][1:] == array[order][:-1]
    if same.any():
        at = int(np.flatnonzero(same)[0])
        first, second = sorted((int(order[at]), int(order[at + 1])))
        raise GraphError(f"node_ids: rows {first} and {second} have the same id {array[first]!s}")
    return array


class Graph:
    """A graph with features, labels and masks; see the module's text for what is kept how.

    Args:
        x: features, one row per node: a dense array or tensor, or a scipy or torch sparse matrix.
        edges: 2 x E node indices, directed or not; kept undirected and simple.
        y: one label index per node, -1 where unknown.
        train_mask, val_mask, test_mask: one boolean per node; no node has two roles, and a node
            with a role has a label.
        node_ids: the owner's own ids, integers or strings, all different; default 0, 1, 2, ...
        label_names, feature_names: what label and feature indices stand for.
    """

    def __init__(
        self,
        x: Tensor | ArrayLike | sp.spmatrix | sp.sparray,
        edges: Tensor | ArrayLike,
        y: Tensor | ArrayLike | None = None,
        *,
        train_mask: Tensor | ArrayLike | None = None,
        val_mask: Tensor | ArrayLike | None = None,
        test_mask: Tensor | ArrayLike | None = None,
        node_ids: ArrayLike | None = None,
        label_names: Sequence[str] | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        self.x = _as_features(x)
        nodes = self.x.shape[0]
        if nodes == 0:
            raise GraphError("x: a graph needs at least one node")
        self.rowptr, self.col = _as_adjacency(edges, nodes)
        names = None if label_names is None else tuple(str(name) for name in label_names)
        self.y, self.label_names = _as_labels(y, nodes, names)
        if len(set(self.label_names)) != len(self.label_names):
            raise GraphError("label_names: two classes have the same name")
        self.train_mask = _as_mask(train_mask, nodes, "train_mask")
        self.val_mask = _as_mask(val_mask, nodes, "val_mask")
        self.test_mask = _as_mask(test_mask, nodes, "test_mask")
        self._check_roles()
        self.node_ids = _as_ids(node_ids, nodes)
        self.feature_names = None if feature_names is None else tuple(map(str, feature_names))
        if self.feature_names is not None and len(self.feature_names) != self.num_features:
            raise GraphError(
                f"feature_names: {len(self.feature_names)} names for {self.num_features} features"
            )

    def _check_roles(self) -> None:
        roles = self.train_mask.int() + self.val_mask.int() + self.test_mask.int()
        if bool((roles > 1).any()):
            row = int(torch.nonzero(roles > 1)[0])
            raise GraphError(
                f"masks: node {row} has more than one of the roles train, val and test"
            )
        unlabelled = (roles > 0) & (self.y == UNKNOWN_LABEL)
        if bool(unlabelled.any()):
            row = int(torch.nonzero(unlabelled)[0])
            raise GraphError(f"masks: node {row} is a train, val or test node but has no label")

    def __repr__(self) -> str:
        kind = "sparse" if is_sparse(self.x) else "dense"
        return (
            f"Graph({self.num_nodes} nodes, {self.num_edges} edges, "
            f"{self.num_features} {kind} features, {self.num_classes} classes)"
        )

    @property
    def num_nodes(self) -> int:
        return int(self.x.shape[0])

    @property
    def num_edges(self) -> int:
        """Undirected edges."""
        return len(self.col) // 2

    @property
    def num_features(self) -> int:
        return int(self.x.shape[1])

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    @cached_property
    def degree(self) -> Tensor:
        """How many neighbours each node has; every batch asks for it."""
        return self.rowptr[1:] - self.rowptr[:-1]

    @property
    def edge_index(self) -> Tensor:
        """Both directions of every edge, 2 x 2E, as PyG has it."""
        row = torch.repeat_interleave(torch.arange(self.num_nodes), self.degree)
        return torch.stack([row, self.col])

    @property
    def edges(self) -> Tensor:
        """Every edge once, 2 x E, the smaller index first."""
        both = self.edge_index
        return both[:, both[0] < both[1]]

    def with_masks(self, train: Tensor, val: Tensor, test: Tensor) -> Graph:
        """The same graph with other roles; everything else is shared, not copied."""
        other = object.__new__(Graph)
        other.__dict__.update(self.__dict__)
        other.train_mask = _as_mask(train, self.num_nodes, "train_mask")
        other.val_mask = _as_mask(val, self.num_nodes, "val_mask")
        other.test_mask = _as_mask(test, self.num_nodes, "test_mask")
        other._check_roles()
        return other

    def subgraph(self, nodes: Tensor) -> Graph:
        """The graph induced by `nodes` (indices, in this order), with ids, labels and roles."""
        place = torch.full((self.num_nodes,), -1, dtype=torch.int64)
        place[nodes] = torch.arange(len(nodes))
        at, count = row_entries(self.rowptr, nodes)
        source = torch.repeat_interleave(torch.arange(len(nodes)), count)
        target = place[self.col[at]]
        keep = target > source  # each edge once; a neighbour outside has place -1
        return Graph(
            select_rows(self.x, nodes),
            torch.stack([source[keep], target[keep]]),
            self.y[nodes],
            train_mask=self.train_mask[nodes],
            val_mask=self.val_mask[nodes],
            test_mask=self.test_mask[nodes],
            node_ids=self.node_ids[nodes.numpy()],
            label_names=self.label_names,
            feature_names=self.feature_names,
        )

    @staticmethod
    def from_pyg(data: Any) -> Graph:
        """A graph from a `torch_geometric.data.Data`."""
        return Graph(
            data.x,
            data.edge_index,
            data.y,
            train_mask=getattr(data, "train_mask", None),
            val_mask=getattr(data, "val_mask", None),
            test_mask=getattr(data, "test_mask", None),
        )

    def to_pyg(self) -> Any:
        """This graph as a `torch_geometric.data.Data` (needs the extra `fedmend[pyg]`)."""
        from torch_geometric.data import Data

        return Data(
            x=self.x.to_dense() if is_sparse(self.x) else self.x,
            edge_index=self.edge_index,
            y=self.y,
            train_mask=self.train_mask,
            val_mask=self.val_mask,
            test_mask=self.test_mask,
        )
