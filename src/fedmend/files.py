"""Writing to disk so that nothing half-written is ever left behind.

A file is written beside its final place under a temporary name, flushed to the disk, and renamed:
whoever looks sees the old file or the new one, never a part. Failures of the disk become one
`StorageError` that says which file and why.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmend.errors import FileFormatError, StorageError

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space and run again",
    errno.EDQUOT: "your disk quota is used up; free some space and run again",
    errno.EFBIG: "the file is larger than this system allows",
    errno.EACCES: "permission denied; choose a folder you may write to",
    errno.EPERM: "permission denied; choose a folder you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "there is a folder of that name",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError about `path`."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot write {path}: {reason}") from error


def make_folder(path: Path) -> Path:
    """Create a folder and its parents; a StorageError if that is not possible."""
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def replacing(path: Path, *, rights: int = 0o666) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it into place if the block succeeds."""
    make_folder(path.parent)
    with storage_errors(path):
        # Opened here and not by mkstemp, which gives owner-only rights: a result file gets the
        # user's usual ones, and the umask cannot be read without changing it for all threads.
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights))
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that its owner alone can read, completely or not at all."""
    with replacing(path, rights=0o600) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, completely or not at all."""
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=False) + "\n").encode())


def read_json(path: Path, *, limit: int = 256 * 2**20) -> Any:
    """Read a JSON file of at most `limit` bytes."""
    try:
        if path.stat().st_size > limit:
            raise FileFormatError(f"{path} is larger than {limit} bytes: not a file of ours")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid JSON: {error}") from error
