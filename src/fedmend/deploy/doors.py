"""What every FLARE process of a party lets in: what a run needs, from whom it needs it.

FLARE's processes answer whoever reaches them. A client performs shell commands and deletes folders
for any sender, a server passes on any message in any name, and a job ends for whoever says so. So
nothing of FLARE's is called before a message has passed here:

1. Every message, by who sent it to whom over which connection, and what for (`_WANTED`). What is
   not listed is not let in, nor passed on. A sender's name is bound to its certificate by FLARE;
   that nobody speaks in another's name over its own connection is checked here.
2. What a server asks of a silo, by name (`_OF_A_SILO`); what a person asks of a server, by name
   (`_OF_A_SERVER`), before FLARE's own look at that person's rights.

All refusals, and what is granted beyond mere looking, stand in the party's audit file.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessageType,
)
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
from nvflare.fuel.hci.server.authz import AuthzFilter
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent

from fedmend.deploy import alone, standing
from fedmend.deploy.audit import Audit
from fedmend.deploy.job_files import check_deployment, check_submission
from fedmend.deploy.kits import OBSERVER, RESERVED, SUBMITTER
from fedmend.deploy.sockets import SCHEME, OwnSockets
from fedmend.engines.printable import printable
from fedmend.errors import RefusedError


class Cell(Enum):
    """What a process is to FLARE, by the form of its name."""

    SERVER = "server"
    SERVER_RUN = "server.JOB"
    SILO = "NAME"
    SILO_RUN = "NAME.JOB"
    PERSON = "_admin_..."


_COMMANDS = CellChannel.SERVER_COMMAND
_AUX = CellChannel.AUX_COMMUNICATION
_BYE = f"{CellChannel.CELLNET} {CellChannelTopic.Bye}"

_WANTED: Mapping[tuple[Cell, Cell], frozenset[str]] = {
    (Cell.SILO, Cell.SERVER): frozenset(
        {f"{CellChannel.SERVER_MAIN} {topic}" for topic in ("challenge", "register", "heart_beat")}
        | {f"{CellChannel.SERVER_MAIN} {topic}" for topic in ("quit", "report_job_failure")}
        | {_BYE}
    ),
    (Cell.SILO_RUN, Cell.SERVER): frozenset({_BYE}),
    (Cell.SILO_RUN, Cell.SILO): frozenset(
        {_BYE, f"{CellChannel.CLIENT_MAIN} {TrainingTopic.NOTIFY_JOB_STATUS}"}
    ),
    (Cell.SILO_RUN, Cell.SERVER_RUN): frozenset(
        {f"{_COMMANDS} get_task", f"{_COMMANDS} submit_update"}
        | {f"{_AUX} __{topic}__" for topic in ("sync_runner", "job_heartbeat", "task_check")}
    ),
    (Cell.SERVER, Cell.SILO): frozenset({_BYE, f"{CellChannel.CLIENT_MAIN} admin", alone.NOTICE}),
    (Cell.SERVER, Cell.SILO_RUN): frozenset({_BYE}),
    (Cell.SILO, Cell.SILO_RUN): frozenset({_BYE, f"{CellChannel.CLIENT_COMMAND} abort"}),
    (Cell.SERVER_RUN, Cell.SILO_RUN): frozenset({"collab call", f"{_AUX} __end_run__"}),
    (Cell.SERVER_RUN, Cell.SERVER): frozenset(
        {_BYE}
        | {
            f"{CellChannel.SERVER_PARENT_LISTENER} {topic}"
            for topic in ("get_clients", "heartbeat", "update_run_status")
        }
    ),
    (Cell.SERVER, Cell.SERVER_RUN): frozenset(
        {_BYE} | {f"{_COMMANDS} {topic}" for topic in ("app_command", "abort", "handle_dead_job")}
    ),
    (Cell.PERSON, Cell.SERVER): frozenset(
        {f"{CellChannel.SERVER_MAIN} {topic}" for topic in ("challenge", "register")}
        | {f"{_AUX} ObjectStreamer.{topic}" for topic in ("Request", "Abort")}
        | {_BYE, f"{CellChannel.HCI} command"}
    ),
    (Cell.SERVER, Cell.PERSON): frozenset({_BYE}),
}
"""What each kind of process may ask of each other one: FLARE's channel and topic. Replies go the
other way. That is all a run, a status and a submission need, as watched."""

_OF_A_SILO = {
    TrainingTopic.CHECK_RESOURCE: False,
    TrainingTopic.CANCEL_RESOURCE: False,
    TrainingTopic.DEPLOY: True,
    TrainingTopic.START_JOB: True,
    TrainingTopic.ABORT: True,
    TrainingTopic.NOTIFY_JOB_STATUS: False,
}
"""What FLARE's server may have a silo do, and whether it is worth a line in the audit."""

_OF_A_SERVER = {
    "_cert_login": False,
    "_logout": False,
    "_commands": False,
    "_check_session": False,
    "check_status": False,
    "list_jobs": False,
    "get_job_meta": False,
    "app_command": False,
    standing.COMMAND: False,
    "submit_job": True,
    "abort_job": True,
}
"""What people may ask of a server, and whether it is worth a line when they may."""

_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STREAMED = (STREAM_DATA_TOPIC, STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)


def is_job(text: object) -> bool:
    """Whether this can be the name of a job, and not, say, a way into another folder."""
    return isinstance(text, str) and bool(_JOB.fullmatch(text)) and str(uuid.UUID(text)) == text


def _kind(name: str) -> Cell | None:
    root, *rest = name.split(".")
    if len(rest) > 1 or (rest and not is_job(rest[0])):
        return None
    if root == "server":
        return Cell.SERVER_RUN if rest else Cell.SERVER
    if root.startswith("_admin_"):
        return None if rest else Cell.PERSON
    # A person's certificate is no silo's, whatever the kit around it says.
    if root.lower() in RESERVED:
        return None
    return Cell.SILO_RUN if rest else Cell.SILO


def _of_one_party(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


@lru_cache(maxsize=10_000)
def _is_wanted(
    own: str, via: str, inside: bool, origin: str, target: str, purpose: str, answer: bool
) -> bool:
    """Whether `own` lets in a message that `origin` sent to `target`.

    via: who is at the other end of the connection; inside: whether that is the party's own socket;
    answer: whether it belongs to a request that went the other way.
    """
    if own == via == origin == target:
        return True  # to itself
    if _of_one_party(via, own) != inside:
        return False
    # Nobody speaks for another but a parent for its run; a run's own parent has looked already.
    behind = origin == via or origin.startswith(f"{via}.")
    if not behind and own.rpartition(".")[0] != via:
        return False
    # Passed on is what goes to an own run; by a silo also what its run sends; by a server, all
    # that the table has.
    passing = target.startswith(f"{own}.") or inside or own == "server"
    if target != own and not passing:
        return False
    sender, receiver = _kind(origin), _kind(target)
    if sender is None or receiver is None:
        return False
    one, other = origin.partition(".")[2], target.partition(".")[2]
    if one and other and one != other:
        return False  # of another run
    if {sender, receiver} == {Cell.SILO, Cell.SILO_RUN} and not _of_one_party(origin, target):
        return False
    asked = _WANTED.get((receiver, sender) if answer else (sender, receiver), frozenset())
    if purpose:
        return purpose in asked
    return bool(asked) or (receiver, sender) in _WANTED


def _purpose(headers: Mapping[str, Any]) -> tuple[str, bool] | None:
    """What a message is for, and whether it is an answer; None for no message of FLARE's.

    Large ones travel in pieces, each of which says what the whole is for, on a channel of its own.
    Empty for what says only how such a transport stands.
    """
    channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
    kind = headers.get(MessageHeaderKey.MSG_TYPE)
    if kind == MessageType.RETURN:
        return "", True
    if kind not in (MessageType.REQ, MessageType.REPLY):
        return None
    if channel != STREAM_CHANNEL:
        return f"{channel} {topic}", kind == MessageType.REPLY
    if topic not in _STREAMED or kind != MessageType.REQ:
        return None
    if topic != STREAM_DATA_TOPIC:
        return "", True
    channel, topic = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
    if channel == CellChannel.RETURN_ONLY:
        return str(topic).replace(":", " ", 1), True
    return f"{channel} {topic}", False


def _refusal(own: str, via: str, connection: Any, headers: Any) -> tuple[str, str] | None:
    """Who asked for what in vain; None if the message may come in."""
    if not isinstance(headers, Mapping):
        return via, "a message without an address"
    origin = str(headers.get(MessageHeaderKey.ORIGIN))
    target = str(headers.get(MessageHeaderKey.DESTINATION))
    found = _purpose(headers)
    inside = connection.connector.params.get(DriverParams.SCHEME.value) == SCHEME
    if found is not None and MessageHeaderKey.CONN_URL not in headers:
        name = connection.get_conn_properties().get(DriverParams.PEER_CN.value)
        person = not via.startswith("_admin_") or name in (SUBMITTER, OBSERVER)
        if person and _is_wanted(own, via, inside, origin, target, *found):
            return None
    purpose = "something unknown" if found is None else found[0] or "a part of a message"
    who = via if origin == via else f"{via} in the name of {origin}"
    return who, f"{purpose}, of {target}"


def install(state: Path) -> Audit:
    """Put the doors into this process, before FLARE starts in it; the party's audit."""
    audit = Audit(state)
    communicator.driver_mgr.register(OwnSockets)
    _guard_messages(audit)
    _guard_silo(audit)
    _guard_server(audit)
    alone.install(audit)
    standing.install(state)
    return audit


def _guard_messages(audit: Audit) -> None:
    let_in = CoreCell.process_message

    def process_message(self: Any, endpoint: Any, connection: Any, app: int, message: Any) -> None:
        refused = _refusal(self.get_fqcn(), endpoint.name, connection, message.headers)
        if refused is None and alone.is_notice(message.headers):
            alone.tell_notice(message.headers)
        elif refused is None:
            let_in(self, endpoint, connection, app, message)
        else:
            audit.refused(*refused)

    CoreCell.process_message = process_message


def _guard_silo(audit: Audit) -> None:
    perform = FedAdminAgent._dispatch_request

    def dispatch(self: Any, request: Any) -> Any:
        asked = request.payload
        origin = str(request.get_header(MessageHeaderKey.ORIGIN))
        topic = printable(getattr(asked, "topic", None), 80)
        own_run = origin != "server"  # by the table, nobody else comes this far
        wanted = {TrainingTopic.NOTIFY_JOB_STATUS} if own_run else set(_OF_A_SILO)
        why = _why_not(topic, asked) if topic in wanted else topic
        if why:
            audit.refused(origin, why)
            return new_cell_message({}, error_reply(f"refused: {why}"))
        if _OF_A_SILO[topic] and not own_run:
            meta, job = asked.get_header(RequestHeader.JOB_META), asked.get_header(_JOB_NAME)
            person = f"server for {meta.get('submitter_name')}" if meta else "server"
            audit.granted(person, f"{topic} of job {job}")
        return perform(self, request)

    FedAdminAgent._dispatch_request = dispatch


def _why_not(topic: str, asked: Any) -> str:
    """Why a silo does not do what FLARE's server may ask for in general; empty if it does."""
    job, meta = asked.get_header(_JOB_NAME), asked.get_header(RequestHeader.JOB_META)
    if not (is_job(job) or (job is None and topic == TrainingTopic.CANCEL_RESOURCE)):
        return f"{topic} of a job that cannot be"
    if topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB):
        if not isinstance(meta, dict) or meta.get(_JOB_NAME) != job:
            return f"{topic} of a job that says it is another"
    elif meta is not None and not isinstance(meta, dict):
        return f"{topic} with a description that cannot be"
    if topic == TrainingTopic.DEPLOY:
        try:
            check_deployment(asked.body)
        except RefusedError as error:
            return f"{topic}, {error}"
    return ""


_JOB_NAME = RequestHeader.JOB_ID


def _guard_server(audit: Audit) -> None:
    has_the_right = AuthzFilter.pre_command

    def pre_command(self: Any, conn: Any, args: list[str]) -> bool:
        name = conn.get_prop(ConnProps.CMD_ENTRY).name
        person = printable(conn.get_prop(ConnProps.USER_NAME, "somebody"), 80)
        why = ""
        if name not in _OF_A_SERVER:
            why = "refused"
        elif name == "submit_job":
            try:
                check_submission(Path(conn.get_prop(ConnProps.FILE_LOCATION) or "nothing"))
            except RefusedError as error:
                why = str(error)
        if why:
            conn.append_error(why, meta=make_meta(MetaStatusValue.INVALID_JOB_DEFINITION, why))
        elif has_the_right(self, conn, args):
            if _OF_A_SERVER[name]:
                audit.granted(person, printable(" ".join(args), 120))
            return True
        audit.refused(person, f"{name}: {why}" if why else f"{name}, which its role may not")
        return False

    AuthzFilter.pre_command = pre_command
