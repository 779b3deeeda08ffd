"""The classes that a job names: what runs at the server and at each silo.

A job ships no code. It is a few lines of configuration that name these classes of the installed
package and give them plain values; the policy in every workspace allows no others.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.context import set_call_context

from fedmend.deploy.standing import write_outcome
from fedmend.deploy.status import LONGEST_LINE, READY, tell
from fedmend.deploy.workspace import SITE_FILE
from fedmend.engines.printable import printable
from fedmend.errors import FederationError, FedmendError, SettingsError
from fedmend.files import make_folder, read_json

TOPIC = "fedmend"
"""Under which a submitter talks to a running job."""

CHUNK = 2**20
SETTLE = 60.0
"""Seconds a finished job waits for its submitter to fetch the result."""

_RUN = re.compile(r"[0-9a-f]{16}")


def run_folder(state: Path, run: str) -> Path:
    """Where a party keeps what belongs to a run; a run's name comes from outside."""
    if not _RUN.fullmatch(run):
        raise SettingsError(f"{run!r} is not the name of a run")
    return make_folder(state / "runs" / run)


def end_with_parent() -> None:
    """End this process when the one that started it is gone: nobody else would."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def _site(context: FLContext) -> dict[str, Any]:
    """What the party's own start-up wrote down for us."""
    folder = Path(context.get_engine().get_workspace().get_site_config_dir())
    found = read_json(folder / SITE_FILE, limit=2**20)
    if not isinstance(found, dict):
        raise SettingsError(f"{folder / SITE_FILE} is damaged; start this party again")
    return found


class Reporter(FLComponent):  # type: ignore[misc]  # FLARE has no types
    """Turns what happens to FLARE at a party into status lines."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            if fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN):  # else it was refused
                tell("connected to the server")
        elif event_type == EventType.SYSTEM_START:
            tell(READY)
            if fl_ctx.get_identity_name() == "server":
                engine = fl_ctx.get_engine()
                threading.Thread(
                    target=_tell_who_comes_and_goes, args=(engine,), daemon=True
                ).start()


def _tell_who_comes_and_goes(engine: Any) -> None:
    """At a server; FLARE has no event for a silo that comes back after a restart, or is gone."""
    known: set[str] = set()
    while True:
        now = {str(client.name) for client in engine.get_clients()}
        for name in sorted(now - known):
            tell(f"silo {name} is connected")
        for name in sorted(known - now):
            tell(f"silo {name} is gone")
        known = now
        time.sleep(0.5)


class _Handle(JobHandleSpec):  # type: ignore[misc]  # FLARE has no types
    """A silo's job process whose end, however it came, is only this silo's.

    FLARE aborts the whole job when one site reports that its process failed. Whether a run can go
    on without a silo is for the method to say, and the engine finds out by itself. Only a process
    that ended before its endpoint was open is reported as what it is: the run has not begun yet.
    """

    def __init__(self, handle: Any, opened: Path) -> None:
        super().__init__()
        self._handle, self._opened = handle, opened

    def terminate(self) -> None:
        self._handle.terminate()

    def poll(self) -> Any:
        found = self._handle.poll()
        ended = found != JobReturnCode.UNKNOWN
        return JobReturnCode.SUCCESS if ended and self._opened.exists() else found

    def wait(self) -> None:
        self._handle.wait()


class Launcher(ClientProcessJobLauncher):  # type: ignore[misc]  # FLARE has no types
    """Starts a silo's job process."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        return _by_our_program("silo-run", super().get_command(job_meta, fl_ctx))

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        opened = _opened_file(workspace, job_meta[JobConstants.JOB_ID])
        return _Handle(super().launch_job(job_meta, fl_ctx), opened)


class ServerLauncher(ServerProcessJobLauncher):  # type: ignore[misc]  # FLARE has no types
    """Starts the server's job process."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        return _by_our_program("server-run", super().get_command(job_meta, fl_ctx))


def _by_our_program(kind: str, command: str) -> str:
    """FLARE's command for a job's process, to be run behind our doors (`deploy.site`)."""
    module = MODULES[kind][0]
    before, found, after = command.partition(f" -m {module} ")
    if not found:
        raise FederationError(f"FLARE starts jobs in another way than by {module}")
    return f"{before} -m fedmend.deploy.site {kind} {after}"


MODULES = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "client": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
    "server-run": ("nvflare.private.fed.app.server.runner_process", ""),
    "silo-run": ("nvflare.private.fed.app.client.worker_process", ""),
}
"""FLARE's programs, and what the long-running ones read first."""


def _opened_file(workspace: Any, job: str) -> Path:
    """Is there as soon as a silo's endpoint is open."""
    return Path(workspace.get_run_dir(job)) / "fedmend-open"


class SiloJob:
    """A silo's side of a job: an endpoint, and the calls that reach it."""

    def __init__(self) -> None:
        end_with_parent()
        self._endpoint: Any = None

    @collab.init  # type: ignore[untyped-decorator]  # FLARE has no types
    def open(self) -> None:
        from fedmend.data.folders import read_folder, read_own_border
        from fedmend.engines.endpoint import SiloEndpoint
        from fedmend.privacy.policy import read_policy

        site = _site(collab.fl_ctx)
        name, state, graph = str(collab.site_name), Path(site["state"]), Path(site["graph"])
        self._endpoint = SiloEndpoint(
            name,
            lambda: read_folder(graph),
            lambda names: read_own_border(graph, name, names),
            read_policy(Path(site["policy"])),
            lambda run: run_folder(state, run),
            tell,
        )
        _opened_file(collab.workspace, collab.fl_ctx.get_job_id()).touch()

    @collab.publish  # type: ignore[untyped-decorator]  # FLARE has no types
    def perform(
        self, ticket: int, where: str, step: str, request: bytes, patience: float
    ) -> dict[str, Any]:
        if collab.caller != "server":  # FLARE knows by certificate who calls; silos never do
            return {"state": "failed", "error": "RefusedError", "sentence": "only the server asks"}
        answer: dict[str, Any] = self._endpoint.perform(ticket, where, step, request, patience)
        return answer

    @collab.final  # type: ignore[untyped-decorator]  # FLARE has no types
    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()


class ServerJob:
    """The server's side of a job: the method's server function over an engine of FLARE's lines.

    Args:
        plan: what to run, as `deploy.submission` wrote it: plain JSON text.
    """

    def __init__(self, plan: str) -> None:
        end_with_parent()
        self._plan: dict[str, Any] = json.loads(plan)
        self._events: list[dict[str, Any]] = []
        self._watch: Any = None
        self._folder: Path | None = None
        self._fetched = threading.Event()
        self._heard = time.monotonic()

    @collab.main  # type: ignore[untyped-decorator]  # FLARE has no types
    def run(self) -> None:
        from fedmend.engines.base import Interrupted, Watch

        context = collab.fl_ctx
        context.get_engine().register_app_command(TOPIC, self._command)
        self._watch = Watch(
            on_round=lambda moment: self._event("round", **asdict(moment)),
            on_sentence=lambda sentence: self._event("sentence", text=sentence),
        )
        state = Path(_site(context)["state"])
        try:
            self._train(state)
            became = "finished"
            self._event("finished", files=self._files())
            tell(f"run {self._plan['run']} is finished")
        except Interrupted:
            became = "stopped and saved: goes on with --resume"
            self._event("stopped")
            tell(f"run {self._plan['run']} was stopped and saved")
        except FedmendError as error:
            became = f"failed: {error}"
            self._event("failed", error=type(error).__name__, text=printable(error, LONGEST_LINE))
            tell(f"run {self._plan['run']} failed: {error}")
        except Exception as error:  # a bug must reach the submitter, not hang it
            logging.getLogger("fedmend").exception("the run failed")
            text = f"{type(error).__name__} at the server; its log says more"
            became = f"failed: {text}"
            self._event("failed", error="InternalError", text=text)
            tell(f"run {self._plan['run']} failed: {error!r}")
        write_outcome(state, context.get_job_id(), became)
        while not self._fetched.wait(0.2) and not collab.is_aborted:
            if time.monotonic() - self._heard > SETTLE:
                break

    def _train(self, state: Path) -> None:
        from fedmend.deploy.deployed import train_deployed

        plan = self._plan
        self._folder = run_folder(state, plan["run"])
        with _only_one(self._folder):
            context = collab.context
            lines = {proxy.name: _Line(proxy, context) for proxy in collab.clients}
            train_deployed(plan, lines, self._folder, self._watch)

    # What the submitter asks

    def _event(self, kind: str, **content: Any) -> None:
        self._events.append({"event": kind, **content})

    def _command(self, topic: str, given: Any, context: FLContext) -> dict[str, Any]:
        del topic, context
        self._heard = time.monotonic()
        given = given if isinstance(given, dict) else {}
        match given.get("ask"):
            case "events":
                since = int(given.get("since", 0))
                return {"events": self._events[since : since + 1000]}
            case "stop" if self._watch is not None:
                self._watch.stop_requested = True
                return {"ok": True}
            case "file":
                return self._piece(str(given.get("name")), int(given.get("offset", 0)))
            case "bye":
                self._fetched.set()
                return {"ok": True}
        return {"error": "unknown question"}

    def _files(self) -> list[str]:
        """What a submitter may fetch of a run's folder: all but checkpoints and our own notes."""
        from fedmend.runs import record as records

        folder = self._folder or Path()
        wanted = (records.WEIGHTS, records.LEDGER, records.RECORD)
        return [name for name in wanted if (folder / name).is_file()]

    def _piece(self, name: str, offset: int) -> dict[str, Any]:
        if self._folder is None or name not in self._files():
            return {"error": "no such file"}
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            data = file.read(CHUNK)
            size = os.fstat(file.fileno()).st_size
        return {"data": base64.b64encode(data).decode(), "size": size}


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Two jobs must not work on one run's folder."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FederationError(
                "this run is still going on at the server; --resume again when it has ended"
            ) from None
        yield


class _Line:
    """A line over FLARE's proxy of a silo."""

    def __init__(self, proxy: Any, context: Any) -> None:
        self._proxy, self._context = proxy, context

    def __call__(
        self, ticket: int, where: str, step: str, request: bytes, patience: float, timeout: float
    ) -> Mapping[str, Any]:
        set_call_context(self._context)  # FLARE keeps it per thread
        try:
            answer = self._proxy(timeout=timeout).perform(ticket, where, step, request, patience)
        except CollabCallError as error:
            if isinstance(error.cause, TimeoutError):
                raise TimeoutError from error
            raise ConnectionError from error
        if not isinstance(answer, dict):
            return {}
        return answer
