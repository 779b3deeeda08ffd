"""The raw Planetoid files (Yang et al., 2016): Cora, CiteSeer and PubMed in eight files each.

The files are pickles, and a pickle is a program. It is made harmless in three steps:

1. Its instructions are listed without running them; only those that Planetoid files are made of
   are let through, and only as many as such a file can need. That rules out deep nesting (hashing
   it overflows the C stack), huge memo indices (the unpickler allocates up to them) and the like.
2. The unpickler knows an explicit list of names, and gives for each an inert stand-in that keeps
   what it is told and does nothing. No function of numpy, scipy or collections is ever called
   with arguments from the file, so a bogus shape or dtype allocates nothing and warns of nothing.
3. Arrays are then made from the bytes that are really there, after every type, length and index
   has been checked.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import pickletools
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedmend.data.matrices import checked_csr
from fedmend.errors import FileFormatError, GraphError
from fedmend.graph import MAX_CLASSES, UNKNOWN_LABEL, Graph

SUFFIXES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")

_MAX_BYTES = 64 * 2**20  # the largest genuine file, ind.pubmed.allx, has 7.6 MB
_MAX_INSTRUCTIONS = 5_000_000  # ind.pubmed.graph needs 0.2 million
_MAX_CALLS = 1000  # calls and tuples; a matrix needs about thirty


def read_planetoid(folder: Path, name: str) -> Graph:
    """The graph in the eight files `folder/ind.NAME.*`.

    Features are as in the files (not normalised), in CSR form. CiteSeer's test index leaves out
    15 nodes, for which the files hold edges but neither features nor a label: they get a row of
    zeros and the label -1 (unknown). Loaders that decode the one-hot labels of a padded table
    give them class 0; we do not invent labels. (48 other nodes have no edge but to themselves.)
    """
    path = {suffix: folder / f"ind.{name}.{suffix}" for suffix in SUFFIXES}
    graph = _read_neighbours(path["graph"])
    allx, ally = _read_matrix(path["allx"]), _read_labels(path["ally"])
    tx, ty = _read_matrix(path["tx"]), _read_labels(path["ty"])
    test = _read_index(path["test.index"])
    nodes, known, tested = len(graph), allx.shape[0], tx.shape[0]

    for suffix, rows, expected in (
        ("ally", len(ally), known),
        ("ty", len(ty), tested),
        ("test.index", len(test), tested),
    ):
        if rows != expected:
            raise FileFormatError(f"{path[suffix]} has {rows} rows, expected {expected}")
    _check_repeat(path["x"], path["y"], allx, ally)
    if tx.shape[1] != allx.shape[1] or ty.shape[1] != ally.shape[1]:
        raise FileFormatError(f"{path['tx']} or {path['ty']} has other columns than allx and ally")
    if len(np.unique(test)) != len(test):
        raise FileFormatError(f"{path['test.index']} names a node twice")
    if tested and (test.min() < known or test.max() >= nodes):
        raise FileFormatError(
            f"{path['test.index']} must hold numbers from {known} to {nodes - 1}, "
            f"got {test.min()} to {test.max()}"
        )
    if known > nodes:
        raise FileFormatError(f"{path['graph']} has {nodes} nodes, but allx has {known}")

    # Row of every node in the table (allx, tx, one empty row for the nodes in neither).
    place = np.full(nodes, known + tested)
    place[:known] = np.arange(known)
    place[test] = known + np.arange(tested)
    x = sp.vstack([allx, tx, sp.csr_matrix((1, allx.shape[1]))], format="csr")[place]
    classes = ally.shape[1]
    y = np.concatenate([_classes(path["ally"], ally), _classes(path["ty"], ty), [UNKNOWN_LABEL]])
    names = [str(label) for label in range(classes)]
    try:
        return Graph(x, _edges(path["graph"], graph), y[place], label_names=names)
    except GraphError as error:
        raise FileFormatError(f"{folder / f'ind.{name}.*'}: {error}") from error


class _Inert:
    """Stands for an admitted name: keeps its arguments and state, does nothing."""

    arguments: tuple[Any, ...] = ()  # in the class, because a pickle may make one without __init__
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert):
    """numpy's _reconstruct(ndarray, (0,), 'b'), then the state."""


class _Dtype(_Inert):
    """numpy.dtype."""


class _Matrix(_Inert):
    """scipy's csr_matrix."""


class _Name(_Inert):
    """A name that is only handed to another: ndarray, and list as a default factory."""


class _Neighbours(dict[Any, Any]):
    """collections.defaultdict."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a defaultdict has no state")


class _Unpickler(pickle.Unpickler):
    """Knows the names that Planetoid files use, old and new, and nothing else."""

    # Python 2 and the numpy and scipy of 2016 wrote the genuine files; files saved again by
    # today's have the other names.
    admitted: ClassVar[dict[tuple[str, str], type]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Name,
        ("numpy", "dtype"): _Dtype,
        ("scipy.sparse.csr", "csr_matrix"): _Matrix,
        ("scipy.sparse._csr", "csr_matrix"): _Matrix,
        ("collections", "defaultdict"): _Neighbours,
        ("__builtin__", "list"): _Name,
        ("builtins", "list"): _Name,
    }

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return self.admitted[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no Planetoid file needs"
            ) from None


_STRUCTURE = {"PROTO", "FRAME", "STOP", "MARK"}
_VALUES = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"}
_TEXTS = {"BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"}
_TEXTS |= {"BINUNICODE", "SHORT_BINUNICODE"}
_CONTAINERS = {"EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"}
_MEMO = {"BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"}
_CALLS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"}
_CALLS |= {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_ALLOWED = _STRUCTURE | _VALUES | _TEXTS | _CONTAINERS | _MEMO | _CALLS

# What the unpickler and the listing of instructions raise on malformed input.
_MALFORMED = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def _check_instructions(data: bytes) -> None:
    """Refuse a pickle with instructions that no Planetoid file has, without running it."""
    calls = 0
    for count, (code, argument, _) in enumerate(pickletools.genops(data)):
        if code.name not in _ALLOWED:
            raise pickle.UnpicklingError(f"it has the instruction {code.name}")
        calls += code.name in _CALLS
        if count > _MAX_INSTRUCTIONS or calls > _MAX_CALLS:
            raise pickle.UnpicklingError("it has too many instructions")
        if code.name == "LONG_BINPUT" and int(argument or 0) > len(data):
            raise pickle.UnpicklingError("it asks for too much memory")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise FileFormatError(f"{path} is larger than {_MAX_BYTES} bytes: no Planetoid file")
    return data


def _unpickle(path: Path) -> Any:
    data = _read(path)
    try:
        with warnings.catch_warnings():
            # Listing the instructions warns of a stray backslash in a name; the name is refused.
            warnings.simplefilter("ignore", DeprecationWarning)
            _check_instructions(data)
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except _MALFORMED as error:
        reason = " ".join(str(error).split())[:200]
        raise FileFormatError(
            f"{path} is refused: not a pickle of the Planetoid data: {reason}"
        ) from error


def _array(value: Any, path: Path) -> NDArray[Any]:
    """The array a stand-in tells of, over the bytes that are in the file."""
    match value:
        case _Array(
            state=(
                int(),
                tuple(shape),
                _Dtype(arguments=(str(code), *_), state=(int(), str(order), None, None, None, *_)),
                bool(fortran),
                bytes() | str() as raw,
            )
        ):
            pass
        case _:
            raise FileFormatError(f"{path} does not hold an array of numbers where one belongs")
    if (
        code not in ("i1", "u1", "i2", "i4", "i8", "f4", "f8")
        or order not in ("<", ">", "|", "=")
        or len(shape) > 2
        or not all(type(length) is int and length >= 0 for length in shape)
    ):
        raise FileFormatError(f"{path} holds an array of type {code!r:.20}, shape {shape!r:.60}")
    dtype = np.dtype(order + code)
    if isinstance(raw, str):
        # Python 2 wrote bytes as a text of latin1; a character beyond it is a wrong number.
        raw = raw.encode("latin1", "replace")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise FileFormatError(
            f"{path} claims an array of shape {shape} but has {len(raw)} bytes for it"
        )
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


def _read_matrix(path: Path) -> sp.csr_matrix:
    value = _unpickle(path)
    if not isinstance(value, _Matrix) or not isinstance(value.state, dict):
        raise FileFormatError(f"{path} does not hold a sparse matrix")
    data, indices, indptr = (
        _array(value.state.get(name), path) for name in ("data", "indices", "indptr")
    )
    return checked_csr(data, indices, indptr, value.state.get("_shape"), str(path))


def _read_labels(path: Path) -> NDArray[Any]:
    table = _array(_unpickle(path), path)
    if table.ndim != 2:
        raise FileFormatError(f"{path} must hold a table of one-hot labels")
    if table.shape[1] > MAX_CLASSES:  # without rows it may claim any width, and has no bytes
        raise FileFormatError(
            f"{path} has {table.shape[1]} columns, one per class; at most {MAX_CLASSES} are allowed"
        )
    return table


def _read_neighbours(path: Path) -> dict[int, list[int]]:
    value = _unpickle(path)
    if not isinstance(value, dict) or not all(type(row) is list for row in value.values()):
        raise FileFormatError(f"{path} does not hold a dictionary of neighbour lists")
    if not all(type(node) is int and 0 <= node < len(value) for node in value):
        raise FileFormatError(f"{path}: nodes must be numbered 0 to {len(value) - 1}")
    return value


def _edges(path: Path, graph: dict[int, list[int]]) -> NDArray[np.int64]:
    lengths = np.fromiter(map(len, graph.values()), np.int64, len(graph))
    # A few bytes can name one long list many times; in a genuine file every entry has its own.
    if lengths.sum() > path.stat().st_size:
        raise FileFormatError(f"{path} claims {lengths.sum()} edges, more than it has bytes")
    entries = list(itertools.chain.from_iterable(graph.values()))
    if not all(type(node) is int and 0 <= node < len(graph) for node in entries):
        raise FileFormatError(f"{path}: neighbours must be numbers from 0 to {len(graph) - 1}")
    source = np.repeat(np.fromiter(graph, np.int64, len(graph)), lengths)
    return np.stack([source, np.array(entries, dtype=np.int64)])


def _read_index(path: Path) -> NDArray[np.int64]:
    words = _read(path).split()
    if not all(word.isdigit() and len(word) < 10 for word in words):
        raise FileFormatError(f"{path} must hold one node number per line")
    return np.array([int(word) for word in words], dtype=np.int64)


def _classes(path: Path, table: NDArray[Any]) -> NDArray[np.int64]:
    """Class of every one-hot row; -1 for a row of zeros."""
    one = table == 1
    wrong = ((table != 0) & ~one).any(axis=1) | (one.sum(axis=1) > 1)
    if wrong.any():
        raise FileFormatError(f"{path}: row {np.flatnonzero(wrong)[0]} is no one-hot label")
    if not one.size:
        return np.full(len(table), UNKNOWN_LABEL, dtype=np.int64)
    return np.where(one.any(axis=1), one.argmax(axis=1), UNKNOWN_LABEL)


def _check_repeat(x_path: Path, y_path: Path, allx: sp.csr_matrix, ally: NDArray[Any]) -> None:
    """x and y repeat the first rows of allx and ally: files of two datasets would not."""
    x, y = _read_matrix(x_path), _read_labels(y_path)
    rows = x.shape[0]
    if rows > allx.shape[0] or x.shape[1] != allx.shape[1] or (allx[:rows] != x).nnz:
        raise FileFormatError(f"{x_path} does not repeat the first rows of allx")
    if len(y) != rows or y.shape[1] != ally.shape[1] or (ally[:rows] != y).any():
        raise FileFormatError(f"{y_path} does not repeat the first rows of ally")
