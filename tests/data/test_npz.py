"""The benchmark's .npz files: read right, and refused in one line when they are not right."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedmend.data.npz import read_npz
from fedmend.errors import FileFormatError
from fedmend.graph import is_sparse

ADJACENCY = np.array([[1, 1, 0, 0], [0, 0, 3, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
ATTRIBUTES = np.array([[0, 2.0, 0], [1, 0, 0], [0, 0, 0], [4, 0, 0.5]])


def content(**changes: Any) -> dict[str, Any]:
    """A graph with edges 0-1 and 1-2; a change of None takes the key away."""
    arrays: dict[str, Any] = {"labels": np.array([1, 0, 1, -1])}
    for prefix, matrix in (
        ("adj", sp.csr_matrix(ADJACENCY)),
        ("attr", sp.csr_matrix(ATTRIBUTES)),
    ):
        arrays[f"{prefix}_data"] = matrix.data
        arrays[f"{prefix}_indices"] = matrix.indices
        arrays[f"{prefix}_indptr"] = matrix.indptr
        arrays[f"{prefix}_shape"] = np.array(matrix.shape)
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "file.npz"
    np.savez(path, **content(**changes))
    return path


def test_reading(tmp_path: Path) -> None:
    graph = read_npz(write(tmp_path))
    assert is_sparse(graph.x)
    assert graph.x.to_dense().tolist() == (ATTRIBUTES > 0).astype(float).tolist()
    assert graph.edges.T.tolist() == [[0, 1], [1, 2]]
    assert graph.y.tolist() == [1, 0, 1, -1]
    assert graph.label_names == ("0", "1")
    assert graph.node_ids.tolist() == [0, 1, 2, 3]


def test_names_and_dense_attributes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **dict.fromkeys(("attr_data", "attr_indices", "attr_indptr", "attr_shape")),
        attr_matrix=ATTRIBUTES,
        class_names=np.array(["no", "yes", "never"]),
        node_names=np.array(["a", "b", "c", "d"]),
    )
    graph = read_npz(path)
    assert not is_sparse(graph.x)
    assert graph.x.tolist() == (ATTRIBUTES > 0).astype(float).tolist()
    assert graph.label_names == ("no", "yes", "never")
    assert graph.node_ids.tolist() == ["a", "b", "c", "d"]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        raise_on_load = "raise SystemExit('unpickled')"
        return exec, (raise_on_load,)


def test_pickled_names_are_left_out_unread(tmp_path: Path) -> None:
    objects = np.array([Bomb(), Bomb()], dtype=object)
    graph = read_npz(write(tmp_path, class_names=objects, node_names=objects))
    assert graph.label_names == ("0", "1")
    assert graph.node_ids.tolist() == [0, 1, 2, 3]


def test_names_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    names = {"class_names": np.array(["one"]), "node_names": np.array(["a", "b", "a", "c"])}
    graph = read_npz(write(tmp_path, **names))
    assert graph.label_names == ("0", "1")
    assert graph.node_ids.tolist() == [0, 1, 2, 3]


def test_an_entry_of_zero_is_no_edge(tmp_path: Path) -> None:
    data = np.array([1, 0, 0, 0])
    assert read_npz(write(tmp_path, adj_data=data)).num_edges == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "has no labels: not a file of the GNN benchmark"),
        ({"adj_indptr": None}, "has no adj_indptr"),
        ({"attr_data": None}, "has no attr_data"),
        ({"labels": np.array([0, 1])}, "labels must be 4 whole numbers"),
        ({"labels": np.zeros(4)}, "labels must be 4 whole numbers, got float64"),
        ({"labels": np.array([0, 1, 0, -5])}, "y: row 3 has label -5"),
        ({"labels": np.array([Bomb()], dtype=object)}, "labels is malformed: Object arrays"),
        ({"adj_data": np.array([Bomb()] * 4)}, "adj_data is malformed: Object arrays"),
        ({"adj_indices": np.array([0, 1, 2, 9])}, r"adj_\*: not a sparse matrix"),
        ({"adj_indices": np.array([0, 1, 2, -1])}, r"adj_\*: not a sparse matrix"),
        ({"adj_indptr": np.array([0, 4, 2, 3, 4])}, r"adj_\*: not a sparse matrix"),
        ({"adj_indptr": np.array([0, 2, 3, 4])}, r"adj_\*: shape \(4, 4\) does not fit 3 rows"),
        ({"adj_indptr": np.array([0, 9, -4, 2, 0])}, r"adj_\*: not a sparse matrix: row pointers"),
        ({"adj_indptr": np.zeros((2, 2))}, r"adj_\*: indptr is no list of numbers"),
        ({"adj_shape": np.array([4])}, r"adj_\*: shape must be two numbers"),
        ({"adj_shape": np.array([4, 5])}, r"adj_shape is \(4, 5\), but there are 4 rows"),
        ({"attr_shape": np.array([4, 10**12])}, r"attr_\*: shape .* does not fit"),
        ({"attr_data": np.array([1, np.nan, 1, 1])}, "attr_data has a value that is NaN"),
        ({"attr_data": np.array(["a"] * 4)}, r"attr_\*: data is no list of numbers"),
        ({"attr_matrix": np.zeros(4)}, "attr_matrix must be a table of numbers"),
        ({"attr_matrix": np.full((4, 2), np.inf)}, "attr_matrix has a value that is NaN"),
        ({"attr_matrix": np.zeros((0, 2))}, "adj_shape is"),
    ],
)
def test_malformed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_that_claims_too_much(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": (10**13,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    path = tmp_path / "file.npz"
    np.savez(path, **content(labels=None))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.npy", buffer.getvalue() + b"12345678")
    with pytest.raises(FileFormatError, match="labels is malformed: it claims shape"):
        read_npz(path)


def test_a_header_of_python_2(tmp_path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (4L,), }".ljust(117) + b"\n"
    path = tmp_path / "file.npz"
    np.savez(path, **content(labels=None))
    with zipfile.ZipFile(path, "a") as archive:
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        archive.writestr("labels.npy", start + np.array([1, 0, 1, 0]).tobytes())
    assert read_npz(path).y.tolist() == [1, 0, 1, 0]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.npz"
    np.savez_compressed(path, **content(), padding=np.zeros(10**6, dtype=np.uint8))
    assert path.stat().st_size < 10**4
    monkeypatch.setattr("fedmend.data.npz._MAX_BYTES", 10**6)
    with pytest.raises(FileFormatError, match=r"unpacks to .* bytes, more than 1000000"):
        read_npz(path)


def test_a_member_that_lies_about_its_size_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, **content(labels=None))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", bytes(64 * 2**20))
        archive.getinfo("labels.npy").file_size = 1000
    tracemalloc.start()
    with pytest.raises(FileFormatError, match=r"is not a readable \.npz file"):
        read_npz(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_a_long_member_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.npz"
    np.savez_compressed(path, **content())
    monkeypatch.setattr("fedmend.data.npz._PIECE", 7)
    assert read_npz(path).y.tolist() == [1, 0, 1, -1]


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_numpy_does_not_write(tmp_path: Path, compression: int) -> None:
    path, labels = tmp_path / "file.npz", io.BytesIO()
    np.savez(path, **content(labels=None))
    np.save(labels, content()["labels"])
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr("labels.npy", labels.getvalue())
    with pytest.raises(FileFormatError, match="labels is compressed in a way that numpy does not"):
        read_npz(path)


@pytest.mark.parametrize("damage", ["text", "half", "flipped", "empty", "header", "folder", "none"])
def test_damaged_files(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "file.npz"
    np.savez_compressed(path, **content())
    data = path.read_bytes()
    if damage == "folder":
        path = tmp_path
    elif damage == "none":
        path = tmp_path / "none.npz"
    else:
        bad = bytearray(data)
        if damage == "flipped":
            for place in range(30, 400):
                bad[place] ^= 0x55
        new = {"text": b"hello", "half": data[: len(data) // 2], "flipped": bytes(bad)}
        path.write_bytes(new.get(damage, b""))
        if damage == "header":
            with zipfile.ZipFile(path, "w") as archive:
                for key in content():
                    archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((")
    with pytest.raises(FileFormatError) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
