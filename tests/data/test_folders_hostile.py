"""Folders that are wrong by mistake or on purpose: one line that says where, never a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data import tables
from fedmend.data.folders import (
    check_folder,
    read_folder,
    read_silos,
    write_folder,
    write_partition,
)
from fedmend.data.partition import split
from fedmend.errors import DataError, FedmendError, FileFormatError, GraphError, SettingsError
from fedmend.graph import Graph

NODES = "id,label,split,f,g\n1,a,train,0,1\n2,b,val,0.5,1\n3,,,2,1"
EDGES = "src,dst\n1,2\n2,3"


def folder(path: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "nodes.csv").write_text(nodes + "\n")
    (path / "edges.csv").write_text(edges + "\n")
    return path


def parquet(path: Path, metadata: dict[str, str] | None = None, **columns: Any) -> Path:
    table = pa.table(columns).replace_schema_metadata(metadata)
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path / "nodes.parquet")
    (path / "edges.csv").write_text("src,dst\n")
    return path


def refuses(path: Path, message: str) -> None:
    """Reading and checking both raise this, in one line."""
    for read in (read_folder, check_folder):
        with pytest.raises(FileFormatError, match=message) as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_the_folder_the_others_are_made_from_is_good(tmp_path: Path) -> None:
    assert read_folder(folder(tmp_path)).num_edges == 2


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("ID,f\n1,0", r"nodes\.csv: no column 'id'; it has ID, f"),
        ("id,f", r"nodes\.csv has no rows"),
        ("id,label\n1,a", r"nodes\.csv has no features"),
        ("id,f\n1,0\n,0", r"nodes\.csv: row 2: id is empty"),
        ("id,f\n1,0\n2,0\n1,0", r"nodes\.csv: rows 1 and 3 have the same id 1"),
        ("id,f\nu,0\nv,abc", r"nodes\.csv: row 2 \(id v\): column f has abc, expected a number"),
        ("id,f,g\n7,0,1\n8,0,", r"row 2 \(id 8\): the feature in column g is empty, NaN or inf"),
        ("id,f\n7,nan", r"row 1 \(id 7\): the feature in column f is empty, NaN or infinite"),
        ("id,f\n7,1\n8,-inf", r"row 2 \(id 8\): the feature in column f is empty, NaN or inf"),
        ("id,f\n7,1e39", r"row 1 \(id 7\): the feature in column f is empty, NaN or infinite"),
        ("id,split,f\n1,,0\n2,tets,0", r"row 2 \(id 2\): split has tets, expected train, val, te"),
        ("id,label,split,f\n1,a,,0\n2,,train,0", r"row 2 \(id 2\): a train node needs a label"),
        ("id,label,split,f\n1,,test,0", r"row 1 \(id 1\): a test node needs a label"),
        ("id,split,f\n1,val,0", r"row 1 \(id 1\): a val node needs a label"),
        ("id,f\n1,0\n2,0,5", r"nodes\.csv: row 2 has 3 columns, the header has 2"),
        ("id,f\n1,0\n2", r"nodes\.csv: row 2 has 1 columns, the header has 2"),
        ("id,f,f\n1,0,0", "2 columns are called f"),
        (",id,f\n0,1,0", "a column has no name"),
        ("id,features\n1,1 2\n2,1 2 3", r"row 2 \(id 2\): features has 3 values, expected 2"),
        ("id,features\n1,1 2\n2,1 b", r"row 2 \(id 2\): column features has 1 b, expected num"),
        ("id,x\n1,1 2\n2,", r"row 2 \(id 2\): x is empty, expected a list"),
        ("id,x\n1,1 nan\n2,1 2", r"row 1 \(id 1\): the feature 1 is empty, NaN or infinite"),
        (
            "id,feature_index,feature_value\n1,0,1",
            "type float, expected lists of numbers|feature_c",
        ),
        ("id;f\n1;0", "no column 'id'; it has id;f"),
    ],
)
def test_a_bad_table_of_nodes(tmp_path: Path, nodes: str, message: str) -> None:
    refuses(folder(tmp_path, nodes, "src,dst"), message)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("from,to\n1,2", r"edges\.csv: no column 'src'; it has from, to"),
        ("src,dst\n1,2\n2,9", r"edges\.csv: row 2: dst 9 is no id in nodes\.csv"),
        ("src,dst\nx,2", r"edges\.csv: row 1: src x is no id in nodes\.csv"),
        ("src,dst\n1,2\n,3", r"edges\.csv: row 2: src is empty, expected an id"),
        ("src,dst\n1,2\n3", r"edges\.csv: row 2 has 1 columns, the header has 2"),
        ("", "edges.csv cannot be read as CSV|no column 'src'"),
    ],
)
def test_a_bad_table_of_edges(tmp_path: Path, edges: str, message: str) -> None:
    refuses(folder(tmp_path, edges=edges), message)


def test_the_row_is_right_in_a_long_file_and_beside_ignored_columns(tmp_path: Path) -> None:
    rows = [f"n{row},t{row},{row},0" for row in range(5000)]
    rows[4321] = "n4321,t,oops,0"
    path = folder(tmp_path, "\n".join(["id,title,f,g", *rows]), "src,dst")
    with pytest.raises(FileFormatError, match=r"row 4322 \(id n4321\): column f has oops"):
        read_folder(path, columns_to_ignore=["title"])


def test_missing_or_doubled_files(tmp_path: Path) -> None:
    refuses(tmp_path / "nowhere", "is not a folder")
    path = folder(tmp_path / "a")
    (path / "edges.csv").unlink()
    refuses(path, "neither edges.parquet nor edges.csv; a graph without edges needs the table too")
    (path / "nodes.csv").unlink()
    refuses(path, r"neither nodes\.parquet nor nodes\.csv$")
    parquet(folder(tmp_path / "b"), id=[1], f=[0.0])
    refuses(tmp_path / "b", r"has both nodes\.parquet and nodes\.csv: keep one")
    write_partition(split(read_folder(folder(tmp_path / "c")), 2), tmp_path / "d")
    refuses(tmp_path / "d", "this is a partition, its silos' folders are inside it")
    (tmp_path / "c" / "nodes.csv").unlink()
    (tmp_path / "c" / "nodes.csv").mkdir()
    refuses(tmp_path / "c", "is not a plain file")


LISTS = pa.list_(pa.int64())
COUNT = {"feature_count": "3"}
ONE = pa.array([[0], [1]])


@pytest.mark.parametrize(
    ("columns", "metadata", "message"),
    [
        ({"f": [0.0, None]}, None, r"row 2 \(id 2\): the feature in column f is empty, NaN"),
        ({"f": [1, None]}, None, r"row 2 \(id 2\): the feature in column f is empty, NaN"),
        ({"f": [1e300, 0.0]}, None, r"row 1 \(id 1\): the feature in column f is empty, NaN"),
        ({"f": ["a", "b"]}, None, "column f has type .*, expected numbers; columns that are no"),
        ({"f": [[1], [2]]}, None, "column f has type list.*, expected numbers"),
        (
            {"features": ["1 2", "3 4"]},
            None,
            "column features has type .*string.*, expected numbers",
        ),
        ({"features": [[1.0], None]}, None, r"row 2 \(id 2\): features is empty"),
        ({"features": [[1.0, 2.0], [1.0]]}, None, r"row 2 .*: features has 1 values, expected 2"),
        ({"features": [[1.0], [None]]}, None, r"row 2 \(id 2\): the feature 0 is empty, NaN"),
        ({"features": [[], []]}, None, "the lists in features are empty"),
        ({"features": [["a"], ["b"]]}, None, "column features has type string, expected numbers"),
        ({"features": [[1], [1]], "age": [1, 2]}, None, "so what is the column age"),
        ({"features": [[1], [1]], "x": [[1], [2]]}, None, "so what is the column x"),
        ({"feature_index": ONE, "f": [1, 2]}, COUNT, "so what is the column f"),
        ({"feature_index": ONE}, COUNT, "no column 'feature_value'"),
        ({"feature_index": ONE, "feature_value": ONE}, None, "feature_count .* from 1 to 10000000"),
        (
            {"feature_index": ONE, "feature_value": ONE},
            {"feature_count": "99999999"},
            "got '99999999'",
        ),
        ({"feature_index": ONE, "feature_value": ONE}, {"feature_count": "-3"}, "got '-3'"),
        (
            {"feature_index": [[0], [3]], "feature_value": ONE},
            COUNT,
            r"row 2 \(id 2\): feature_index has 3, expected 0 to 2",
        ),
        (
            {"feature_index": [[0], [-1]], "feature_value": ONE},
            COUNT,
            r"row 2 \(id 2\): feature_index has -1, expected 0 to 2",
        ),
        (
            {"feature_index": [[0], [None]], "feature_value": ONE},
            COUNT,
            r"row 2 \(id 2\): feature_index has -1, expected 0 to 2",
        ),
        (
            {"feature_index": [[0.0], [1.5]], "feature_value": ONE},
            COUNT,
            "feature_index has type double, expected lists of whole numbers",
        ),
        (
            {"feature_index": [[0], [0, 1]], "feature_value": ONE},
            COUNT,
            r"row 2 \(id 2\): 2 entries in feature_index and 1 in feature_value",
        ),
        (
            {"feature_index": ONE, "feature_value": [[1.0], [float("nan")]]},
            COUNT,
            r"row 2 \(id 2\): the feature is empty, NaN or infinite",
        ),
        ({"f": [1, 2]}, {"label_names": "{"}, "label_names in its metadata is not a JSON list"),
        ({"f": [1, 2]}, {"label_names": "[1]"}, "label_names in its metadata is not a JSON list"),
        ({"f": [1, 2]}, {"feature_names": '["a","b"]'}, "2 feature_names in its metadata for 1 f"),
        (
            {"f": [1, 2], "label": ["a", "z"]},
            {"label_names": '["a"]'},
            r"row 2 \(id 2\): label z is not one of the classes a",
        ),
        ({"f": [1, 2], "label": [1.0, 1.5]}, None, "row 2: column label has 1.5, expected a whole"),
        ({"f": [1, 2], "label": [1.0, float("inf")]}, None, "cannot be read as Parquet"),
        ({"f": [1, 2], "label": [[1], [2]]}, None, "column label has type list"),
        ({"f": [1, 2], "label": ["a", "b" * 1001]}, None, "text of more than 1000 characters"),
        ({"f": [1, 2], "split": [1, 2]}, None, r"row 1 \(id 1\): split has 1, expected train"),
    ],
)
def test_a_bad_parquet_table(
    tmp_path: Path, columns: dict[str, Any], metadata: dict[str, str] | None, message: str
) -> None:
    refuses(parquet(tmp_path, metadata, id=[1, 2], **columns), message)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1.5, 2.0], "column id has 1.5, expected a whole number or text"),
        ([None, 2], "row 1: id is empty"),
        (["", "a"], "row 1: id is empty"),
        (["a", "a"], "rows 1 and 2 have the same id a"),
        ([[1], [2]], "column id has type list"),
        (np.array([1, 2**63 + 5], dtype=np.uint64), "cannot be read as Parquet"),
        ([b"a", b"b"], "column id has type binary"),
    ],
)
def test_bad_ids_in_parquet(tmp_path: Path, ids: Any, message: str) -> None:
    refuses(parquet(tmp_path, id=pa.array(ids), f=[0.0, 1.0]), message)


def test_an_error_shows_a_hostile_id_in_one_short_line(tmp_path: Path) -> None:
    path = parquet(tmp_path, id=["x\n\x1b[31m" + "y" * 900], f=[float("nan")])
    with pytest.raises(FileFormatError) as caught:
        read_folder(path)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


# Links and things that are not files


def test_links_that_leave_the_folder_are_not_followed(tmp_path: Path) -> None:
    secret = folder(tmp_path / "secret")
    path = folder(tmp_path / "silo")
    (path / "nodes.csv").unlink()
    (path / "nodes.csv").symlink_to(secret / "nodes.csv")
    refuses(path, "is a link that leaves")
    (path / "nodes.csv").unlink()
    (path / "real.csv").write_text(NODES + "\n")
    (path / "nodes.csv").symlink_to("real.csv")
    assert read_folder(path).num_nodes == 3, "a link inside the folder is fine"

    parent = tmp_path / "parent"
    folder(parent / "a")
    (parent / "b").symlink_to(secret)
    with pytest.raises(FileFormatError, match="is a link that leaves"):
        read_silos(parent)
    (parent / "b").unlink()
    (parent / "evaluation").mkdir()
    (tmp_path / "cross.csv").write_text("src_silo,src,dst_silo,dst\n")
    (parent / "evaluation" / "cross_edges.csv").symlink_to(tmp_path / "cross.csv")
    with pytest.raises(FileFormatError, match="is a link that leaves"):
        read_silos(parent)


def test_a_circle_of_links_is_one_line(tmp_path: Path) -> None:
    write_partition(split(read_folder(folder(tmp_path / "a")), 2), tmp_path / "out")
    for entry in (tmp_path / "out" / "silo-1").iterdir():
        entry.unlink()
    (tmp_path / "out" / "silo-1").rmdir()
    (tmp_path / "out" / "silo-1").symlink_to("silo-1")
    with pytest.raises(FileFormatError, match="silo-1"):
        read_silos(tmp_path / "out")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "edges.csv").unlink()
    os.mkfifo(path / "edges.csv")
    refuses(path, "is not a plain file")


# Sizes


def test_files_that_are_too_large_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path)
    monkeypatch.setattr(tables, "MAX_BYTES", 10)
    refuses(path, "is larger than 0 GiB, the most allowed")


def test_a_file_that_unpacks_to_far_too_much_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.arange(200_000)
    path = parquet(tmp_path, id=ids, f=np.zeros(200_000))
    monkeypatch.setattr(tables, "_FREE_BYTES", 1_000_000)
    assert read_folder(path).num_nodes == 200_000
    monkeypatch.setattr(tables, "_EXPANSION", 1)
    refuses(path, "contents are far too large for its size")
    monkeypatch.setattr(tables, "_FREE_BYTES", 2**30)
    text = pa.DictionaryArray.from_arrays(np.zeros(200_000, dtype=np.int32), ["y" * 1000])
    parquet(path, id=ids, f=np.zeros(200_000), label=text)
    assert read_folder(path).num_classes == 1
    monkeypatch.setattr(tables, "_FREE_BYTES", 20_000_000)
    refuses(path, "contents are far too large for its size")


@contextmanager
def counted() -> Iterator[pa.MemoryPool]:
    """A memory pool for pyarrow to use in the block, to ask for its peak."""
    before, fresh = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(fresh)
    try:
        yield fresh
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("kind", ["numbers", "lists", "bytes"])
def test_what_unpacks_to_far_too_much_is_given_up_before_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """40 MB in a few kB, of which 1 MB is allowed."""
    rows, zeros = 50_000, pa.array(np.zeros(50_000 * 100))
    columns: dict[str, dict[str, Any]] = {
        "numbers": {f"f{number}": zeros[:rows] for number in range(100)},
        "lists": {"features": pa.FixedSizeListArray.from_arrays(zeros, 100)},
        "bytes": {"f": pa.array([b"x" * 800] * rows)},
    }
    path = parquet(tmp_path, id=np.zeros(rows, dtype=np.int8), **columns[kind])
    monkeypatch.setattr(tables, "_FREE_BYTES", 2**20)
    monkeypatch.setattr(tables, "_EXPANSION", 1)
    monkeypatch.setattr(tables, "_BATCH_VALUES", 2**16)
    monkeypatch.setattr(tables, "_VALUES_OF_A_LIST", 2**10)
    with counted() as pool:
        refuses(path, "contents are far too large for its size")
    assert pool.max_memory() < 8 * 2**20


def test_columns_of_all_kinds_are_read_together_in_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in groups, but in the order of the file and with every row where it was."""
    monkeypatch.setattr(tables, "_BATCH_VALUES", 2**6)
    monkeypatch.setattr(tables, "_VALUES_OF_A_LIST", 2**4)
    whole = pa.table(
        {
            "x.y": np.arange(100),
            "id": [f"n{number}" for number in range(100)],
            "x": [[float(number)] * (number % 3) for number in range(100)],
            "when": pa.array(np.arange(100).astype("datetime64[s]")),
            "label": pa.array(["a", None] * 50).dictionary_encode(),
            "empty": pa.nulls(100),
        }
    )
    pq.write_table(whole, tmp_path / "nodes.parquet", row_group_size=33)
    read = tables.read_table(tmp_path / "nodes.parquet", ["id", "label"], ignore=())
    assert read.column_names == whole.column_names
    assert read.to_pydict() == whole.to_pydict()


def test_too_many_rows_or_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / "a", id=[1, 2], f=[0, 1])
    folder(tmp_path / "b")
    monkeypatch.setattr(tables, "MAX_ROWS", 1)
    refuses(tmp_path / "a", "2 rows, at most 1 are allowed")
    monkeypatch.setattr(tables, "MAX_COLUMNS", 1)
    refuses(tmp_path / "b", "5 columns, at most 1 are allowed")


# Partitions


def partition(path: Path, **changes: Any) -> Path:
    """A written partition, with changes to its record."""
    graph = Graph(np.ones((4, 2)), [[0, 1, 2], [1, 2, 3]], [0, 1, 0, 1])
    write_partition(split(graph, how="column", column=[0, 0, 1, 1]), path, "csv")
    record = json.loads((path / "partition.json").read_text())
    (path / "partition.json").write_text(json.dumps({**record, **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "shopping list"}, "is not the record of a partition"),
        ({"version": 2}, "version 2, this fedmend reads version 1"),
        ({"silos": ["0", "../../etc"]}, r"silo \.\./\.\./etc: the name cannot be"),
        ({"silos": ["0", "/etc"]}, "silo /etc: the name cannot be"),
        ({"silos": []}, "have to be lists of names"),
        ({"silos": "01"}, "have to be lists of names"),
        ({"silos": ["0", 1]}, "have to be lists of names"),
        ({"silos": ["0", "7"]}, "7 is not a folder"),
        ({"label_names": None}, "have to be lists of names"),
        ({"label_names": ["0"]}, "label 1 is not one of the classes 0"),
        ({"how": 3}, "how has to be a text"),
        ({"seed": "zero"}, "seed a whole number"),
        ({"seed": True}, "seed a whole number"),
    ],
)
def test_a_bad_record(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        read_silos(partition(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff"])
def test_a_record_that_is_no_record(tmp_path: Path, text: str) -> None:
    partition(tmp_path)
    (tmp_path / "partition.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"partition\.json"):
        read_silos(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("src,dst\n1,2", "no column 'src_silo'"),
        ("src_silo,src,dst_silo,dst\n0,1,1,2\n0,9,1,2", "row 2: there is no node 9 in a silo 0"),
        ("src_silo,src,dst_silo,dst\n0,2,1,2", "row 1: there is no node 2 in a silo 0"),
        ("src_silo,src,dst_silo,dst\n0,1,5,2", "row 1: there is no node 2 in a silo 5"),
        ("src_silo,src,dst_silo,dst\n0,1,,2", "row 1: there is no node 2 in a silo None"),
        ("src_silo,src,dst_silo,dst\n0,1,0,0", "row 1: both ends are in the same silo"),
    ],
)
def test_bad_cross_edges(tmp_path: Path, rows: str, message: str) -> None:
    partition(tmp_path)
    (tmp_path / "evaluation" / "cross_edges.csv").write_text(rows + "\n")
    with pytest.raises(FileFormatError, match=message):
        read_silos(tmp_path)


def test_silos_that_share_a_node_have_no_whole_graph(tmp_path: Path) -> None:
    folder(tmp_path / "a")
    folder(tmp_path / "b")
    assert read_silos(tmp_path).whole is None
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "cross_edges.csv").write_text("src_silo,src,dst_silo,dst\n")
    with pytest.raises(GraphError, match="silos a and b both have a node 1"):
        read_silos(tmp_path)


def test_parents_and_lists_without_silos(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is not a folder"):
        read_silos(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match="has no silo folders in it"):
        read_silos(tmp_path)
    with pytest.raises(SettingsError, match="no silo folders given"):
        read_silos([])
    one, other = folder(tmp_path / "x" / "same"), folder(tmp_path / "y" / "same")
    with pytest.raises(SettingsError, match="have the same name, which is the silo's"):
        read_silos([one, other])
    (tmp_path / "x" / "empty").mkdir()
    with pytest.raises(FileFormatError, match="empty has neither nodes"):
        read_silos(tmp_path / "x")


# Damage of every kind


@settings(max_examples=60, deadline=None)
@given(data=st.data(), format=st.sampled_from(["parquet", "csv"]), sparse=st.booleans())
def test_damaged_files_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, format: Any, sparse: bool
) -> None:
    x = np.eye(6, dtype=np.float32)
    graph = Graph(x, [[0, 1], [1, 2]], [0, 1, 0, 1, 0, 1], train_mask=np.arange(6) < 2)
    if sparse:
        graph = Graph(graph.x.to_sparse_csr(), graph.edges, graph.y)
    path = write_folder(graph, tmp_path_factory.mktemp("silo"), format)
    file = path / f"{data.draw(st.sampled_from(['nodes', 'edges']))}.{format}"
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_folder(path)
    except FedmendError as error:
        assert "\n" not in str(error)  # noqa: PT017 - reading it is as good


@settings(max_examples=50, deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(["nodes.csv", "nodes.parquet"]))
def test_noise_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = tmp_path_factory.mktemp("silo")
    (path / name).write_bytes(content)
    (path / "edges.csv").write_text("src,dst\n")
    with pytest.raises(DataError):
        read_folder(path)
