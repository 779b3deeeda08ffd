"""One silo's own graph as a folder: reading, checking, writing.

`fedmend.data.folders` describes what stands in such a folder.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmend.data.border import Border, pseudonyms
from fedmend.data.node_features import (
    OTHER_COLUMNS,
    Format,
    at_node,
    feature_columns,
    metadata,
    names_in,
    read_features,
)
from fedmend.data.tables import (
    as_ids,
    as_text,
    find_table,
    first_false,
    inside,
    places,
    read_table,
    show,
    to_numpy,
    write_table,
)
from fedmend.errors import DataError, FileFormatError, SettingsError
from fedmend.files import make_folder, storage_errors
from fedmend.graph import UNKNOWN_LABEL, Graph, is_sparse

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

PARTITION_FILE = "partition.json"
ROLES = ("train", "val", "test")
STAGING = ".fedmend-"


# Reading one folder


@dataclass(frozen=True, eq=False)
class Folder:
    """What stands in a folder, before label texts become numbers."""

    path: Path
    nodes_file: Path
    ids: pa.ChunkedArray
    labels: pa.ChunkedArray | None
    roles: NDArray[np.int64] | None
    """Index into ROLES, -1 for none."""
    x: Any
    """Features: a dense array or a scipy CSR matrix."""
    edges: NDArray[np.int64]
    """As in the file, with self-loops and repetitions."""
    label_names: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None

    def at(self, row: int) -> str:
        return at_node(self.nodes_file, self.ids, row)

    def graph(self, label_names: Sequence[str] | None) -> Graph:
        """The graph, with the classes in this order."""
        if label_names is None:
            label_names = self.label_names or sort_names(self.label_texts())
        labels = np.full(len(self.ids), UNKNOWN_LABEL, dtype=np.int64)
        if self.labels is not None:
            labels = places(self.labels, strings(label_names))
            unknown = (labels < 0) & np.asarray(self.labels.is_valid())
            if unknown.any():
                row = int(np.argmax(unknown))
                raise FileFormatError(
                    f"{self.at(row)}: label {show(self.labels[row])} is not one of the classes "
                    f"{show(', '.join(label_names))}"
                )
        roles = np.full(len(self.ids), -1) if self.roles is None else self.roles
        bare = (roles >= 0) & (labels < 0)
        if bare.any():
            row = int(np.argmax(bare))
            raise FileFormatError(
                f"{self.at(row)}: a {ROLES[roles[row]]} node needs a label, and it has none"
            )
        train, val, test = (roles == role for role in range(len(ROLES)))
        return Graph(
            self.x,
            self.edges,
            labels,
            train_mask=train,
            val_mask=val,
            test_mask=test,
            node_ids=to_numpy(self.ids),
            label_names=label_names,
            feature_names=self.feature_names,
        )

    def label_texts(self) -> set[str]:
        """The labels that occur."""
        if self.labels is None:
            return set()
        return {text for text in self.labels.unique().to_pylist() if text is not None}


def strings(texts: Iterable[str]) -> pa.ChunkedArray:
    """Texts as an Arrow column."""
    import pyarrow as pa

    return pa.chunked_array([pa.array(list(texts), type=pa.string())])


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in order: by value if all are whole numbers, else by the alphabet."""
    found = set(names)
    if all(re.fullmatch(r"-?\d+", name) for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def read(folder: Path | str, ignore: Collection[str] = (), root: Path | None = None) -> Folder:
    """Read and check the tables of a folder; no link may lead out of `root`, or of the folder."""
    path = Path(folder)
    if not path.is_dir():
        raise FileFormatError(f"{path} is not a folder; expected one with nodes and edges tables")
    inside(path, root or path)
    nodes_file = find_table(path, "nodes", root=root)
    edges_file = find_table(path, "edges", root=root)
    if nodes_file is None:
        hint = ""
        if (path / PARTITION_FILE).exists():
            hint = "; this is a partition, its silos' folders are inside it"
        raise FileFormatError(f"{path} has neither nodes.parquet nor nodes.csv{hint}")
    if edges_file is None:
        raise FileFormatError(
            f"{path} has neither edges.parquet nor edges.csv; "
            "a graph without edges needs the table too, with columns src and dst and no rows"
        )
    table = read_table(nodes_file, OTHER_COLUMNS, need=["id"], ignore=ignore)
    if table.num_rows == 0:
        raise FileFormatError(f"{nodes_file} has no rows; a graph needs at least one node")
    ids = as_ids(nodes_file, table, "id")
    first = places(ids, ids)
    row = first_false(first == np.arange(len(first)))
    if row is not None:
        raise FileFormatError(
            f"{nodes_file}: rows {first[row] + 1} and {row + 1} have the same id {show(ids[row])}"
        )
    x, feature_names = read_features(nodes_file, table, ids)
    return Folder(
        path=path,
        nodes_file=nodes_file,
        ids=ids,
        labels=as_text(nodes_file, table, "label") if "label" in table.column_names else None,
        roles=_read_roles(nodes_file, table, ids) if "split" in table.column_names else None,
        x=x,
        edges=_read_edges(edges_file, nodes_file, ids),
        label_names=names_in(nodes_file, table, "label_names"),
        feature_names=feature_names,
    )


def _read_roles(path: Path, table: pa.Table, ids: pa.ChunkedArray) -> NDArray[np.int64]:
    texts = as_text(path, table, "split")
    roles = places(texts, strings(ROLES))
    row = first_false((roles >= 0) | np.asarray(texts.is_null()))
    if row is not None:
        raise FileFormatError(
            f"{at_node(path, ids, row)}: split has {show(texts[row])}, "
            "expected train, val, test or nothing"
        )
    return roles


def _read_edges(path: Path, nodes_file: Path, ids: pa.ChunkedArray) -> NDArray[np.int64]:
    table = read_table(path, ["src", "dst"], need=["src", "dst"])
    ends = []
    for name in ("src", "dst"):
        values = as_ids(path, table, name)
        end = places(values, ids)
        row = first_false(end >= 0)
        if row is not None:
            raise FileFormatError(
                f"{path}: row {row + 1}: {name} {show(values[row])} is no id in {nodes_file.name}"
            )
        ends.append(end)
    return np.stack(ends)


def read_border(
    folder: Folder, name: str, names: Sequence[str], root: Path | None
) -> Border | None:
    """The table `border` of a silo's folder: its edges to nodes of the silos called `names`."""
    return _read_border(folder.path, folder.nodes_file, folder.ids, name, names, root)


def read_own_border(path: Path | str, name: str, names: Sequence[str]) -> Border | None:
    """The same, for a silo that has no other's folder: `read_folder` gives its graph."""
    folder = Path(path)
    nodes_file = _nodes_file(folder)
    ids = as_ids(nodes_file, read_table(nodes_file, ["id"], need=["id"]), "id")
    return _read_border(folder, nodes_file, ids, name, names, None)


def _read_border(
    folder: Path,
    nodes_file: Path,
    ids: pa.ChunkedArray,
    name: str,
    names: Sequence[str],
    root: Path | None,
) -> Border | None:
    path = find_table(folder, "border", root=root)
    if path is None:
        return None
    columns = ["src", "remote_silo", "remote_id"]
    table = read_table(path, columns, need=columns)
    sources = as_ids(path, table, "src")
    rows = places(sources, ids)
    row = first_false(rows >= 0)
    if row is not None:
        raise FileFormatError(
            f"{path}: row {row + 1}: src {show(sources[row])} is no id in {nodes_file.name}"
        )
    texts = as_text(path, table, "remote_silo")
    silos = places(texts, strings(names))
    row = first_false((silos >= 0) & (silos != list(names).index(name)))
    if row is not None:
        raise FileFormatError(
            f"{path}: row {row + 1}: remote_silo {show(texts[row])} is not one of the other silos"
        )
    remote_ids = np.asarray(to_numpy(as_ids(path, table, "remote_id"))).astype(str)
    remote = np.zeros(len(rows), dtype=np.int64)
    for number, other in enumerate(names):
        there = silos == number
        known, inverse = np.unique(remote_ids[there], return_inverse=True)
        remote[there] = pseudonyms(other, known)[inverse]
    pairs = np.unique(np.stack([rows, silos, remote]), axis=1)
    return Border(pseudonyms(name, to_numpy(ids)), tuple(names), *pairs)


def read_folder(
    path: Path | str,
    *,
    label_names: Sequence[str] | None = None,
    columns_to_ignore: Collection[str] = (),
) -> Graph:
    """The graph in a silo's folder.

    Args:
        path: the folder; the module's text says what it holds.
        label_names: the classes in order; else those recorded in the file, else those that occur,
            sorted.
        columns_to_ignore: columns of `nodes` that are no features, an ownership column for one.
    """
    return read(path, columns_to_ignore).graph(label_names)


def read_column(path: Path | str, name: str) -> NDArray[Any]:
    """One column of a folder's `nodes` as text, "" where empty: an ownership column, say."""
    file = _nodes_file(Path(path))
    table = read_table(file, [name], need=[name])
    return np.asarray(as_text(file, table, name).fill_null("")).astype(str)


def _nodes_file(folder: Path) -> Path:
    file = find_table(folder, "nodes")
    if file is None:
        raise FileFormatError(f"{folder} has neither nodes.parquet nor nodes.csv")
    return file


# Checking one folder


@dataclass(frozen=True)
class Degrees:
    """How the numbers of neighbours are distributed."""

    least: int
    lower_quartile: float
    median: float
    upper_quartile: float
    most: int
    mean: float


@dataclass(frozen=True)
class FolderReport:
    """What a silo's folder holds, and what it lacks."""

    path: str
    nodes: int
    edges: int
    features: int
    sparse: bool
    classes: dict[str, int]
    """Nodes of each class."""
    unlabelled: int
    roles: dict[str, int]
    """Nodes with the roles train, val, test and none."""
    isolated: int
    degrees: Degrees
    self_loops: int
    """Rows of `edges` left out because both ends are the same node."""
    duplicate_edges: int
    """Rows of `edges` left out because an earlier row, in either direction, is the same edge."""
    missing: tuple[str, ...]
    """What the folder lacks, in words; empty if it is ready for training."""

    def lines(self) -> list[str]:
        """The report as text."""
        degrees = self.degrees
        kind = "sparse" if self.sparse else "dense"
        classes = ", ".join(f"{name} {count}" for name, count in self.classes.items())
        lines = [
            f"{self.nodes} nodes, {self.edges} edges, {self.features} {kind} features",
            f"classes: {len(self.classes)}" + (f" ({classes})" if classes else ""),
            f"without a label: {self.unlabelled}",
            "split: " + ", ".join(f"{role} {count}" for role, count in self.roles.items()),
            f"isolated nodes: {self.isolated}",
            f"degree: least {degrees.least}, quartiles {degrees.lower_quartile:g} "
            f"{degrees.median:g} {degrees.upper_quartile:g}, most {degrees.most}, "
            f"mean {degrees.mean:.2f}",
            f"left out: {self.self_loops} self-loops, {self.duplicate_edges} repeated edges",
        ]
        return lines + [f"missing: {what}" for what in self.missing]


def check_folder(path: Path | str, *, columns_to_ignore: Collection[str] = ()) -> FolderReport:
    """Read a silo's folder, with an error where it breaks a rule, and sum up what it holds."""
    folder = read(path, columns_to_ignore)
    graph = folder.graph(None)
    degree = graph.degree.numpy()
    labels = graph.y[graph.y != UNKNOWN_LABEL]
    counts = torch.bincount(labels, minlength=graph.num_classes).tolist()
    roles = {
        "train": int(graph.train_mask.sum()),
        "val": int(graph.val_mask.sum()),
        "test": int(graph.test_mask.sum()),
    }
    self_loops = int((folder.edges[0] == folder.edges[1]).sum())
    least, lower, median, upper, most = np.quantile(degree, [0, 0.25, 0.5, 0.75, 1]).tolist()
    missing = []
    if folder.labels is None:
        missing.append("the column label (no node has a class)")
    elif not len(labels):
        missing.append("labels (the column label is empty)")
    if folder.roles is None:
        missing.append("the column split (which nodes are for training)")
    elif not roles["train"]:
        missing.append("training nodes (no row has the split train)")
    elif not roles["val"]:
        missing.append("validation nodes (no row has the split val)")
    if not graph.num_edges:
        missing.append("edges")
    return FolderReport(
        path=str(path),
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        sparse=is_sparse(graph.x),
        classes=dict(zip(graph.label_names, counts, strict=True)),
        unlabelled=graph.num_nodes - len(labels),
        roles={**roles, "none": graph.num_nodes - sum(roles.values())},
        isolated=int((degree == 0).sum()),
        degrees=Degrees(int(least), lower, median, upper, int(most), float(degree.mean())),
        self_loops=self_loops,
        duplicate_edges=folder.edges.shape[1] - self_loops - graph.num_edges,
        missing=tuple(missing),
    )


# Writing


def write_graph(graph: Graph, folder: Path, format: Format) -> None:
    """Write the tables of a graph into a folder that exists."""
    import pyarrow as pa

    if graph.num_features == 0:
        raise DataError("a graph without features cannot be written")
    if "" in graph.label_names or (graph.node_ids.dtype.kind == "U" and "" in graph.node_ids):
        raise DataError("an empty text cannot be the name of a class or the id of a node")
    roles = np.full(graph.num_nodes, -1)
    for role, mask in enumerate((graph.train_mask, graph.val_mask, graph.test_mask)):
        roles[mask.numpy()] = role
    columns = {
        "id": pa.array(graph.node_ids),
        "label": _coded(graph.y.numpy(), graph.label_names),
        "split": _coded(roles, ROLES),
        **feature_columns(graph, format),
    }
    nodes = pa.table(columns).replace_schema_metadata(metadata(graph))
    write_table(folder / f"nodes.{format}", nodes)
    source, target = graph.edges.numpy()
    edges = pa.table({"src": graph.node_ids[source], "dst": graph.node_ids[target]})
    write_table(folder / f"edges.{format}", edges)


def _coded(codes: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """One text per code, null for -1."""
    import pyarrow as pa

    indices = pa.array(codes, type=pa.int64(), mask=codes < 0)
    return pa.array(list(names), type=pa.string()).take(indices)


def check_format(format: str) -> None:
    if format not in ("parquet", "csv"):
        raise SettingsError(f"format: expected parquet or csv, got {format!r}")


def foreign_file(folder: Path, stems: Collection[str]) -> Path | None:
    """Something in a folder that is no table of these names and nothing left by a crash."""
    for entry in sorted(folder.iterdir()):
        table = entry.stem in stems and entry.suffix in (".parquet", ".csv")
        if not (table and entry.is_file()) and not entry.name.startswith(STAGING):
            return entry
    return None


def foreign_in_silo(folder: Path) -> Path | None:
    """Something in a silo's folder that fedmend did not write."""
    return foreign_file(folder, ("nodes", "edges", "border"))


@contextmanager
def replacing_folder(
    folder: Path, foreign: Callable[[Path], Path | None], last: str
) -> Iterator[Path]:
    """Give an empty folder to write into; if the block succeeds, its entries become `folder`'s.

    They stand inside `folder` all the time, which may be a mounted disk, under a name that readers
    pass over. The entry called `last` is moved last: a folder that has it is complete. An exception
    leaves all of the old entries or all of the new.
    """
    if folder.exists():
        if not folder.is_dir():
            raise SettingsError(f"{folder} is a file; choose another folder to write to")
        with storage_errors(folder):
            other = foreign(folder)
        if other is not None:
            raise SettingsError(
                f"{folder} is in use: {other.name} was not written by fedmend; "
                "choose an empty or new folder, or remove it first"
            )
    existed = folder.exists()
    make_folder(folder)
    with storage_errors(folder):
        staging = Path(tempfile.mkdtemp(dir=folder, prefix=STAGING))
        try:
            yield staging
            _exchange(folder, staging, last)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if not existed and not any(folder.iterdir()):
                folder.rmdir()


def _exchange(folder: Path, staging: Path, last: str) -> None:
    """Put the entries of `staging` in the place of `folder`'s, all of them or none."""
    old = Path(tempfile.mkdtemp(dir=folder, prefix=STAGING))
    moves: list[tuple[Path, Path]] = []

    def move(entry: Path, to: Path) -> None:
        moves.append((entry, to / entry.name))  # first, or an interrupt could leave it unrecorded
        entry.rename(to / entry.name)

    try:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name != last):
            if not entry.name.startswith(STAGING):
                move(entry, old)
        for entry in sorted(staging.iterdir(), key=lambda entry: entry.name == last):
            move(entry, folder)
    except BaseException:
        for before, after in reversed(moves):
            with suppress(FileNotFoundError):  # the last one may not have been moved yet
                after.rename(before)
        old.rmdir()
        raise
    for entry in folder.glob(f"{STAGING}*"):  # what crashes left goes too
        shutil.rmtree(entry, ignore_errors=True)


def write_folder(graph: Graph, path: Path | str, format: Format = "parquet") -> Path:
    """Write a graph as a silo's folder, completely or not at all.

    Parquet gives back the same graph. CSV has features as dense columns and does not keep the order
    of classes; whole numbers that were texts come back as numbers.
    """
    check_format(format)
    folder = Path(path)
    with replacing_folder(folder, foreign_in_silo, f"nodes.{format}") as staging:
        write_graph(graph, staging, format)
    return folder
