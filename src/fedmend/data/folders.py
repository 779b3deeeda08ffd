"""A silo's own graph as a folder of tables, and a whole partition as a folder of such folders.

A silo's folder has two tables, each as Parquet or as CSV:

- `nodes`: `id` (whole numbers or text, all different); optionally `label` (whole numbers or text,
  empty = unknown) and `split` (train, val, test or empty); and the features, in one of three ways:
  every other column is a feature (numbers); or one list column `features` or `x`, the same number
  of values in every row (in CSV: numbers with spaces, commas or semicolons between them); or, in
  Parquet, two list columns `feature_index` and `feature_value` with the features that are not
  zero, and their whole number as `feature_count` in the schema's metadata. `label_names` and
  `feature_names` in the metadata, JSON lists, give classes and features their order and names.
- `edges`: `src` and `dst`, ids of `nodes`; each edge in one direction or both. Others are ignored.

`write_partition` adds to each silo's folder a table `border` with that silo's own cut edges:
`src` (its own node), `remote_silo`, `remote_id`. Beside the silos' folders stand `partition.json`
and `evaluation/cross_edges` with all cut edges (`src_silo`, `src`, `dst_silo`, `dst`), which is for
evaluation only: no silo gets it.

Sizes are bounded (see `fedmend.data.tables`); text is at most 1000 characters long.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from fedmend.data.border import Border, check_borders
from fedmend.data.node_features import Format
from fedmend.data.partition import Partition, check_disjoint
from fedmend.data.silo_folder import (
    PARTITION_FILE,
    STAGING,
    Degrees,
    Folder,
    FolderReport,
    check_folder,
    check_format,
    foreign_file,
    foreign_in_silo,
    read,
    read_border,
    read_column,
    read_folder,
    read_own_border,
    replacing_folder,
    sort_names,
    strings,
    write_folder,
    write_graph,
)
from fedmend.data.tables import (
    as_ids,
    as_text,
    find_table,
    first_false,
    inside,
    places,
    read_table,
    reading,
    show,
    write_table,
)
from fedmend.errors import DataError, FileFormatError, SettingsError
from fedmend.files import make_folder, read_json, write_json
from fedmend.graph import Graph, is_sparse, scipy_csr

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = [
    "Degrees",
    "FolderReport",
    "check_folder",
    "read_column",
    "read_folder",
    "read_own_border",
    "read_silos",
    "silo_folders",
    "write_folder",
    "write_partition",
    "write_silo",
]

EVALUATION = "evaluation"
_KIND = "fedmend partition"
_NOT_RECORDED = "folders"  # how silos were cut that came without a partition.json
_FOLDER_NAME = re.compile(r'[^./\\:*?"<>|\x00-\x1f][^/\\:*?"<>|\x00-\x1f]{0,119}')


def _write_cross_edges(partition: Partition, out: Path, format: Format) -> None:
    """All cut edges, for evaluation."""
    import pyarrow as pa

    if partition.whole is None or partition.assignment is None:
        return
    ids = partition.whole.node_ids
    names = pa.array(list(partition.names), type=pa.string())
    source, target = partition.cross_edges
    source_silo, target_silo = partition.assignment[source], partition.assignment[target]
    table = pa.table(
        {
            "src_silo": names.take(pa.array(source_silo)),
            "src": ids[source],
            "dst_silo": names.take(pa.array(target_silo)),
            "dst": ids[target],
        }
    )
    make_folder(out / EVALUATION)
    write_table(out / EVALUATION / f"cross_edges.{format}", table)


def _border_tables(partition: Partition, names: Iterable[str]) -> Iterator[tuple[str, pa.Table]]:
    """These silos' own cut edges, where they are known."""
    import pyarrow as pa

    if partition.whole is None and partition.given_borders is None:
        return
    borders = partition.borders
    # A border has pseudonyms; the ids behind them are known here, where all silos are.
    pseudonyms = np.concatenate([border.nodes for border in borders.values()])
    ids = np.concatenate([partition.silos[name].node_ids for name in borders])
    order = np.argsort(pseudonyms)
    for name in names:
        border = borders[name]
        remote = order[np.searchsorted(pseudonyms, border.remote, sorter=order)]
        sort = np.lexsort((remote, border.rows))
        texts = pa.array(list(border.names), type=pa.string())
        columns = {
            "src": partition.silos[name].node_ids[border.rows[sort]],
            "remote_silo": texts.take(pa.array(border.silos[sort])),
            "remote_id": ids[remote[sort]],
        }
        yield name, pa.table(columns)


def _check_silo_name(name: str) -> None:
    if not _FOLDER_NAME.fullmatch(name) or name.casefold() in (EVALUATION, PARTITION_FILE):
        raise DataError(f"silo {show(name)}: the name cannot be that of a folder; rename the silo")


def write_partition(partition: Partition, out: Path | str, format: Format = "parquet") -> Path:
    """Write a folder per silo, each with its border, and what evaluation needs apart from them.

    A folder that already holds a partition is replaced; any other that is not empty is refused.
    """
    check_format(format)
    folder = Path(out)
    for name in partition.names:
        _check_silo_name(name)
    if len({name.casefold() for name in partition.names}) != len(partition.names):
        raise DataError("two silos' names differ in capitals only; rename one")
    one = next(iter(partition.silos.values()))
    with replacing_folder(folder, _foreign_in_partition, PARTITION_FILE) as staging:
        for name, graph in partition.silos.items():
            make_folder(staging / name)
            write_graph(graph, staging / name, format)
        for name, table in _border_tables(partition, partition.names):
            write_table(staging / name / f"border.{format}", table)
        _write_cross_edges(partition, staging, format)
        record = {
            "kind": _KIND,
            "version": 1,
            "how": partition.how,
            "seed": partition.seed,
            "silos": list(partition.names),
            "hash": partition.hash,
            "features": one.num_features,
            "label_names": list(one.label_names),
            "statistics": dataclasses.asdict(partition.statistics()),
        }
        write_json(staging / PARTITION_FILE, record)
    return folder


def write_silo(
    partition: Partition, name: str, path: Path | str, format: Format = "parquet"
) -> Path:
    """Write one silo's folder as it stands in a partition's: its graph, and its own border."""
    check_format(format)
    folder = Path(path)
    with replacing_folder(folder, foreign_in_silo, f"nodes.{format}") as staging:
        write_graph(partition.silos[name], staging, format)
        for _, table in _border_tables(partition, [name]):
            write_table(staging / f"border.{format}", table)
    return folder


def _foreign_in_partition(folder: Path) -> Path | None:
    """Something in a partition's folder that fedmend did not write."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(STAGING))
    if not entries:
        return None
    record = folder / PARTITION_FILE
    if record not in entries:
        return entries[0]
    try:
        names = _read_record(record).silos
    except FileFormatError:
        return record
    for entry in entries:
        if entry.is_symlink():
            return entry
        if entry.name in names and entry.is_dir():
            foreign = foreign_in_silo(entry)
            if foreign is not None:
                return foreign
        elif entry.name == EVALUATION and entry.is_dir():
            foreign = foreign_file(entry, ("cross_edges",))
            if foreign is not None:
                return foreign
        elif entry != record:
            return entry
    return None


# Reading a partition


@dataclass(frozen=True)
class _Record:
    """The part of partition.json that is read back."""

    how: str
    seed: int | None
    silos: tuple[str, ...]
    label_names: tuple[str, ...]


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)


def _read_record(path: Path) -> _Record:
    value = read_json(inside(path, path.parent))
    if not isinstance(value, dict) or value.get("kind") != _KIND:
        raise FileFormatError(f"{path} is not the record of a partition")
    if value.get("version") != 1:
        raise FileFormatError(
            f"{path}: version {show(value.get('version'))}, this fedmend reads version 1"
        )
    how, seed = value.get("how"), value.get("seed")
    silos: Any = value.get("silos")
    labels: Any = value.get("label_names")
    if not (isinstance(how, str) and (seed is None or type(seed) is int)):
        raise FileFormatError(f"{path}: how has to be a text, and seed a whole number or null")
    if not (_is_names(silos) and _is_names(labels)) or not silos:
        raise FileFormatError(f"{path}: silos and label_names have to be lists of names")
    for name in silos:
        try:
            _check_silo_name(name)
        except DataError as error:
            raise FileFormatError(f"{path}: {error}") from error
    return _Record(how, seed, tuple(silos), tuple(labels))


def silo_folders(source: Path | str | Iterable[Path | str]) -> dict[str, Path]:
    """The silos' folders by name: those in a parent folder, or those given."""
    if isinstance(source, str | Path):
        parent = Path(source)
        if not parent.is_dir():
            raise FileFormatError(f"{parent} is not a folder; expected one with a folder per silo")
        if (parent / PARTITION_FILE).exists():
            names = _read_record(parent / PARTITION_FILE).silos
            return {name: inside(parent / name, parent) for name in names}
        with reading(parent):
            entries = sorted(entry for entry in parent.iterdir() if entry.is_dir())
        folders = [
            inside(entry, parent)
            for entry in entries
            if not entry.name.startswith(".") and entry.name != EVALUATION
        ]
        if not folders:
            raise FileFormatError(f"{parent} has no silo folders in it")
    else:
        folders = [Path(path) for path in source]
        if not folders:
            raise SettingsError("no silo folders given")
    named: dict[str, Path] = {}
    for path in folders:
        name = path.resolve().name
        if name in named:
            raise SettingsError(
                f"{named[name]} and {path} have the same name, which is the silo's; rename one"
            )
        named[name] = path
    return named


def how_cut(parent: Path | str) -> tuple[int, str]:
    """How many silos a folder of silo folders has, and how they were cut, reading no graph."""
    silos = len(silo_folders(parent))
    path = Path(parent) / PARTITION_FILE
    return silos, _read_record(path).how if path.exists() else _NOT_RECORDED


def _agreed_names(folders: Collection[Folder]) -> tuple[str, ...]:
    """The classes of all silos: as recorded if all record the same, else all that occur, sorted."""
    recorded = {folder.label_names for folder in folders}
    if len(recorded) == 1 and (names := recorded.pop()) is not None:
        return names
    found: set[str] = set()
    for folder in folders:
        found.update(folder.label_names or (), folder.label_texts())
    return sort_names(found)


def read_silos(
    source: Path | str | Iterable[Path | str], *, columns_to_ignore: Collection[str] = ()
) -> Partition:
    """The silos in the folders of a parent folder, or in the folders given, named after them.

    Where the parent holds `evaluation/cross_edges`, the whole graph is put together from the silos
    and these edges; its nodes come silo by silo.
    """
    parent = Path(source) if isinstance(source, str | Path) else None
    paths = silo_folders(source)
    folders = _same_ids(
        {name: read(path, columns_to_ignore, root=parent) for name, path in paths.items()}
    )
    record = None
    if parent is not None and (parent / PARTITION_FILE).exists():
        record = _read_record(parent / PARTITION_FILE)
    _check_features(folders)
    label_names = record.label_names if record else _agreed_names(folders.values())
    silos = {name: folder.graph(label_names) for name, folder in folders.items()}
    how, seed = (record.how, record.seed) if record else (_NOT_RECORDED, None)
    cross_file = None
    if parent is not None:
        cross_file = find_table(parent / EVALUATION, "cross_edges", root=parent)
    if cross_file is None:
        return Partition(silos, how, seed, given_borders=_read_borders(folders, parent))
    check_disjoint(silos)
    whole = _join(silos, _read_cross(cross_file, folders))
    sizes = [graph.num_nodes for graph in silos.values()]
    return Partition(silos, how, seed, whole, np.repeat(np.arange(len(sizes)), sizes))


def _read_borders(folders: dict[str, Folder], parent: Path | None) -> dict[str, Border] | None:
    """The silos' borders, if every folder has one; two that contradict each other are an error."""
    names = tuple(folders)
    read = {name: read_border(each, name, names, parent) for name, each in folders.items()}
    borders = {name: border for name, border in read.items() if border is not None}
    if not borders:
        return None
    if len(borders) < len(folders):
        without = next(name for name in folders if name not in borders)
        raise FileFormatError(
            f"{folders[without].path} has no table border, but {next(iter(borders))} has one: "
            "every silo needs its own, if only with no rows"
        )
    check_borders(borders)
    return borders


def _same_ids(folders: dict[str, Folder]) -> dict[str, Folder]:
    """The folders, with all ids as text if some silos have numbers and others texts."""
    import pyarrow as pa

    if len({folder.ids.type for folder in folders.values()}) == 1:
        return folders
    return {
        name: dataclasses.replace(folder, ids=folder.ids.cast(pa.string()))
        for name, folder in folders.items()
    }


def _check_features(folders: dict[str, Folder]) -> None:
    """The check of `Partition`, before memory is spent on graphs; it can name the files."""
    first, one = next(iter(folders.items()))
    for name, folder in folders.items():
        if folder.x.shape[1] != one.x.shape[1]:
            raise FileFormatError(
                f"silo {first} has {one.x.shape[1]} features ({one.nodes_file}) and silo {name} "
                f"has {folder.x.shape[1]} ({folder.nodes_file}); all silos need the same features"
            )


def _read_cross(path: Path, folders: dict[str, Folder]) -> NDArray[np.int64]:
    """The edges between silos as rows of all silos' nodes in one list."""
    import pyarrow as pa

    columns = ["src_silo", "src", "dst_silo", "dst"]
    table = read_table(path, columns, need=columns)
    everyone = pa.chunked_array(
        [chunk for folder in folders.values() for chunk in folder.ids.chunks]
    )
    silo_of = np.repeat(np.arange(len(folders)), [len(folder.ids) for folder in folders.values()])
    ends = []
    for end in ("src", "dst"):
        values, names = as_ids(path, table, end), as_text(path, table, f"{end}_silo")
        rows, silo = places(values, everyone), places(names, strings(folders))
        row = first_false((rows >= 0) & (silo == silo_of[rows]))
        if row is not None:
            raise FileFormatError(
                f"{path}: row {row + 1}: there is no node {show(values[row])} "
                f"in a silo {show(names[row])}"
            )
        ends.append(rows)
    row = first_false(silo_of[ends[0]] != silo_of[ends[1]])
    if row is not None:
        raise FileFormatError(f"{path}: row {row + 1}: both ends are in the same silo")
    return np.stack(ends)


def _join(silos: dict[str, Graph], cross: NDArray[np.int64]) -> Graph:
    """The whole graph: the silos' nodes one after the other, their edges and those between them."""
    graphs = list(silos.values())
    starts = np.cumsum([0] + [graph.num_nodes for graph in graphs[:-1]])
    edges = [graph.edges.numpy() + start for graph, start in zip(graphs, starts, strict=True)]
    x: Any
    if all(is_sparse(graph.x) for graph in graphs):
        x = sp.vstack([scipy_csr(graph.x) for graph in graphs], format="csr")
    else:
        x = torch.cat([graph.x.to_dense() for graph in graphs])
    named = [graph.feature_names for graph in graphs if graph.feature_names is not None]
    return Graph(
        x,
        np.concatenate([*edges, cross], axis=1),
        torch.cat([graph.y for graph in graphs]),
        train_mask=torch.cat([graph.train_mask for graph in graphs]),
        val_mask=torch.cat([graph.val_mask for graph in graphs]),
        test_mask=torch.cat([graph.test_mask for graph in graphs]),
        node_ids=np.concatenate([graph.node_ids for graph in graphs]),
        label_names=graphs[0].label_names,
        feature_names=named[0] if named else None,
    )
