"""The features of a silo's nodes: the three ways a table of nodes can hold them.

Every column that is not something else is a feature; or one list column has them all; or, in
Parquet, two list columns have those that are not zero (`fedmend.data.folders` has the details).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp

from fedmend.data.tables import first_bad, first_false, is_numbers, need_columns, show
from fedmend.errors import DataError, FileFormatError, SettingsError
from fedmend.graph import Graph, is_sparse, scipy_csr

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

Format = Literal["parquet", "csv"]
MAX_FEATURES = 10_000_000
OTHER_COLUMNS = ("id", "label", "split")
_SPARSE_COLUMNS = ("feature_index", "feature_value")
# The cells of a CSV file of nodes; above, Parquet is the only sensible form.
_MAX_CSV_CELLS = 200_000_000


def at_node(path: Path, ids: pa.ChunkedArray, row: int) -> str:
    """Where in a table of nodes something is wrong."""
    return f"{path}: row {row + 1} (id {show(ids[row])})"


def names_in(path: Path, table: pa.Table, key: str) -> tuple[str, ...] | None:
    """A list of names in the schema's metadata."""
    text = (table.schema.metadata or {}).get(key.encode())
    if text is None:
        return None
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(f"{path}: {key} in its metadata is not a JSON list of names")
    return tuple(names)


def read_features(
    path: Path, table: pa.Table, ids: pa.ChunkedArray
) -> tuple[Any, tuple[str, ...] | None]:
    """The features of a table of nodes, a dense array or a scipy CSR matrix, and their names."""
    names = [name for name in table.column_names if name not in OTHER_COLUMNS]
    lists = [name for name in names if name in ("features", "x") and _is_list(table, name)]
    sparse = [name for name in names if name in _SPARSE_COLUMNS]
    if not names:
        raise FileFormatError(
            f"{path} has no features; expected columns of numbers or a list column 'features'"
        )
    chosen = lists[:1] or sparse
    other = [name for name in names if name not in chosen]
    if chosen and other:
        raise FileFormatError(
            f"{path}: features are in the column {chosen[0]}, so what is the column "
            f"{show(other[0])}? Remove it, or name it among the columns to ignore"
        )
    if lists:
        x = _read_list(path, table, lists[0], ids)
    elif sparse:
        need_columns(path, table.column_names, _SPARSE_COLUMNS)
        x = _read_sparse(path, table, ids)
    else:
        x = _read_columns(path, table, names)
    _check_finite(path, ids, x, [] if chosen else names)
    recorded = names_in(path, table, "feature_names")
    if recorded is not None and len(recorded) != x.shape[1]:
        raise FileFormatError(
            f"{path}: {len(recorded)} feature_names in its metadata for {x.shape[1]} features"
        )
    if recorded is None and not chosen and names != _plain_names(len(names)):
        recorded = tuple(names)
    return x, recorded


def _check_finite(path: Path, ids: pa.ChunkedArray, x: Any, names: list[str]) -> None:
    entry = first_false(np.isfinite(x.data if sp.issparse(x) else x.reshape(-1)))
    if entry is None:
        return
    if sp.issparse(x):
        row, column = int(np.searchsorted(x.indptr, np.int64(entry), "right")) - 1, ""
    else:
        row, number = divmod(entry, x.shape[1])
        column = f" in column {show(names[number])}" if names else f" {number}"
    raise FileFormatError(
        f"{at_node(path, ids, row)}: the feature{column} is empty, NaN or infinite, "
        "expected a finite number"
    )


def _plain_names(count: int) -> list[str]:
    """The column names of features that have no names."""
    return [f"x{number}" for number in range(count)]


def _is_list(table: pa.Table, name: str) -> bool:
    import pyarrow as pa

    kind = table.schema.field(name).type
    # In CSV it is text if it is a list.
    return _is_list_type(kind) or pa.types.is_string(kind)


def _is_list_type(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _floats(path: Path, name: str, column: pa.ChunkedArray | pa.Array) -> NDArray[np.float32]:
    """Numbers as float32, NaN where there is none."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise FileFormatError(
            f"{path}: column {show(name)} has type {show(kind)}, expected numbers; "
            "columns that are no features have to be named among those to ignore"
        )
    if column.null_count and not pa.types.is_floating(kind):
        column = column.cast(pa.float64(), safe=False)
    with np.errstate(over="ignore"):  # becomes infinite, and is refused with its row
        return np.asarray(column).astype(np.float32, copy=False)


def _read_columns(path: Path, table: pa.Table, names: list[str]) -> NDArray[np.float32]:
    x = np.empty((table.num_rows, len(names)), dtype=np.float32)
    for number, name in enumerate(names):
        x[:, number] = _floats(path, name, table.column(name))
    return x


def _parse_lists(path: Path, name: str, texts: pa.ChunkedArray, ids: pa.ChunkedArray) -> Any:
    """Lists of numbers from texts like "0.5 1 2" or "[0.5, 1, 2]"."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bare = pc.replace_substring_regex(texts, r"^[\[(\s]+|[\])\s]+$", "")
    lists = pc.split_pattern_regex(bare, r"\s*[,;]\s*|\s+")

    def good(start: int, end: int) -> bool:
        return is_numbers(pc.list_flatten(lists[start:end]))

    if not good(0, len(lists)):
        row = first_bad(len(lists), good)
        raise FileFormatError(
            f"{at_node(path, ids, row)}: column {name} has {show(texts[row])}, "
            "expected numbers with spaces, commas or semicolons between them"
        )
    return lists.cast(pa.list_(pa.float32()))


def _lists(
    path: Path, table: pa.Table, name: str, ids: pa.ChunkedArray
) -> tuple[list[Any], NDArray[np.int64]]:
    """The values of a list column, chunk by chunk, and the length of every row's list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if pa.types.is_string(column.type) and path.suffix == ".csv":
        column = _parse_lists(path, name, column, ids)
    if not _is_list_type(column.type):
        raise FileFormatError(
            f"{path}: column {name} has type {show(column.type)}, expected lists of numbers"
        )
    row = first_false(column.is_valid())
    if row is not None:
        raise FileFormatError(
            f"{at_node(path, ids, row)}: {name} is empty, expected a list of numbers"
        )
    # Chunk by chunk: all values together may be more than one Arrow list can hold.
    values = [pc.list_flatten(chunk) for chunk in column.chunks]
    return values, np.asarray(pc.list_value_length(column)).astype(np.int64)


def _read_list(path: Path, table: pa.Table, name: str, ids: pa.ChunkedArray) -> NDArray[np.float32]:
    values, lengths = _lists(path, table, name, ids)
    row = first_false(lengths == lengths[0])
    if row is not None:
        raise FileFormatError(
            f"{at_node(path, ids, row)}: {name} has {lengths[row]} values, "
            f"expected {lengths[0]} as in row 1"
        )
    if lengths[0] == 0:
        raise FileFormatError(f"{path}: the lists in {name} are empty, expected features")
    flat = np.concatenate([_floats(path, name, chunk) for chunk in values])
    return flat.reshape(len(lengths), int(lengths[0]))


def _read_sparse(path: Path, table: pa.Table, ids: pa.ChunkedArray) -> sp.csr_matrix:
    import pyarrow as pa

    recorded = (table.schema.metadata or {}).get(b"feature_count", b"")
    if not re.fullmatch(rb"[1-9][0-9]{0,9}", recorded) or int(recorded) > MAX_FEATURES:
        raise FileFormatError(
            f"{path}: sparse features need feature_count in the schema's metadata, a number from 1 "
            f"to {MAX_FEATURES}, got {show(recorded.decode(errors='replace'))!r}"
        )
    count = int(recorded)
    index_parts, lengths = _lists(path, table, "feature_index", ids)
    value_parts, value_lengths = _lists(path, table, "feature_value", ids)
    row = first_false(lengths == value_lengths)
    if row is not None:
        raise FileFormatError(
            f"{at_node(path, ids, row)}: {lengths[row]} entries in feature_index and "
            f"{value_lengths[row]} in feature_value, expected as many"
        )
    for part in index_parts:
        if not pa.types.is_integer(part.type):
            raise FileFormatError(
                f"{path}: feature_index has type {show(part.type)}, expected lists of whole numbers"
            )
    index = np.concatenate([np.asarray(part.fill_null(-1)) for part in index_parts])
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    entry = first_false((index >= 0) & (index < count))
    if entry is not None:
        row = int(np.searchsorted(indptr, entry, "right")) - 1
        raise FileFormatError(
            f"{at_node(path, ids, row)}: feature_index has {index[entry]}, "
            f"expected 0 to {count - 1}"
        )
    values = np.concatenate([_floats(path, "feature_value", part) for part in value_parts])
    return sp.csr_matrix((values, index.astype(np.int64), indptr), shape=(len(lengths), count))


def metadata(graph: Graph) -> dict[str, str]:
    metadata = {"label_names": json.dumps(graph.label_names)}
    if graph.feature_names is not None:
        metadata["feature_names"] = json.dumps(graph.feature_names)
    if is_sparse(graph.x):
        metadata["feature_count"] = str(graph.num_features)
    return metadata


def feature_columns(graph: Graph, format: Format) -> dict[str, Any]:
    import pyarrow as pa

    if format == "csv":
        if graph.num_nodes * graph.num_features > _MAX_CSV_CELLS:
            raise SettingsError(
                f"{graph.num_nodes} x {graph.num_features} features are too many for CSV; "
                "use the format parquet"
            )
        names = graph.feature_names or _plain_names(graph.num_features)
        clash = {*OTHER_COLUMNS, *_SPARSE_COLUMNS} & set(names)
        if clash or len(set(names)) != len(names) or not all(name.strip() for name in names):
            raise DataError(
                "feature names have to be different, not blank, and none of id, label and split, "
                "to be the columns of a CSV file; use the format parquet"
            )
        dense = graph.x.to_dense().numpy()
        return {name: pa.array(dense[:, number]) for number, name in enumerate(names)}
    if is_sparse(graph.x):
        matrix = scipy_csr(graph.x)
        offsets = pa.array(matrix.indptr, type=pa.int64())
        index = pa.array(matrix.indices.astype(np.int32))
        return {
            "feature_index": pa.LargeListArray.from_arrays(offsets, index),
            "feature_value": pa.LargeListArray.from_arrays(offsets, pa.array(matrix.data)),
        }
    flat = pa.array(graph.x.contiguous().numpy().reshape(-1))
    return {"features": pa.FixedSizeListArray.from_arrays(flat, graph.num_features)}
