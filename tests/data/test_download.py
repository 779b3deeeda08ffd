"""Downloads, against a server on this machine: checked, bounded, and nothing left behind."""

from __future__ import annotations

import hashlib
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmend.data import download
from fedmend.data.download import fetch, progress_bar
from fedmend.errors import DatasetMissingError, FileFormatError, StorageError

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """/file gives CONTENT; the other paths misbehave in the way their names say."""

    def do_GET(self) -> None:
        targets = {
            "/moved": "/file",
            "/moved-to-ftp": "ftp://127.0.0.1/file",
            "/moved-to-disk": "file:///etc/passwd",
            "/loop": "/loop",
        }
        if self.path in targets:
            self.send_response(302)
            self.send_header("Location", targets[self.path])
            self.end_headers()
        elif self.path == "/silent":
            self.server.shutdown_soon.wait(10)  # type: ignore[attr-defined]
        elif self.path == "/garbage":
            self.wfile.write(b"no http at all\r\n\r\n")
        elif self.path in ("/file", "/short", "/endless"):
            self.send_response(200)
            if self.path != "/endless":
                self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000] if self.path == "/short" else CONTENT)
            if self.path == "/endless":
                for _ in range(200):
                    self.wfile.write(CONTENT)
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    shutdown_soon = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle is part of the test."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown_soon.set()
        running.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize("path", ["/file", "/moved"])
def test_a_good_file(server: str, tmp_path: Path, path: str) -> None:
    seen: list[int] = []
    target = tmp_path / "new" / "file"
    fetch(server + path, target, SHA256.upper(), len(CONTENT), report=seen.append)
    assert target.read_bytes() == CONTENT
    assert sum(seen) == len(CONTENT)
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/none", DatasetMissingError, "404 Not Found"),
        ("/loop", DatasetMissingError, "302"),
        ("/moved-to-ftp", DatasetMissingError, "cannot download"),
        ("/moved-to-disk", DatasetMissingError, "cannot download"),
        ("/garbage", DatasetMissingError, "cannot download"),
        ("/short", DatasetMissingError, "broke off after 1000 of 256000 bytes|IncompleteRead"),
        ("/silent", DatasetMissingError, "timed out"),
        ("/endless", FileFormatError, "is larger than expected"),
    ],
)
def test_a_bad_server(
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    error: type[Exception],
    message: str,
) -> None:
    if path == "/silent":  # nobody else has to be quick
        monkeypatch.setattr(download, "_SILENCE", 0.3)
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(error, match=message) as caught:
        fetch(server + path, tmp_path / "file", SHA256, len(CONTENT))
    assert server + path in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"old")]


def test_a_wrong_hash(server: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=f"SHA-256 is {SHA256}, expected {'0' * 64}"):
        fetch(server + "/file", tmp_path / "file", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_size_is_bounded_too(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_MAX_BYTES", len(CONTENT) - 1)
    with pytest.raises(FileFormatError, match="is larger than expected"):
        fetch(server + "/file", tmp_path / "file", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_drips(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PATIENCE", 0.0)
    with pytest.raises(DatasetMissingError, match="not finished after 0 s"):
        fetch(server + "/file", tmp_path / "file", SHA256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/file", "/etc/passwd"])
def test_only_http(tmp_path: Path, url: str) -> None:
    with pytest.raises(DatasetMissingError, match="only http and https are allowed"):
        fetch(url, tmp_path / "file", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissingError, match=r"cannot download .*refused"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", SHA256)


def test_a_folder_that_cannot_be_written_is_no_network_error(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        fetch(server + "/file", tmp_path / "file" / "below", SHA256)


def test_the_bar_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("cora", 10) as report:
        report(10)
    assert not sys.stderr.isatty()
    assert capsys.readouterr() == ("", "")
