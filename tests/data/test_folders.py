from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data.datasets import load
from fedmend.data.folders import (
    check_folder,
    read_column,
    read_folder,
    read_silos,
    silo_folders,
    write_folder,
    write_partition,
)
from fedmend.data.partition import Partition, split
from fedmend.errors import DataError, FileFormatError, SettingsError, StorageError
from fedmend.graph import Graph, is_sparse

Format = Literal["parquet", "csv"]
FORMATS: list[Format] = ["parquet", "csv"]


def random_graph(nodes: int = 30, seed: int = 0, sparse: bool = False, **options: Any) -> Graph:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((nodes, 5)) * (rng.random((nodes, 5)) < 0.4)).astype(np.float32)
    y = rng.integers(-1, 3, nodes)
    role = np.where(y >= 0, rng.integers(0, 4, nodes), 3)
    return Graph(
        sp.csr_matrix(x) if sparse else x,
        rng.integers(0, nodes, (2, 3 * nodes)),
        y,
        train_mask=role == 0,
        val_mask=role == 1,
        test_mask=role == 2,
        **{"label_names": ["c", "a", "b"], "node_ids": rng.permutation(nodes) * 7 - 50, **options},
    )


def assert_same(one: Graph, other: Graph) -> None:
    assert torch.equal(one.x.to_dense(), other.x.to_dense())
    for field in ("rowptr", "col", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(one, field), getattr(other, field)), field
    assert one.node_ids.dtype.kind == other.node_ids.dtype.kind
    assert one.node_ids.tolist() == other.node_ids.tolist()
    assert one.label_names == other.label_names
    assert one.feature_names == other.feature_names


def write_csv(path: Path, rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line.strip() for line in rows.strip().splitlines()) + "\n")


def folder(path: Path, nodes: str, edges: str = "src,dst") -> Path:
    write_csv(path / "nodes.csv", nodes)
    write_csv(path / "edges.csv", edges)
    return path


# One silo


TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), format=st.sampled_from(FORMATS), sparse=st.booleans())
def test_a_graph_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, format: Format, sparse: bool
) -> None:
    """Ids and class names of any text, features of any finite value."""
    nodes = data.draw(st.integers(1, 8))
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    x = np.array(data.draw(st.lists(numbers, min_size=2 * nodes, max_size=2 * nodes)))
    x = x.reshape(nodes, 2).astype(np.float32)
    # A text of digits comes back from CSV as a number, so here no id is one.
    ids = st.one_of(
        st.lists(TEXT.map(lambda text: f"{text}#"), min_size=nodes, max_size=nodes, unique=True),
        st.lists(st.integers(-(2**62), 2**62), min_size=nodes, max_size=nodes, unique=True),
    )
    names = data.draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
    labels = np.array(
        data.draw(st.lists(st.integers(-1, len(names) - 1), min_size=nodes, max_size=nodes))
    )
    graph = Graph(
        sp.csr_matrix(x) if sparse else x,
        np.array(data.draw(st.lists(st.integers(0, nodes - 1), max_size=20)))
        .repeat(2)
        .reshape(2, -1)
        if data.draw(st.booleans())
        else np.stack([np.arange(nodes - 1), np.arange(1, nodes)]),
        labels,
        val_mask=labels >= 0,
        node_ids=data.draw(ids),
        label_names=names,
    )
    path = tmp_path_factory.mktemp("silo")
    write_folder(graph, path, format)
    back = read_folder(path, label_names=None if format == "parquet" else names)
    assert_same(graph, back)
    assert is_sparse(back.x) == (sparse and format == "parquet")


@pytest.mark.parametrize("format", FORMATS)
def test_feature_names_come_back(tmp_path: Path, format: Format) -> None:
    graph = random_graph(feature_names=["age", "x", "features", "a,b", 'say "hi"'])
    write_folder(graph, tmp_path / "silo", format)
    assert_same(graph, read_folder(tmp_path / "silo", label_names=graph.label_names))


def test_parquet_keeps_sparse_features_sparse_and_small(tmp_path: Path) -> None:
    graph = load("cora")
    write_folder(graph, tmp_path)
    back = read_folder(tmp_path)
    assert_same(graph, back)
    assert is_sparse(back.x)
    assert (tmp_path / "nodes.parquet").stat().st_size < 250_000
    schema = pq.read_schema(tmp_path / "nodes.parquet")
    assert schema.metadata[b"feature_count"] == b"1433"
    assert schema.names == ["id", "label", "split", "feature_index", "feature_value"]


def test_an_own_csv_folder_is_read(tmp_path: Path) -> None:
    graph = read_folder(
        folder(
            tmp_path,
            """id,split,age,label,income
            b7,train,1.5,yes,2
            a1,,0,,-1e-3
            c3,test,3,no,4""",
            """src,dst,since
            b7,a1,monday
            a1,b7,tuesday
            c3,c3,""",
        )
    )
    assert graph.node_ids.tolist() == ["b7", "a1", "c3"]
    assert graph.feature_names == ("age", "income")
    assert torch.equal(graph.x, torch.tensor([[1.5, 2], [0, -1e-3], [3, 4]]))
    assert graph.label_names == ("no", "yes")
    assert graph.y.tolist() == [1, -1, 0]
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.test_mask.tolist() == [False, False, True]
    assert graph.edges.tolist() == [[0], [1]]


@pytest.mark.parametrize(
    "lists", [("1 2.5 -3", "4  5 6"), ('"[1, 2.5, -3]"', '"[4,5,6]"'), ("1;2.5;-3", " 4; 5; 6 ")]
)
@pytest.mark.parametrize("name", ["features", "x"])
def test_a_csv_list_column_holds_the_features(
    tmp_path: Path, lists: tuple[str, str], name: str
) -> None:
    graph = read_folder(folder(tmp_path, f"id,{name}\n1,{lists[0]}\n2,{lists[1]}"))
    assert graph.x.tolist() == [[1, 2.5, -3], [4, 5, 6]]
    assert graph.feature_names is None


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.large_list(pa.int32()), pa.list_(pa.float32(), 2)]
)
@pytest.mark.parametrize("name", ["features", "x"])
def test_a_parquet_list_column_holds_the_features(tmp_path: Path, kind: Any, name: str) -> None:
    table = pa.table({"id": ["u", "v"], name: pa.array([[1, 2], [3, 4]], type=kind)})
    pq.write_table(table, tmp_path / "nodes.parquet")
    write_csv(tmp_path / "edges.csv", "src,dst\nv,u")
    graph = read_folder(tmp_path)
    assert graph.x.tolist() == [[1, 2], [3, 4]]
    assert graph.edges.tolist() == [[0], [1]]


def test_a_parquet_file_of_pandas_habits_is_read(tmp_path: Path) -> None:
    """Whole numbers as floats because some are missing, categories, flags, a kept row index."""
    table = pa.table(
        {
            "id": pa.array([3, 1, 2], type=pa.uint8()),
            "label": pa.array([10.0, float("nan"), 9.0]),
            "split": pa.array(["train", None, "val"]).dictionary_encode(),
            "member": pa.array([True, False, True]),
            "x": pa.array([1, 2, 3], type=pa.int16()),
            "__index_level_0__": [7, 8, 9],
        }
    )
    pq.write_table(table, tmp_path / "nodes.parquet", row_group_size=1)
    pq.write_table(pa.table({"src": ["3"], "dst": ["2"]}), tmp_path / "edges.parquet")
    graph = read_folder(tmp_path)
    assert graph.node_ids.tolist() == [3, 1, 2]
    assert graph.label_names == ("9", "10"), "numbers sort by value"
    assert graph.y.tolist() == [1, -1, 0]
    assert graph.feature_names == ("member", "x")
    assert graph.x.tolist() == [[1, 1], [0, 2], [1, 3]]
    assert graph.edges.tolist() == [[0], [2]]


def test_csv_ids_are_numbers_only_if_nothing_is_lost(tmp_path: Path) -> None:
    assert read_folder(folder(tmp_path / "a", "id,f\n7,1\n-8,1")).node_ids.tolist() == [7, -8]
    assert read_folder(folder(tmp_path / "b", "id,f\n007,1\n8,1")).node_ids.tolist() == ["007", "8"]


def test_columns_can_be_ignored(tmp_path: Path) -> None:
    path = folder(tmp_path, "id,bank,f,title\n1,A,0.5,x\n2,B,1,y")
    with pytest.raises(FileFormatError, match="column bank has A, expected a number"):
        read_folder(path)
    graph = read_folder(path, columns_to_ignore=["bank", "title"])
    assert graph.feature_names == ("f",)
    assert check_folder(path, columns_to_ignore=["bank", "title"]).features == 1
    assert read_column(path, "bank").tolist() == ["A", "B"]
    assert split(graph, how="column", column=read_column(path, "bank")).names == ("A", "B")
    with pytest.raises(FileFormatError, match="no column 'owner'; it has id, bank, f, title"):
        read_column(path, "owner")
    with pytest.raises(FileFormatError, match="neither nodes"):
        read_column(tmp_path / "nowhere", "bank")


def test_label_names_may_be_given(tmp_path: Path) -> None:
    path = folder(tmp_path, "id,label,f\n1,b,0\n2,a,0")
    assert read_folder(path, label_names=["z", "b", "a"]).y.tolist() == [1, 2]
    with pytest.raises(
        FileFormatError, match=r"row 1 \(id 1\): label b is not one of the classes a"
    ):
        read_folder(path, label_names=["a"])


def test_report(tmp_path: Path) -> None:
    report = check_folder(
        folder(
            tmp_path,
            """id,label,split,f
            1,a,train,0
            2,b,val,0
            3,a,,0
            4,,,0
            5,a,test,0""",
            """src,dst
            1,2
            2,1
            1,2
            1,3
            3,3""",
        )
    )
    assert (report.nodes, report.edges, report.features, report.sparse) == (5, 2, 1, False)
    assert report.classes == {"a": 3, "b": 1}
    assert report.unlabelled == 1
    assert report.roles == {"train": 1, "val": 1, "test": 1, "none": 2}
    assert report.isolated == 2
    assert (report.self_loops, report.duplicate_edges) == (1, 2)
    degrees = report.degrees
    assert (degrees.least, degrees.most, degrees.mean) == (0, 2, 0.8)
    assert (degrees.lower_quartile, degrees.median, degrees.upper_quartile) == (0, 1, 1)
    assert report.missing == ()
    assert report.lines()[0] == "5 nodes, 2 edges, 1 dense features"
    assert "classes: 2 (a 3, b 1)" in report.lines()
    assert "degree: least 0, quartiles 0 1 1, most 2, mean 0.80" in report.lines()


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("id,f\n1,0", ["column label", "column split", "edges"]),
        ("id,label,split,f\n1,,,0", ["labels", "training nodes", "edges"]),
        ("id,label,split,f\n1,a,train,0", ["validation nodes", "edges"]),
    ],
)
def test_report_says_what_is_missing(tmp_path: Path, nodes: str, words: list[str]) -> None:
    report = check_folder(folder(tmp_path, nodes))
    assert len(report.missing) == len(words)
    for word, missing in zip(words, report.missing, strict=True):
        assert word in missing
    assert report.lines()[-1] == f"missing: {report.missing[-1]}"


# Partitions


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("ids", ["numbers", "texts"])
def test_a_partition_comes_back_as_it_was(
    tmp_path: Path, format: Format, sparse: bool, ids: str
) -> None:
    options: Any = {} if ids == "numbers" else {"node_ids": [f"n {node}" for node in range(30)]}
    partition = split(random_graph(sparse=sparse, **options), 3, "random", seed=4)
    write_partition(partition, tmp_path / "out", format)
    back = read_silos(tmp_path / "out")
    assert back.hash == partition.hash
    assert (back.names, back.how, back.seed) == (partition.names, "random", 4)
    assert back.statistics() == partition.statistics()
    for name, silo in partition.silos.items():
        assert_same(silo, back.silos[name])
    assert partition.whole is not None
    assert back.whole is not None
    # The whole graph is the same, its nodes come silo by silo.
    order = np.concatenate([partition.rows(name) for name in partition.names])
    assert_same(partition.whole.subgraph(torch.from_numpy(order)), back.whole)


def test_one_silo_is_a_partition_too(tmp_path: Path) -> None:
    partition = split(random_graph(), 1)
    back = read_silos(write_partition(partition, tmp_path))
    assert back.hash == partition.hash
    assert back.statistics().missing_links == 0


@pytest.mark.parametrize("format", FORMATS)
def test_a_border_has_only_the_silos_own_cut_edges(tmp_path: Path, format: Format) -> None:
    partition = split(random_graph(), 3, "random")
    write_partition(partition, tmp_path, format)
    whole, assignment = partition.whole, partition.assignment
    assert whole is not None
    assert assignment is not None

    def rows(path: Path) -> list[tuple[Any, ...]]:
        table = pa.csv.read_csv(path) if format == "csv" else pq.read_table(path)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    cut = set()
    for a, b in zip(*partition.cross_edges.tolist(), strict=True):
        cut |= {(a, b), (b, a)}
    for number, name in enumerate(partition.names):
        expected = {
            (whole.node_ids[a], partition.names[assignment[b]], whole.node_ids[b])
            for a, b in cut
            if assignment[a] == number
        }
        border = rows(tmp_path / name / f"border.{format}")
        assert set(border) == expected
        assert len(border) == len(expected)
    evaluation = rows(tmp_path / "evaluation" / f"cross_edges.{format}")
    assert len(evaluation) == len(cut) // 2
    for source_silo, source, target_silo, target in evaluation:
        assert source in partition.silos[source_silo].node_ids
        assert target in partition.silos[target_silo].node_ids


def test_the_record_says_what_the_partition_is(tmp_path: Path) -> None:
    partition = split(random_graph(), 2, seed=3)
    write_partition(partition, tmp_path)
    record = json.loads((tmp_path / "partition.json").read_text())
    assert (record["how"], record["seed"], record["silos"]) == ("louvain", 3, ["silo-0", "silo-1"])
    assert record["hash"] == partition.hash
    assert (record["features"], record["label_names"]) == (5, ["c", "a", "b"])
    assert record["statistics"]["missing_links"] == partition.cross_edges.shape[1]
    assert record["statistics"]["per_silo"][0]["name"] == "silo-0"


def test_without_the_evaluation_file_the_whole_graph_is_unknown(tmp_path: Path) -> None:
    partition = split(random_graph(), 2)
    write_partition(partition, tmp_path)
    (tmp_path / "evaluation" / "cross_edges.parquet").unlink()
    back = read_silos(tmp_path)
    assert back.whole is None
    assert back.hash == partition.hash
    again = read_silos(write_partition(back, tmp_path / "again"))
    assert again.whole is None
    assert not (tmp_path / "again" / "evaluation").exists()
    for name, border in back.borders.items():  # what the silos know of each other is kept
        assert again.borders[name].remote.tolist() == border.remote.tolist()


def test_given_folders_agree_on_the_recorded_classes(tmp_path: Path) -> None:
    partition = split(random_graph(), 3)
    write_partition(partition, tmp_path)
    back = read_silos([tmp_path / name for name in partition.names])
    assert back.hash == partition.hash
    assert (back.how, back.seed, back.whole) == ("folders", None, None)


def test_own_folders_agree_on_all_classes(tmp_path: Path) -> None:
    """No silo has all classes; numbers sort by value; equal ids of different owners are fine."""
    folder(tmp_path / "north", "id,label,f\n1,10,0\n2,9,0", "src,dst\n1,2")
    folder(tmp_path / "south", "id,label,f\n1,2,0\n2,,0")
    (tmp_path / "notes.txt").write_text("not a silo")
    (tmp_path / ".hidden").mkdir()
    partition = read_silos(tmp_path)
    assert partition.names == ("north", "south")
    assert partition.silos["north"].label_names == ("2", "9", "10")
    assert partition.silos["north"].y.tolist() == [2, 1]
    assert partition.silos["south"].y.tolist() == [0, -1]
    assert partition.whole is None
    assert silo_folders([tmp_path / "south"]) == {"south": tmp_path / "south"}


def test_ids_that_are_numbers_in_one_silo_and_texts_in_another(tmp_path: Path) -> None:
    folder(tmp_path / "a", "id,f\n1,0\n2,0", "src,dst\n1,2")
    folder(tmp_path / "b", "id,f\nx,0\n3,0")
    write_csv(tmp_path / "evaluation" / "cross_edges.csv", "src_silo,src,dst_silo,dst\na,2,b,x")
    partition = read_silos(tmp_path)
    assert partition.whole is not None
    assert partition.whole.node_ids.tolist() == ["1", "2", "x", "3"]
    assert partition.cross_edges.tolist() == [[1], [2]]


def test_silos_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    folder(tmp_path / "a", "id,f,g\n1,0,0")
    folder(tmp_path / "b", "id,f\n1,0")
    with pytest.raises(FileFormatError, match=r"silo a has 2 features .* silo b has 1 \("):
        read_silos(tmp_path)
    folder(tmp_path / "b", "id,g,f\n1,0,0")
    with pytest.raises(DataError, match="silos a and b name their features differently"):
        read_silos(tmp_path)


# Overwriting, and disks that fail


def test_a_partition_is_replaced_but_nothing_else_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_partition(split(random_graph(), 4), out, "csv")
    second = split(random_graph(), 2)
    write_partition(second, out)
    assert read_silos(out).hash == second.hash
    assert sorted(entry.name for entry in out.iterdir()) == [
        "evaluation",
        "partition.json",
        "silo-0",
        "silo-1",
    ]
    for stray in ["notes.txt", "silo-0/notes.txt", "evaluation/mine.csv", "silo-0/own.csv"]:
        (out / stray).write_text("keep me")
        with pytest.raises(SettingsError, match=r"out is in use: .* was not written by fedmend"):
            write_partition(second, out)
        assert (out / stray).read_text() == "keep me"
        assert read_silos(out).hash == second.hash
        (out / stray).unlink()
    write_partition(second, out)


def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    partition = split(random_graph(), 2)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SettingsError, match=r"thesis\.tex was not written by fedmend; choose"):
        write_partition(partition, tmp_path)
    with pytest.raises(SettingsError, match=r"thesis\.tex was not written by fedmend; choose"):
        write_folder(random_graph(), tmp_path)
    (tmp_path / "partition.json").write_text("{}")
    with pytest.raises(SettingsError, match="in use"):
        write_partition(partition, tmp_path)
    with pytest.raises(SettingsError, match="is a file; choose another folder"):
        write_partition(partition, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_silo_folder_is_replaced_also_in_the_other_format(tmp_path: Path) -> None:
    write_folder(random_graph(seed=1), tmp_path, "csv")
    (tmp_path / ".fedmend-left-by-a-crash").mkdir()
    write_folder(random_graph(seed=2), tmp_path)
    assert_same(read_folder(tmp_path), random_graph(seed=2))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["edges.parquet", "nodes.parquet"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    out = tmp_path / "out"
    first = split(random_graph(), 2)
    if existing:
        write_partition(first, out)

    def fail(table: pa.Table, where: Path, **_: Any) -> None:
        if "edges" in where.name:
            raise OSError(28, "No space left on device")
        where.write_bytes(b"x")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", fail)
        with pytest.raises(StorageError, match="the disk is full"):
            write_partition(split(random_graph(), 3), out)
    if existing:
        assert read_silos(out).hash == first.hash
        assert not [entry for entry in out.iterdir() if entry.name.startswith(".")]
    else:
        assert not out.exists()


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_an_interrupt_while_entries_are_moved_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, moved: bool
) -> None:
    """At every single one of the moves, just before it or just after."""
    out, rename = tmp_path / "out", Path.rename
    first, second = split(random_graph(), 2), split(random_graph(), 3)
    if existing:
        write_partition(first, out)
    moves = (4 if existing else 0) + 5  # silos, evaluation and partition.json
    for stop in range(1, moves + 1):
        calls = iter(range(1, 1000))

        def interrupted(path: Path, target: Path, stop: int = stop, calls: Any = calls) -> Path:
            now = next(calls) == stop
            if now and not moved:
                raise KeyboardInterrupt
            done = rename(path, target)
            if now:
                raise KeyboardInterrupt
            return done

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", interrupted)
            with pytest.raises(KeyboardInterrupt):
                write_partition(second, out)
        if existing:
            assert read_silos(out).hash == first.hash
            assert not [entry for entry in out.iterdir() if entry.name.startswith(".")]
        else:
            assert not out.exists()
    write_partition(second, out)
    assert read_silos(out).hash == second.hash
    assert not [entry for entry in out.iterdir() if entry.name.startswith(".")]


def test_a_path_that_cannot_be_a_folder_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        write_folder(random_graph(), tmp_path / "file" / "silo")


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "evaluation", "", "x" * 200, "a\nb"])
def test_names_that_are_no_folders_are_refused(tmp_path: Path, name: str) -> None:
    partition = Partition({name: random_graph()}, "x", None)
    with pytest.raises(DataError, match="cannot be that of a folder"):
        write_partition(partition, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    def check(message: str, graph: Graph, format: Any = "parquet") -> None:
        with pytest.raises((DataError, SettingsError), match=message):
            write_folder(graph, tmp_path / "silo", format)
        assert not (tmp_path / "silo").exists()

    check("expected parquet or csv, got 'xlsx'", random_graph(), "xlsx")
    check("without features", Graph(np.ones((2, 0)), [[0], [1]]))
    check("empty text cannot be", random_graph(label_names=["a", "", "b"]))
    check("none of id, label and split", random_graph(feature_names=[*"abcd", "id"]), "csv")
    wide = Graph(sp.csr_matrix((3, 100_000_000)), [[0], [1]])
    check("too many for CSV; use the format parquet", wide, "csv")
    twice = Partition({"a": random_graph(), "A": random_graph()}, "x", None)
    with pytest.raises(DataError, match="differ in capitals only"):
        write_partition(twice, tmp_path / "out")


def test_csv_is_plain_csv(tmp_path: Path) -> None:
    """Another program reads it: no bookkeeping beside the columns."""
    write_folder(random_graph(), tmp_path, "csv")
    with (tmp_path / "nodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "label", "split", "x0", "x1", "x2", "x3", "x4"]
    assert [int(row["id"]) for row in rows] == random_graph().node_ids.tolist()


def test_importing_loads_no_heavy_package() -> None:
    code = (
        "import sys, fedmend.data.folders, fedmend.data.partition; "
        "print([name for name in ('igraph', 'pyarrow', 'pymetis') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
