"""Talking to a server as a person; `fedmend status`."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmend.deploy.kits import Kit
from fedmend.deploy.workspace import person_workspace
from fedmend.engines.printable import printable
from fedmend.errors import FederationError, RefusedError

CONNECT_WITHIN = 15.0
"""Seconds a server may take to answer."""


@contextmanager
def session(kit: Kit) -> Iterator[Any]:
    """A connection to the server, closed at the end; FLARE's chatter goes nowhere."""
    from nvflare.fuel.flare_api import api_spec
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    logging.getLogger().setLevel(logging.CRITICAL)
    # FLARE wants a copy of the key in a folder of its own; better inside the kit than in /tmp.
    place = kit.folder if os.access(kit.folder, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".session-", dir=place) as folder:
        root = person_workspace(kit, Path(folder).resolve())
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                opened = new_secure_session(
                    kit.name, str(root), timeout=CONNECT_WITHIN, auto_login_max_tries=3
                )
        except api_spec.AuthenticationError as error:
            raise RefusedError(
                f"the server at {kit.address} does not accept this kit's certificate"
            ) from error
        except (api_spec.NoConnection, ConnectionError, TimeoutError, RuntimeError) as error:
            raise FederationError(
                f"cannot connect to the server at {kit.address}: is it running, and is this kit "
                "one of its federation?"
            ) from error
        except flare_errors() as error:
            raise FederationError(
                f"cannot log in to the server at {kit.address}: {_words(error)}"
            ) from error
        try:
            yield opened
        finally:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                opened.close()


@contextmanager
def explained(action: str) -> Iterator[None]:
    """FLARE's own errors as ours."""
    from nvflare.fuel.flare_api import api_spec

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except api_spec.AuthorizationError as error:
        raise RefusedError(f"this kit's role may not {action}") from error
    except (api_spec.NoConnection, api_spec.SessionClosed) as error:
        raise FederationError("the connection to the server is lost; try again") from error
    except flare_errors() as error:
        raise FederationError(f"cannot {action}: {_words(error)}") from error


def flare_errors() -> tuple[type[Exception], ...]:
    """All that FLARE raises on purpose when it talks to a server; there is no common base class."""
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api import api_spec

    named = [each for each in vars(api_spec).values() if isinstance(each, type)]
    own = [each for each in named if issubclass(each, Exception)]
    return (*own, FLCommunicationError, RuntimeError)  # the last for states that it does not know


def _words(error: Exception) -> str:
    return f"FLARE says {type(error).__name__}: {printable(error, 300) or 'no more'}"


@dataclass(frozen=True)
class Status:
    """Who is connected to a server and what runs there.

    twice: where a kit was last used a second time, by silo.
    """

    server: str
    silos: tuple[str, ...]
    jobs: tuple[dict[str, str], ...]
    twice: dict[str, str]


def status(kit: Kit) -> Status:
    """Ask a server who is connected and what runs."""
    from fedmend.deploy import standing

    with session(kit) as opened, explained("look at the federation"):
        info = opened.get_system_info()
        jobs = opened.list_jobs()
        outcomes, twice = standing.ask(opened)
    return Status(
        server=kit.address,
        silos=tuple(sorted(printable(each.name, 80) for each in info.client_info)),
        jobs=tuple(
            {
                "job": printable(each.get("job_id"), 80),
                "name": printable(each.get("job_name"), 80),
                "status": outcomes.get(str(each.get("job_id")), _in_our_words(each.get("status"))),
                "submitted": printable(each.get("submit_time"), 80),
            }
            for each in jobs
        ),
        twice=twice,
    )


def _in_our_words(status: Any) -> str:
    """What FLARE says of a job of whose run nothing is known."""
    said = printable(status, 80)
    if said.startswith("FINISHED"):
        return f"ended before its run did ({said}); may go on with --resume"
    return said.lower()
