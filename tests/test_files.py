"""Writing to disk: all or nothing, and one line about what went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmend.errors import FileFormatError, StorageError
from fedmend.files import (
    make_folder,
    read_json,
    replacing,
    write_bytes,
    write_json,
    write_secret,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_and_replace(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file.bin"
    write_bytes(target, b"one")
    write_bytes(target, b"two")
    assert target.read_bytes() == b"two"
    assert names(target.parent) == ["file.bin"]


def test_rights_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_bytes(tmp_path / "file", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "file"
    write_bytes(target, b"old")

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_bytes(b"half")
            assert target.read_bytes() == b"old"
            raise error

    with pytest.raises(error):
        fail()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        make_folder(tmp_path / "file" / "below")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        write_bytes(tmp_path / "file" / "below" / "target", b"")
    assert names(tmp_path) == ["file"]


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(StorageError, match="there is a folder of that name"):
        write_bytes(tmp_path / "target", b"data")
    assert names(tmp_path) == ["target"]


def python(code: str, *arguments: object) -> str:
    """Run `code` in another process (limits and users cannot be taken back); its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WRITE = """
import sys
from pathlib import Path
from fedmend.errors import StorageError
from fedmend.files import write_bytes
try:
    write_bytes(Path(sys.argv[1]), b"x" * 1_000_000)
except StorageError as error:
    print(error)
"""


def test_an_unwritable_folder(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    # Root may write anywhere, so it becomes nobody first, standing in the folder already.
    leave = """
import os, sys
import fedmend.files
os.chdir(sys.argv[2])
if os.geteuid() == 0:
    os.setuid(65534)
"""
    said = python(leave + WRITE, "file", locked)
    assert said == "cannot write file: permission denied; choose a folder you may write to"
    assert names(locked) == []


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    # A limit on the size of files fails in the middle of a write, as a full disk does.
    limit = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
    )
    said = python(limit + WRITE, target)
    assert said == f"cannot write {target}: the file is larger than this system allows"
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_no_space_is_said_in_words(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with (
        pytest.raises(StorageError, match="the disk is full; free some space and run again"),
        replacing(tmp_path / "file"),
        open("/dev/full", "wb", buffering=0) as full,  # noqa: PTH123 - a device, not a path of ours
    ):
        full.write(b"data")
    assert names(tmp_path) == []


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None], "a": "text"}
    write_json(tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value
    assert (tmp_path / "file.json").read_text().endswith("}\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe\xfd", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"1" * 200, "is larger than 100 bytes"),
    ],
)
def test_bad_json(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_json(path, limit=100 if len(content) == 200 else 2**20)


def test_missing_json(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read .*: No such file"):
        read_json(tmp_path / "none.json")


def test_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("old, and open to everybody")
    write_secret(path, b"secret")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"secret", 0o600)
