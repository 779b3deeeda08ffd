"""Planetoid files: the genuine ones read right, hostile ones refused without running anything."""

from __future__ import annotations

import collections
import decimal
import os
import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data import planetoid
from fedmend.data.planetoid import SUFFIXES, read_planetoid
from fedmend.errors import FileFormatError
from fedmend.graph import is_sparse


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "isolated", "unlabelled"),
    [
        ("cora", 2708, 5278, 1433, 7, 0, 0),
        ("citeseer", 3327, 4552, 3703, 6, 48, 15),
        ("pubmed", 19717, 44324, 500, 3, 0, 0),
    ],
)
def test_genuine_files(
    planetoid_root: Path,
    name: str,
    nodes: int,
    edges: int,
    features: int,
    classes: int,
    isolated: int,
    unlabelled: int,
) -> None:
    graph = read_planetoid(planetoid_root, name)
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert (graph.num_features, graph.num_classes) == (features, classes)
    assert is_sparse(graph.x)
    assert int((graph.degree == 0).sum()) == isolated
    unknown = graph.y == -1
    assert int(unknown.sum()) == unlabelled
    assert (graph.degree[unknown] > 0).all()
    assert not graph.x.to_dense()[unknown].any()


def test_genuine_files_against_plain_unpickling(planetoid_root: Path) -> None:
    """Node by node, as the Planetoid README describes the files."""
    raw = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the old names in the files: not the point here
        for suffix in SUFFIXES[:-1]:
            with (planetoid_root / f"ind.citeseer.{suffix}").open("rb") as file:
                raw[suffix] = pickle.load(file, encoding="latin1")  # noqa: S301 - a genuine file
    lines = (planetoid_root / "ind.citeseer.test.index").read_text().split()
    graph = read_planetoid(planetoid_root, "citeseer")
    x = graph.x.to_dense().numpy()
    known = raw["allx"].shape[0]
    for node in range(0, known, 97):
        assert (x[node] == raw["allx"][node].toarray()[0]).all()
        assert graph.y[node] == raw["ally"][node].argmax()
    for row in range(0, len(lines), 53):
        assert (x[int(lines[row])] == raw["tx"][row].toarray()[0]).all()
        assert graph.y[int(lines[row])] == raw["ty"][row].argmax()
    for node in range(0, graph.num_nodes, 31):
        neighbours = set(raw["graph"][node]) - {node}
        assert neighbours <= set(graph.col[graph.rowptr[node] : graph.rowptr[node + 1]].tolist())


# A small dataset: nodes 0-3 are in allx, 4 and 6 are tested, 5 is in neither.
X = sp.csr_matrix(np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0], [1, 1, 1]], dtype=np.float32))
Y = np.array([[1, 0], [0, 1], [0, 1], [1, 0]], dtype=np.int32)
TX = sp.csr_matrix(np.array([[0, 0, 6], [0, 4, 0]], dtype=np.float32))
TY = np.array([[0, 1], [1, 0]], dtype=np.int32)
GRAPH = {0: [1, 1, 0], 1: [0], 2: [6], 3: [], 4: [6], 5: [], 6: [4, 2]}


def parts(**changes: Any) -> dict[str, Any]:
    neighbours = collections.defaultdict(list, GRAPH)
    return {
        "x": X[:2],
        "y": Y[:2],
        "allx": X,
        "ally": Y,
        "tx": TX,
        "ty": TY,
        "graph": neighbours,
        "test.index": b"6\n4\n",
    } | changes


def write(folder: Path, **changes: Any) -> Path:
    """Write the small dataset; a value of bytes is written as it is, others are pickled."""
    for suffix, value in parts(**changes).items():
        data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=4)
        (folder / f"ind.small.{suffix}").write_bytes(data)
    return folder


def test_small_files(tmp_path: Path) -> None:
    graph = read_planetoid(write(tmp_path), "small")
    assert graph.x.to_dense().tolist() == [
        [1, 0, 2],
        [0, 0, 0],
        [0, 3, 0],
        [1, 1, 1],
        [0, 4, 0],
        [0, 0, 0],
        [0, 0, 6],
    ]
    assert graph.y.tolist() == [0, 1, 1, 0, 0, -1, 1]
    assert graph.edges.T.tolist() == [[0, 1], [2, 6], [4, 6]]
    assert graph.label_names == ("0", "1")


def python_2_array(array: np.ndarray[Any, Any], dtype: bytes = b"i4") -> bytes:
    """A table of at most 255 x 255 pickled as Python 2 and numpy 1.x did in 2016."""
    raw = array.astype(dtype.decode()).tobytes()
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K" + bytes([array.shape[0]]) + b"K" + bytes([array.shape[1]]) + b"\x86"
        b"cnumpy\ndtype\nU\x02" + dtype + b"K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb."
    )


def test_old_names_and_texts_for_bytes(tmp_path: Path) -> None:
    labels = python_2_array(Y)
    assert read_planetoid(write(tmp_path, ally=labels), "small").y.tolist()[:4] == [0, 1, 1, 0]


class Call:
    """Pickles to a call of `function(*arguments)`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def nested_key(depth: int) -> bytes:
    """{((((...)))): None}: hashing the key recurses in C."""
    return b"\x80\x02})" + b"\x85" * depth + b"Ns."


def marker(folder: Path) -> str:
    return f"touch {folder / 'executed'}"


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        (lambda folder: Call(os.system, marker(folder)), "it asks for posix.system"),
        (lambda folder: Call(eval, f"open({str(folder / 'executed')!r}, 'w')"), "builtins.eval"),
        (lambda folder: Call(os.mkdir, str(folder / "executed")), "asks for posix.mkdir"),
        (lambda folder: decimal.Decimal("1"), "asks for decimal.Decimal"),
        (lambda folder: [Call(getattr, 1, "real")], "asks for builtins.getattr"),
        (lambda folder: b"cos\nsystem\n(S'true'\ntR.", "it has the instruction STRING"),
        (lambda folder: b"(S'true'\nios\nsystem\n.", "it has the instruction STRING"),
        (lambda folder: b"(U\x04trueios\nsystem\n.", "it has the instruction INST"),
        (lambda folder: b"\x80\x02P1\n.", "it has the instruction PERSID"),
        (lambda folder: b"\x80\x02\x82\x01.", "it has the instruction EXT1"),
        (lambda folder: b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.mro\x93.", "numpy.ndarray.mro"),
        (lambda folder: b"\x80\x02cnumpy\ndtype\nN}U\x05stateK\x01s\x86b.", "Planetoid data"),
        (lambda folder: b"\x80\x02ccollections\ndefaultdict\n)RN}\x86b.", "has no state"),
        (lambda folder: nested_key(200_000), "too many instructions"),
        (lambda folder: b"\x80\x02Nr\xff\xff\xff\x7f.", "asks for too much memory"),
        (lambda folder: b"\x80\x02T\xff\xff\xff\x7fabc.", "Planetoid data"),
        (lambda folder: b"\x80\x04B\xff\xff\xff\xffabc.", "Planetoid data"),
        (lambda folder: b"", "Planetoid data"),
        (lambda folder: b"hello", "Planetoid data"),
        (lambda folder: b"\x80\x02.", "Planetoid data"),
        (lambda folder: pickle.dumps(Y, protocol=4)[:-20], "Planetoid data"),
        (lambda folder: 5, "does not hold"),
        (lambda folder: [1, 2], "does not hold"),
    ],
)
@pytest.mark.parametrize("suffix", ["allx", "ally", "graph"])
def test_hostile_pickles(
    tmp_path: Path, suffix: str, hostile: Callable[[Path], Any], message: str
) -> None:
    write(tmp_path, **{suffix: hostile(tmp_path)})
    with pytest.raises(FileFormatError, match=message) as caught:
        read_planetoid(tmp_path, "small")
    assert f"ind.small.{suffix}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_nothing_a_pickle_does_outlives_it(tmp_path: Path) -> None:
    """BUILD with a second state sets attributes: it must not reach the stand-ins' classes."""
    before = dict(vars(planetoid._Dtype)), dict(vars(planetoid._Inert))
    for name in (b"numpy\ndtype", b"numpy\nndarray", b"scipy.sparse.csr\ncsr_matrix"):
        attack = b"\x80\x02c" + name + b"\nN}U\x09argumentsK\x01s\x86b."
        with pytest.raises(FileFormatError):
            read_planetoid(write(tmp_path, ally=attack), "small")
    assert before == (dict(vars(planetoid._Dtype)), dict(vars(planetoid._Inert)))


def giant(array: np.ndarray[Any, Any]) -> bytes:
    """An array that claims 10**9 rows."""
    data = python_2_array(array)
    claim = b"K" + bytes([array.shape[0]]) + b"K" + bytes([array.shape[1]]) + b"\x86"
    assert claim in data
    return data.replace(claim, b"J" + struct.pack("<i", 10**9) + b"K\x02\x86")


def csr_claiming(shape: tuple[int, int], **changes: Any) -> bytes:
    matrix = X.copy()
    matrix.__dict__.update({"_shape": shape} | changes)
    return pickle.dumps(matrix, protocol=4)


def repeated_list() -> bytes:
    """Seven nodes that all name the same list of 1000: 7000 entries in 2 kB."""
    row = b"]q\x01(" + b"K\x00" * 1000 + b"e"
    rows = b"".join(b"K" + bytes([node]) + (row if node == 0 else b"h\x01") for node in range(7))
    return b"\x80\x02}(" + rows + b"u."


@pytest.mark.parametrize(
    ("suffix", "value", "message"),
    [
        ("ally", giant(Y), r"claims an array of shape \(1000000000, 2\) but has 32 bytes"),
        ("ally", python_2_array(Y, b"c8"), "type 'c8'"),
        ("ally", Y[:, 0], "must hold a table of one-hot labels"),
        ("ally", Y[:3], "ind.small.ally has 3 rows, expected 4"),
        ("ally", Y * [[1], [1], [2], [1]], "row 2 is no one-hot label"),
        ("ty", np.ones((2, 2), dtype=np.int32), "row 0 is no one-hot label"),
        ("ty", np.zeros((2, 3), dtype=np.int32), "has other columns"),
        ("ally", np.array([[None]]), "array"),
        ("allx", csr_claiming((10**9, 3)), "does not fit 4 rows"),
        ("allx", csr_claiming((4, 10**12)), "Planetoid data|does not fit"),
        ("allx", csr_claiming((4, 2)), "not a sparse matrix"),
        ("allx", csr_claiming((4, 3), indices=np.array([0, 2, 1, 0, 1, -1])), "not a sparse"),
        ("allx", csr_claiming((4, 3), indptr=np.array([0, 9, 2, 3, 6])), "not a sparse matrix"),
        ("allx", csr_claiming((4, 3), data=np.array([1.0])), "not a sparse matrix"),
        ("allx", csr_claiming((4, 3), data=5), "does not hold an array"),
        ("allx", Y, "does not hold a sparse matrix"),
        ("tx", sp.csr_matrix((2, 4), dtype=np.float32), "has other columns"),
        ("tx", sp.csr_matrix(np.full((2, 3), np.nan, dtype=np.float32)), "row 4 has a feature"),
        ("x", X[1:3], "ind.small.x does not repeat the first rows of allx"),
        ("y", Y[1:3], "ind.small.y does not repeat the first rows of ally"),
        ("graph", {0: [1], 2: [0]}, "nodes must be numbered 0 to 1"),
        ("graph", {0: [1], "1": [0]}, "nodes must be numbered 0 to 1"),
        ("graph", GRAPH | {3: [7]}, "neighbours must be numbers from 0 to 6"),
        ("graph", GRAPH | {3: [-1]}, "neighbours must be numbers from 0 to 6"),
        ("graph", GRAPH | {3: ["0"]}, "neighbours must be numbers from 0 to 6"),
        ("graph", GRAPH | {3: None}, "does not hold a dictionary of neighbour lists"),
        ("graph", repeated_list(), "claims 7000 edges, more than it has bytes"),
        ("graph", {0: [], 1: []}, "must hold numbers from 4 to 1"),
        ("test.index", b"6\n", "has 1 rows, expected 2"),
        ("test.index", b"6\n6\n", "names a node twice"),
        ("test.index", b"6\n7\n", "must hold numbers from 4 to 6, got 6 to 7"),
        ("test.index", b"6\n1\n", "must hold numbers from 4 to 6, got 1 to 6"),
        ("test.index", b"6\n-4\n", "one node number per line"),
        ("test.index", b"6\n" + b"9" * 5000, "one node number per line"),
    ],
)
def test_wrong_content(tmp_path: Path, suffix: str, value: Any, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        read_planetoid(write(tmp_path, **{suffix: value}), "small")
    assert "ind.small." in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_without_rows_cannot_claim_endless_classes(tmp_path: Path) -> None:
    """A table of no rows and any number of columns has no bytes; a name per column would."""
    labels = np.zeros((0, 1_000_001), dtype=np.int32)
    none = dict.fromkeys(("y", "ally", "ty"), labels) | dict.fromkeys(("x", "allx", "tx"), X[:0])
    write(tmp_path, **none, **{"test.index": b""})
    with pytest.raises(FileFormatError, match=r"\.ally has 1000001 columns, one per class"):
        read_planetoid(tmp_path, "small")


def test_missing_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (write(tmp_path) / "ind.small.tx").unlink()
    with pytest.raises(FileFormatError, match=r"cannot read .*ind\.small\.tx: No such file"):
        read_planetoid(tmp_path, "small")
    monkeypatch.setattr(planetoid, "_MAX_BYTES", 10)
    with pytest.raises(FileFormatError, match="is larger than 10 bytes"):
        read_planetoid(write(tmp_path), "small")


@given(st.sampled_from(["allx", "ally", "graph"]), st.data())
@settings(max_examples=300)
def test_damage_is_a_format_error_or_another_graph(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    """Bytes changed at random: a graph or a FileFormatError, no other way out."""
    folder = write(tmp_path_factory.mktemp("fuzz", numbered=True))
    path = folder / f"ind.small.{suffix}"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    try:
        graph = read_planetoid(folder, "small")
    except FileFormatError:
        return
    assert torch.isfinite(graph.x.to_dense()).all()
