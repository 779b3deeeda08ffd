"""Reading CSV and Parquet tables that somebody else wrote: bounded, and with errors that say where.

A table is a file `STEM.parquet` or `STEM.csv` in a folder. What is refused before it is read: a
link that leaves the folder, anything but a plain file, a file above `MAX_BYTES`. A Parquet file is
given up when it unpacks to more than 1 GiB and a thousand times its size, which only a hostile file
does, or to more than `MAX_BYTES`. Rows in error messages count from 1, the header not included.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import FileFormatError
from fedmend.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_BYTES = 16 * 2**30
MAX_ROWS = 2**31 - 1
MAX_COLUMNS = 100_000
MAX_TEXT = 1000
"""Characters of one id, label or other text."""

# A Parquet file may always unpack to so many bytes; above, to so many times its size.
_FREE_BYTES = 2**30
_EXPANSION = 1000
# So many values of a Parquet file are unpacked before they are counted, 128 MiB if they are
# numbers. One without a fixed width, a list say, may be long and is taken for many.
_BATCH_VALUES = 2**24
_BATCH_ROWS = 2**16
_VALUES_OF_A_LIST = 2**16
# A row of a CSV file has to fit into a block.
_BLOCK = 2**24
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def show(value: object) -> str:
    """A value from a file, fit for one line of an error message."""
    text = repr(str(value))[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the file system raises into one line about the path."""
    try:
        yield
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    except RuntimeError as error:  # from resolve(): links that go round in a circle
        raise FileFormatError(f"cannot read {path}: {error}") from error


def inside(path: Path, root: Path) -> Path:
    """`path`, if it does not lead out of the folder `root` by a link."""
    with reading(path):
        if not path.resolve().is_relative_to(root.resolve()):
            raise FileFormatError(f"{path} is a link that leaves {root}: not followed")
    return path


def find_table(folder: Path, stem: str, *, root: Path | None = None) -> Path | None:
    """The file of a table, Parquet or CSV; None if there is none."""
    with reading(folder):
        files = [folder / f"{stem}.{kind}" for kind in ("parquet", "csv")]
        found = [path for path in files if path.exists()]
    if len(found) > 1:
        raise FileFormatError(f"{folder} has both {found[0].name} and {found[1].name}: keep one")
    if not found:
        return None
    path = inside(found[0], root or folder)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FileFormatError(f"{path} is not a plain file")
    if status.st_size > MAX_BYTES:
        raise FileFormatError(f"{path} is larger than {MAX_BYTES // 2**30} GiB, the most allowed")
    return path


@contextmanager
def format_errors(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises into one line about the file."""
    import pyarrow as pa

    try:
        yield
    except FileFormatError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        kind = "Parquet" if path.suffix == ".parquet" else "CSV"
        reason = str(error).split("\n")[0] or type(error).__name__
        raise FileFormatError(f"{path} cannot be read as {kind}: {show(reason)}") from error


def _check_columns(path: Path, names: list[str]) -> None:
    if len(names) > MAX_COLUMNS:
        raise FileFormatError(
            f"{path}: {len(names)} columns, at most {MAX_COLUMNS} are allowed; "
            "many features fit into a list column"
        )
    for name in names:
        if not name.strip():
            raise FileFormatError(
                f"{path}: a column has no name; name it, or leave a row index out when writing"
            )
    name, times = Counter(names).most_common(1)[0] if names else ("", 1)
    if times > 1:
        raise FileFormatError(f"{path}: {times} columns are called {show(name)}")


def read_table(
    path: Path,
    text: Collection[str],
    *,
    need: Sequence[str] = (),
    ignore: Collection[str] | None = None,
) -> pa.Table:
    """Read a table that has at least the columns `need`.

    Args:
        path: the file.
        text: columns that may be text; in a CSV file, all others are numbers. The column
            `features` or `x` is text as well if it stands alone: a list of numbers.
        need: columns that have to be there.
        ignore: columns that are not read; if None, only those of `need` are read.
    """

    def wanted(names: list[str]) -> list[str]:
        _check_columns(path, names)
        need_columns(path, names, need)
        return [
            name for name in names if name in need or (ignore is not None and name not in ignore)
        ]

    with format_errors(path):
        read = _read_parquet if path.suffix == ".parquet" else _read_csv
        return read(path, text, wanted)


def _read_parquet(
    path: Path, text: Collection[str], wanted: Callable[[list[str]], list[str]]
) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    names = wanted([name for name in schema.names if not _PANDAS_INDEX.fullmatch(name)])
    if rows > MAX_ROWS:
        raise FileFormatError(f"{path}: {rows} rows, at most {MAX_ROWS} are allowed")
    most = min(MAX_BYTES, max(_FREE_BYTES, _EXPANSION * path.stat().st_size))
    # As a dictionary, a long text that is repeated a thousand times is not yet a thousand texts.
    texts = [name for name in names if _is_text(schema.field(name).type)]
    columns: dict[str, pa.ChunkedArray] = {}
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for group, batch_rows in _groups(schema, names):
            batches = []
            # Counted batch by batch: what the file's own metadata says of sizes may be a lie, and
            # some damage there makes pyarrow end the process when it is asked.
            for batch in file.iter_batches(batch_rows, columns=group):
                batches.append(batch)
                most -= batch.nbytes
                if most < 0:
                    raise FileFormatError(f"{path}: its contents are far too large for its size")
            read = pa.Table.from_batches(batches) if batches else schema.empty_table()
            columns.update((name, read.column(name)) for name in group)
    table = pa.table({name: columns[name] for name in names})
    table = table.replace_schema_metadata(schema.metadata)
    table.validate(full=True)  # text that is not UTF-8, offsets that point elsewhere
    for name in set(table.column_names) & set(text):
        column = table.column(name)
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            _check_lengths(path, name, [chunk.dictionary for chunk in column.chunks])
            if _text_bytes(column) > most:
                raise FileFormatError(f"{path}: its contents are far too large for its size")
            at = table.column_names.index(name)
            table = table.set_column(at, name, column.cast(column.type.value_type))
    return table


def _groups(schema: pa.Schema, names: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Columns that are read together, and how many rows of them at once.

    Texts apart from the rest: every batch repeats their dictionary, so they need large batches.
    """
    import pyarrow as pa

    texts: list[str] = []
    numbers: list[str] = []
    others: list[str] = []
    for name in names:
        kind = schema.field(name).type
        if _is_text(kind) or pa.types.is_dictionary(kind):
            texts.append(name)
        elif pa.types.is_primitive(kind):
            numbers.append(name)
        else:
            others.append(name)
    for group, values in ((texts, 1), (numbers, 1), (others, _VALUES_OF_A_LIST)):
        if group:
            rows = max(1, min(_BATCH_ROWS, _BATCH_VALUES // (values * len(group))))
            # A power of two: pyarrow's buffers grow by doubling, and half of one would be empty.
            yield group, 1 << (rows.bit_length() - 1)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text_bytes(column: pa.ChunkedArray) -> int:
    """How long all texts of a dictionary column are together."""
    import pyarrow.compute as pc

    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(pc.sum(chunk).as_py() or 0 for chunk in lengths)


def _check_lengths(path: Path, name: str, chunks: Sequence[pa.Array]) -> None:
    import pyarrow.compute as pc

    if any((pc.max(pc.utf8_length(chunk)).as_py() or 0) > MAX_TEXT for chunk in chunks):
        raise FileFormatError(
            f"{path}: column {name} has a text of more than {MAX_TEXT} characters, the most allowed"
        )


def _read_csv(
    path: Path, text: Collection[str], wanted: Callable[[list[str]], list[str]]
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    reading = csv.ReadOptions(block_size=_BLOCK)
    parsing = csv.ParseOptions(newlines_in_values=True)

    def read(columns: Sequence[str], numbers: Collection[str]) -> pa.Table:
        options = csv.ConvertOptions(
            column_types={
                name: pa.float32() if name in numbers else pa.string() for name in columns
            },
            include_columns=columns,
            null_values=[""],
            strings_can_be_null=True,
        )
        return csv.read_csv(path, reading, parsing, options)

    there: list[str] = []
    try:
        with csv.open_csv(path, reading, parsing) as file:
            there = file.schema.names
        names = wanted(there)
        numbers = [name for name in names if name not in text]
        if len(numbers) == 1 and numbers[0] in ("features", "x"):
            numbers = []  # a list of numbers, written as text
        table = read(names, numbers)
    except pa.ArrowInvalid as error:
        column = re.match(r"In CSV column #(\d+): .*conversion", str(error))
        if column is None or not there:
            _raise_uneven_row(path)
            raise
        name = there[int(column[1])]
        texts = read([name, "id"] if "id" in there else [name], ())
        row = first_bad(len(texts), lambda start, end: is_numbers(texts.column(0)[start:end]))
        node = f" (id {show(texts.column(1)[row])})" if texts.num_columns > 1 else ""
        raise FileFormatError(
            f"{path}: row {row + 1}{node}: column {show(name)} has {show(texts.column(0)[row])}, "
            "expected a number"
        ) from error
    for name in table.column_names:
        if name in text:
            _check_lengths(path, name, table.column(name).chunks)
    return table


def _raise_uneven_row(path: Path) -> None:
    """Raise about the first row that has more or fewer columns than the header, if there is one."""
    import pyarrow as pa
    from pyarrow import csv

    # Without threads, and only so, pyarrow tells the number of the row, the header being row 1.
    reading = csv.ReadOptions(use_threads=False, block_size=_BLOCK)
    try:
        csv.read_csv(path, reading, csv.ParseOptions(newlines_in_values=True))
    except pa.ArrowInvalid as error:
        uneven = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if uneven:
            row, expected, got = map(int, uneven.groups())
            raise FileFormatError(
                f"{path}: row {row - 1} has {got} columns, the header has {expected}"
            ) from error


def is_numbers(texts: pa.ChunkedArray) -> bool:
    """Whether every text is a number."""
    import pyarrow as pa

    try:
        texts.cast(pa.float32())
    except pa.ArrowInvalid:
        return False
    return True


def first_bad(count: int, good: Callable[[int, int], bool]) -> int:
    """The first of `count` positions where good(start, end) does not hold, by halving."""
    start, end = 0, count
    while end - start > 1:
        middle = (start + end) // 2
        start, end = (middle, end) if good(start, middle) else (start, middle)
    return start


def need_columns(path: Path, there: Sequence[str], needed: Sequence[str]) -> None:
    """Raise if a column is not there."""
    for name in needed:
        if name not in there:
            known = ", ".join(show(other) for other in there[:8])
            more = ", ..." if len(there) > 8 else ""
            raise FileFormatError(f"{path}: no column {name!r}; it has {known}{more}")


def as_text(path: Path, table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of texts or whole numbers as text, null where it is empty."""
    with format_errors(path):
        return _as_text(path, table.column(name), name)


def _as_text(path: Path, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind):
        # pandas turns whole numbers into floats where some are missing.
        whole = pc.or_kleene(
            pc.is_null(column, nan_is_null=True), pc.equal(column, pc.floor(column))
        )
        row = first_false(whole)
        if row is not None:
            raise FileFormatError(
                f"{path}: row {row + 1}: column {name} has {column[row].as_py()}, "
                "expected a whole number or text"
            )
        column = pc.if_else(pc.is_null(column, nan_is_null=True), None, column).cast(pa.int64())
    elif pa.types.is_null(kind):
        return column.cast(pa.string())
    elif not (pa.types.is_integer(kind) or _is_text(kind) or pa.types.is_boolean(kind)):
        raise FileFormatError(
            f"{path}: column {name} has type {show(kind)}, expected whole numbers or text"
        )
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), None, texts)


def as_ids(path: Path, table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of ids: whole numbers, or texts. In a CSV file, numbers if all of them are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    with format_errors(path):
        if pa.types.is_integer(column.type):
            column = column.cast(pa.int64())
        else:
            column = as_text(path, table, name)
        row = first_false(pc.is_valid(column))
        if row is not None:
            raise FileFormatError(f"{path}: row {row + 1}: {name} is empty, expected an id")
        if path.suffix == ".csv":
            try:
                numbers = column.cast(pa.int64())
            except pa.ArrowInvalid:
                return column
            # 007 is a text: as a number it would lose its zeros.
            if pc.all(pc.equal(numbers.cast(pa.string()), column)).as_py() is not False:
                return numbers
        return column


def first_false(good: pa.ChunkedArray | NDArray[np.bool_]) -> int | None:
    """Where the first false stands, None if all are true."""
    values = np.asarray(good, dtype=bool)
    return None if values.all() else int(np.argmin(values))


def to_numpy(ids: pa.ChunkedArray) -> NDArray[Any]:
    """Ids as an array of integers or of strings."""
    import pyarrow as pa

    array = np.asarray(ids)
    return array if pa.types.is_integer(ids.type) else array.astype(str)


def places(values: pa.ChunkedArray, among: pa.ChunkedArray) -> NDArray[np.int64]:
    """Where each value stands in `among`, -1 if it does not; 7 and "7" are the same id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.type != among.type:
        values, among = values.cast(pa.string()), among.cast(pa.string())
    found = pc.index_in(values, value_set=among.combine_chunks())
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as its file's ending says, completely or not at all."""
    from pyarrow import csv, parquet

    with replacing(path) as temporary:
        if path.suffix == ".csv":
            csv.write_csv(table, temporary)
        else:
            parquet.write_table(table, temporary, compression="zstd")
