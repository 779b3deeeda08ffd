"""Fetching a file whose size and SHA-256 are known: all of it, checked, or nothing."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fedmend.errors import DatasetMissingError, FileFormatError
from fedmend.files import replacing

_CHUNK = 2**16
_SILENCE = 30.0  # seconds without a byte
_PATIENCE = 3600.0  # seconds for one file in all, so that a dripping server ends too
_MAX_BYTES = 2**30  # where the size is not known


def fetch(
    url: str,
    target: Path,
    sha256: str,
    size: int | None = None,
    *,
    report: Callable[[int], None] | None = None,
) -> None:
    """Download `url` to `target`, which appears only if its size and SHA-256 are right.

    Args:
        url: http or https; a redirection may not lead elsewhere.
        target: the file to write; its folder is created.
        sha256: what the file must hash to, in hexadecimal.
        size: its length in bytes, if known: no more is ever read.
        report: called with the number of new bytes, for a progress bar.

    Raises:
        DatasetMissingError: the server cannot be reached, or breaks off.
        FileFormatError: what came is not the file that was asked for.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DatasetMissingError(f"cannot download {url}: only http and https are allowed")
    with replacing(target) as temporary, temporary.open("wb") as file:
        digest = hashlib.sha256()
        length = 0
        for chunk in _chunks(url):
            length += len(chunk)
            if length > (_MAX_BYTES if size is None else size):
                raise FileFormatError(f"{url} is larger than expected: not downloaded")
            digest.update(chunk)
            file.write(chunk)
            if report is not None:
                report(len(chunk))
        if digest.hexdigest() != sha256.lower():
            raise FileFormatError(
                f"{url} is not the expected file (its SHA-256 is {digest.hexdigest()}, "
                f"expected {sha256.lower()}): not kept"
            )


def _chunks(url: str) -> Iterator[bytes]:
    """The bytes behind `url`; what goes wrong on the network is one DatasetMissingError."""
    # Only these handlers: a redirection to ftp: or file: finds nobody to open it.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    deadline = time.monotonic() + _PATIENCE
    try:
        with opener.open(urllib.request.Request(url), timeout=_SILENCE) as response:
            expected = response.length
            length = 0
            while chunk := response.read1(_CHUNK):
                length += len(chunk)
                yield chunk
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not finished after {_PATIENCE:.0f} s")
            if expected is not None and length != expected:
                raise EOFError(f"the server broke off after {length} of {expected} bytes")
    except urllib.error.HTTPError as error:
        error.close()
        reason = " ".join(str(error.reason).split())
        raise DatasetMissingError(f"cannot download {url}: {error.code} {reason}") from error
    except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split())
        raise DatasetMissingError(
            f"cannot download {url}: {reason or type(error).__name__}"
        ) from error


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if that is a terminal; gives the function to call."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(description, total=total)
        yield lambda count: progress.advance(task, count)
