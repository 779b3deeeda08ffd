"""The `.npz` files of the GNN benchmark of Shchur et al. (2018); the bundled Cora is one too.

A file holds a CSR adjacency (`adj_data`, `adj_indices`, `adj_indptr`, `adj_shape`), attributes in
the same form (`attr_*`) or dense (`attr_matrix`), `labels`, and perhaps `class_names` and
`node_names`. Nothing is unpickled: names stored as Python objects are left out.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmend.data.matrices import checked_csr
from fedmend.errors import FileFormatError, GraphError
from fedmend.graph import Graph

_MAX_BYTES = 2**30  # unpacked; the largest of the benchmark's files unpacks to a tenth of it
_PIECE = 2**20

# What numpy raises on a bad header, which it parses as a Python literal, or on missing data.
_MALFORMED = (
    ValueError,
    TypeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    SyntaxError,
    tokenize.TokenError,
)

# What zipfile raises on a damaged archive (RuntimeError: it is encrypted).
_BAD_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
    ValueError,
)


def read_npz(path: Path) -> Graph:
    """The graph in a benchmark file.

    Attributes become 0 or 1 (present or not), as the benchmark itself and PyG make them; edges
    lose direction and weight, an entry of weight zero is no edge. `class_names` and `node_names`
    are used where they are texts or numbers, as many as needed and all different.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _Arrays(path, archive)
            x = _attributes(arrays)
            adjacency = arrays.matrix("adj")
            labels = arrays["labels"]
            class_names = arrays.names("class_names")
            node_names = arrays.names("node_names")
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error
    except _BAD_ARCHIVE as error:
        raise FileFormatError(f"{path} is not a readable .npz file: {error}") from error

    nodes = x.shape[0]
    if adjacency.shape != (nodes, nodes):
        raise FileFormatError(
            f"{path}: adj_shape is {adjacency.shape}, but there are {nodes} rows of attributes"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (nodes,):
        raise FileFormatError(
            f"{path}: labels must be {nodes} whole numbers, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    classes = int(labels.max()) + 1 if nodes else 0
    if class_names is None or len(class_names) < classes:
        class_names = None
    if node_names is None or len(node_names) != nodes:
        node_names = None
    adjacency = adjacency.tocoo()
    real = adjacency.data != 0
    try:
        return Graph(
            x,
            np.stack([adjacency.row[real], adjacency.col[real]]),
            labels.astype(np.int64),
            label_names=None if class_names is None else class_names.tolist(),
            node_ids=node_names,
        )
    except GraphError as error:
        raise FileFormatError(f"{path}: {error}") from error


class _Arrays:
    """The arrays of an open .npz file, each checked before memory is given to it."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self.archive = archive
        self.members = {info.filename: info for info in archive.infolist()}
        size = sum(info.file_size for info in archive.infolist())
        if size > _MAX_BYTES:
            raise FileFormatError(f"{path} unpacks to {size} bytes, more than {_MAX_BYTES}")

    def __contains__(self, key: str) -> bool:
        return f"{key}.npy" in self.members

    def __getitem__(self, key: str) -> NDArray[Any]:
        if key not in self:
            raise FileFormatError(f"{self.path} has no {key}: not a file of the GNN benchmark")
        stream = self._unpack(key)
        try:
            with warnings.catch_warnings():
                # numpy says that a header was written by Python 2: true of files of that age.
                warnings.simplefilter("ignore", UserWarning)
                self._check_size(stream)
                return np.lib.format.read_array(stream, allow_pickle=False)
        except _MALFORMED as error:
            reason = " ".join(str(error).split())[:200]
            raise FileFormatError(f"{self.path}: {key} is malformed: {reason}") from error

    def _unpack(self, key: str) -> io.BytesIO:
        """The bytes of an array, up to the size the archive names, which was counted above.

        In pieces: asked for all at once, zipfile unpacks whatever there is and cuts it afterwards.
        """
        member = self.members[f"{key}.npy"]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileFormatError(
                f"{self.path}: {key} is compressed in a way that numpy does not write; "
                "save it with numpy.savez or numpy.savez_compressed"
            )
        stream = io.BytesIO()
        with self.archive.open(member) as packed:
            while piece := packed.read(_PIECE):
                stream.write(piece)
        stream.seek(0)
        return stream

    @staticmethod
    def _check_size(stream: io.BytesIO) -> None:
        """Refuse a header that claims more numbers than follow it: numpy would allocate first."""
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        left = len(stream.getbuffer()) - stream.tell()
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize > left:
            raise ValueError(f"it claims shape {shape} but has {left} bytes")
        stream.seek(0)

    def matrix(self, prefix: str) -> Any:
        """A CSR matrix from its four arrays."""
        data, indices, indptr, shape = (
            self[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape")
        )
        lengths = tuple(shape.tolist()) if shape.shape == (2,) else None
        return checked_csr(data, indices, indptr, lengths, f"{self.path}: {prefix}_*")

    def names(self, key: str) -> NDArray[Any] | None:
        """Texts or numbers, all different; None if there are none that can be used."""
        if key not in self:
            return None
        try:
            names = self[key]
        except FileFormatError as error:
            if "Object arrays cannot be loaded" in str(error):  # numpy's words for "pickled"
                return None
            raise
        usable = names.ndim == 1 and names.dtype.kind in "iuU"
        return names if usable and len(np.unique(names)) == len(names) else None


def _attributes(arrays: _Arrays) -> Any:
    """The attributes as 0 and 1, sparse or dense as they are stored."""
    if "attr_matrix" in arrays:
        dense = arrays["attr_matrix"]
        if dense.ndim != 2 or dense.dtype.kind not in "biuf":
            raise FileFormatError(
                f"{arrays.path}: attr_matrix must be a table of numbers, "
                f"got {dense.dtype} of shape {dense.shape}"
            )
        _check_finite(dense, arrays.path, "attr_matrix")
        return (dense != 0).astype(np.float32)
    sparse = arrays.matrix("attr")
    _check_finite(sparse.data, arrays.path, "attr_data")
    sparse.sum_duplicates()
    sparse.data = (sparse.data != 0).astype(np.float32)
    sparse.eliminate_zeros()
    return sparse


def _check_finite(values: NDArray[Any], path: Path, key: str) -> None:
    if not np.isfinite(values).all():
        raise FileFormatError(f"{path}: {key} has a value that is NaN or infinite")
