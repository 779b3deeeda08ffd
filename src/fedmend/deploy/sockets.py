"""How a party's own processes speak to each other: a socket in its state folder, not a TCP port.

FLARE would listen on loopback without asking who connects, and any user of the machine could. The
state folder is its owner's alone, and so is the socket in it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection

SCHEME = "own"
DOOR = "door"
"""The socket's name in FLARE's folder."""


def comm_config(root: Path) -> dict[str, Any]:
    """What FLARE reads of how to communicate: no listener but the server's and this socket."""
    inside = {"scheme": SCHEME, "resources": {"path": str(root / DOOR)}}
    return {"allow_adhoc_conns": False, "internal": inside}


def _shortest(path: str) -> str:
    """The same path in fewer letters: the system allows a socket's only about a hundred."""
    return min(path, os.path.relpath(path), key=len)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, driver: Any, connector: Any, path: str) -> None:
        self.driver, self.connector, self.ssl_context = driver, connector, None
        Path(path).unlink(missing_ok=True)  # of an earlier start; the state folder is locked
        super().__init__(_shortest(path), ConnectionHandler)
        Path(path).chmod(0o600)


class OwnSockets(BaseDriver):  # type: ignore[misc]  # FLARE has no types
    """FLARE's driver for them."""

    def __init__(self) -> None:
        super().__init__()
        self._server: _Server | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        return [SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: False}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        url = f"{scheme}://here{quote(resources['path'])}"
        return url, url

    def listen(self, connector: Any) -> None:
        self.connector = connector
        with _Server(self, connector, _path_of(connector)) as self._server:
            self._server.serve_forever()

    def connect(self, connector: Any) -> None:
        self.connector = connector
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            door.connect(_shortest(_path_of(connector)))
        except OSError:
            door.close()
            raise
        connection = SocketConnection(door, connector)
        self.add_connection(connection)
        connection.read_loop()
        self.close_connection(connection)

    def shutdown(self) -> None:
        self.close_all()
        if self._server is not None:
            self._server.shutdown()


def _path_of(connector: Any) -> str:
    return unquote(urlsplit(connector.params[DriverParams.URL.value]).path)
