"""What `fedmend server` and `fedmend silo` do with what their children print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedmend.deploy.processes import LOG, _read

MUCH = 300_000
"""More bytes than a pipe holds: a child that is not listened to would wait for ever."""


def child() -> subprocess.Popen[bytes]:
    code = f"print('x' * {MUCH}); print('fedmend| ready'); print('fedmend| done')"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_all_is_logged_and_status_lines_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    with child() as process:
        _read(process, tmp_path, told.append)
    assert told == ["ready", "done"]
    assert (tmp_path / LOG).stat().st_size > MUCH


def test_a_full_disk_neither_stops_the_child_nor_hides_what_it_says(tmp_path: Path) -> None:
    (tmp_path / LOG).symlink_to("/dev/full")
    told: list[str] = []
    with child() as process:
        _read(process, tmp_path, told.append)
        assert process.wait(timeout=20) == 0
    assert told[0].endswith("the disk is full; free some space and run again")
    assert told[1:] == ["ready", "done"]  # and it complains once only


def test_a_terminal_that_cannot_be_written_to_stops_nothing(tmp_path: Path) -> None:
    def full(sentence: str) -> None:
        raise OSError(sentence)

    with child() as process:
        _read(process, tmp_path, full)
        assert process.wait(timeout=20) == 0
    assert "done" in (tmp_path / LOG).read_text()
