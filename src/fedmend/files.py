"""Writing to disk so that nothing half-written is ever left behind.

A file is written beside its final place under a temporary name, flushed to the disk, and renamed:
whoever looks sees the old file or the new one, never a part. Failures of the disk become one
`StorageError` that says which file and why. And reading JSON with care: `typed` takes what stands
in a file for nothing but what it should be.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

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


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def typed(kind: Any, given: Any, name: str = "it") -> Any:
    """What was read from a JSON file as the type it should have, which may be a dataclass of such.

    Anything may stand in a file: what does not fit is a ValueError that says where. Keys that the
    dataclass does not know are left out, and those with a default may be missing.
    """
    wrong = ValueError(f"{name} cannot be {_in_short(given)}")
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return given
    if origin in (Union, UnionType):
        if given is None and NoneType in parts:
            return None
        (one,) = (each for each in parts if each is not NoneType)
        return typed(one, given, name)
    if kind is float:
        if type(given) not in (int, float) or not -_LARGEST <= given <= _LARGEST:  # NaN neither
            raise wrong
        return given
    if kind in (str, bool, int):
        if type(given) is not kind or (kind is int and abs(given) >= 2**63):
            raise wrong
        return given
    if origin is tuple:
        if not isinstance(given, list | tuple):
            raise wrong
        if len(parts) == 2 and parts[1] is Ellipsis:
            return tuple(typed(parts[0], each, f"{name}, {i}") for i, each in enumerate(given))
        if len(parts) != len(given):
            raise wrong
        return tuple(typed(part, each, name) for part, each in zip(parts, given, strict=True))
    if is_dataclass(given) and type(given) is kind:
        return given  # looked at before
    if not isinstance(given, Mapping):
        raise wrong
    if origin in (dict, Mapping):
        if parts[0] is int and not all(str(key).isdecimal() for key in given):
            raise wrong
        return {parts[0](k): typed(parts[1], v, f"{name}, {k}") for k, v in given.items()}
    if hasattr(kind, "from_dict"):
        return kind.from_dict(given)
    found = {}
    for field in fields(kind):
        if field.name in given:
            value = given[field.name]
            found[field.name] = typed(_hints(kind)[field.name], value, f"{name}, {field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{name}, {field.name} is missing")
    return kind(**found)


def plain(value: Any) -> Any:
    """The same as dicts and lists, as JSON has them; what `typed` takes back."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


_LARGEST = sys.float_info.max


def _in_short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
