"""One process per kit: a silo's certificate in two places is noticed, refused, and told to both.

FLARE takes a second process of the same name for another connection of the first, and gives each
every other message. Every process therefore says at its first words which start of a party it
belongs to. A server keeps to the one that it knows as long as that one gives signs of life.
"""

from __future__ import annotations

import os
import time
from typing import Any

from nvflare.fuel.f3.connection import ConnState
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from fedmend.deploy.audit import Audit
from fedmend.deploy.sockets import SCHEME
from fedmend.deploy.status import START, tell
from fedmend.engines.printable import printable

NOTICE = "fedmend notice"
"""FLARE's channel and topic, and the header, for what a server tells a silo's terminal."""

SILENT = 20.0
"""Seconds after which a process that says nothing makes room for another; they all say something
every five."""

_OURS, _REFUSED = "fedmend_start", "fedmend_refused"

twice: dict[str, str] = {}
"""At a server: where kits were last used a second time, by silo; `fedmend status` says it."""


def install(audit: Audit) -> None:
    """Have this process say which start it belongs to, and look at what others say."""
    start = os.environ[START]
    greet, let_in = SfmConnection.send_handshake, ConnManager.update_endpoint
    told: set[str] = set()

    def send_handshake(self: Any, frame_type: int) -> None:
        self.local_endpoint.properties = {**(self.local_endpoint.properties or {}), _OURS: start}
        greet(self, frame_type)

    def update_endpoint(self: Any, connection: Any, data: dict[str, Any]) -> None:
        if _REFUSED in data:
            sentence = f"the server refuses: {printable(data[_REFUSED], 200)}"
            if sentence not in told:
                told.add(sentence)
                tell(sentence)
            connection.conn.close()
            return
        if connection.conn.connector.mode == Mode.PASSIVE and not _make_room(
            self, connection, data, audit
        ):
            return
        let_in(self, connection, data)

    SfmConnection.send_handshake = send_handshake
    ConnManager.update_endpoint = update_endpoint


def _make_room(manager: Any, connection: Any, data: dict[str, Any], audit: Audit) -> bool:
    """At a server: whether a new connection's process is the only one that uses its kit."""
    conn = connection.conn
    properties = conn.get_conn_properties()
    name = str(data.get(HandshakeKeys.ENDPOINT_NAME)).partition(".")[0]
    if conn.connector.params.get(DriverParams.SCHEME.value) == SCHEME:
        return True  # an own process
    if properties.get(DriverParams.PEER_CN.value) != name:
        return True  # a person, or somebody in another's name, whom FLARE refuses
    connection.fedmend_start = str(data.get(_OURS))
    others = [
        each
        for known in list(manager.sfm_endpoints.values())
        for each in list(known.connections)
        if known.endpoint.name.partition(".")[0] == name
        and getattr(each, _OURS, None) != connection.fedmend_start
    ]
    alive = [each for each in others if _is_alive(each)]
    if not alive:
        for each in others:
            each.conn.close()
        return True
    where = printable(properties.get(DriverParams.PEER_ADDR.value), 60)
    twice[name] = f"{where}, {time.strftime('%Y-%m-%d %H:%M:%S')}"
    if audit.refused(name, f"to take part from {_host(where)} as well, with the same kit"):
        _notify(manager, name, f"this kit is used a second time, from {where}; that was refused")
    why = "this kit is in use by another process, which is connected; stop one of the two"
    connection.send_dict(
        Types.READY, 1, {HandshakeKeys.ENDPOINT_NAME: manager.local_endpoint.name, _REFUSED: why}
    )
    # What was sent last has to arrive before the end of the connection does.
    time.sleep(0.2)
    conn.close()
    return False


def _is_alive(connection: Any) -> bool:
    silent = time.time() - connection.last_activity
    return bool(connection.conn.state == ConnState.CONNECTED and silent < SILENT)


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


def _notify(manager: Any, name: str, sentence: str) -> None:
    for cell in manager.receivers.values():
        channel, topic = NOTICE.split()
        cell.fire_and_forget(channel, topic, [name], Message({NOTICE: sentence}, None))


def is_notice(headers: Any) -> bool:
    """Whether a message that was let in is a server's notice to a silo's terminal."""
    return NOTICE in headers


def tell_notice(headers: Any) -> None:
    """Show a server's notice."""
    tell(f"the server says: {printable(headers[NOTICE], 200)}")
