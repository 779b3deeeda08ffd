"""`fedmend server` and `fedmend silo`: a foreground process that looks after FLARE's.

FLARE's programs write much and end late. They run as children: what they print goes into a log in
the party's state folder, their status lines to the terminal, and when this process is asked to
stop, or dies, they end with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import FrameType

import psutil

from fedmend.data.tables import find_table
from fedmend.deploy import kits
from fedmend.deploy.kits import Kit
from fedmend.deploy.status import READY, START, STATUS
from fedmend.deploy.workspace import parent_options, server_workspace, silo_workspace
from fedmend.errors import FederationError, SettingsError, StorageError
from fedmend.files import make_folder, storage_errors, write_json
from fedmend.privacy.policy import POLICY_FILE, read_policy

LOG = "log.txt"
STOP_WITHIN = 5.0
"""Seconds the children get to end by themselves."""

TIED = "FEDMEND_END_WITH_PARENT"
"""In the environment: end when the process that started this one is gone (a rehearsal's)."""

FLARE_VARIABLES = {
    # A dead silo is the engine's affair: FLARE must not end the run a minute later.
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "1000000000",
    # Nor wait a quarter of an hour, when the run is over, for what became of it.
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "2",
}

Tell = Callable[[str], None]


def default_state(kit: Kit) -> Path:
    """Where a party keeps its state unless told otherwise: beside its kit, not inside it."""
    folder = kit.folder.resolve()
    return folder.with_name(f"{folder.name}-state")


def serve(kit: Kit, state: Path, tell: Tell) -> int:
    """Be the server until asked to stop; the exit code."""
    with _Lock(state):
        root = server_workspace(kit, state)
        removed = kits.read_removed(kit)
        write_json(root / "disabled_clients.json", {"disabled_clients": removed})  # FLARE's name
        tell(f"server of {kit.address}; state and log in {state}")
        _tell_expiry(kit, tell)
        if removed:
            tell(f"not let in: {', '.join(removed)}")
        return _look_after("server", kit, root, state, tell)


def be_silo(kit: Kit, graph: Path, state: Path, tell: Tell) -> int:
    """Be a silo until asked to stop; the exit code."""
    if not graph.is_dir() or not all(find_table(graph, name) for name in ("nodes", "edges")):
        raise SettingsError(
            f"{graph} is not a folder with a graph: it needs the tables nodes and edges; "
            f"`fedmend check {graph}` says more"
        )
    policy = kit.file(POLICY_FILE).resolve()
    read_policy(policy)
    with _Lock(state):
        root = silo_workspace(kit, state, graph.resolve(), policy)
        tell(f"silo {kit.name} of the server {kit.address}; state and log in {state}")
        _tell_expiry(kit, tell)
        return _look_after("client", kit, root, state, tell)


def _tell_expiry(kit: Kit, tell: Tell) -> None:
    tell(f"its certificate is valid until {kit.expires:%Y-%m-%d}")


class _Lock:
    """One process per state folder: two would write over each other."""

    def __init__(self, state: Path) -> None:
        self._state = make_folder(state)

    def __enter__(self) -> None:
        import fcntl

        with storage_errors(self._state / "lock"):
            self._file = (self._state / "lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise SettingsError(
                f"{self._state} is in use by another process; stop that one, or give --state"
            ) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _look_after(kind: str, kit: Kit, root: Path, state: Path, tell: Tell) -> int:
    asked: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        asked.append(number)

    before = {each: signal.signal(each, on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    child = start_child(kind, root, parent_options(kit), state)
    up = threading.Event()

    def heard(sentence: str) -> None:
        tell(sentence)
        if sentence == READY:
            up.set()

    reader = threading.Thread(target=_read, args=(child, state, heard), daemon=True)
    reader.start()
    try:
        waiting, patience = time.monotonic(), 10.0
        parent, tied = os.getppid(), TIED in os.environ
        while child.poll() is None and not asked:
            time.sleep(0.1)
            if tied and os.getppid() != parent:
                asked.append(signal.SIGTERM)
            if not up.is_set() and time.monotonic() - waiting > patience:
                waiting, patience = time.monotonic(), 60.0
                tell(
                    "not connected yet: is the server running, can it be reached, and is this kit "
                    "one of its federation?"
                    if kind == "client"
                    else f"not ready yet; {state / LOG} says more"
                )
        if asked:
            tell("stopping")
            return 0
        reader.join(2)
        reason = _last_error(root)
        raise FederationError(f"FLARE ended by itself{reason}; {state / LOG} says more")
    finally:
        end_trees(child.pid)
        child.wait()
        reader.join(2)
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            tell("stopped")


def start_child(kind: str, root: Path, options: list[str], state: Path) -> subprocess.Popen[bytes]:
    """FLARE's program, in a session of its own: Ctrl-C in the terminal is ours to handle."""
    own = {START: secrets.token_hex(8), "PYTHONUNBUFFERED": "1"}
    environment = {**os.environ, **FLARE_VARIABLES, **own}
    with storage_errors(state):
        return subprocess.Popen(
            [sys.executable, "-m", "fedmend.deploy.site", kind, str(root), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=root,
            env=environment,
            start_new_session=True,
        )


def _read(child: subprocess.Popen[bytes], state: Path, tell: Tell) -> None:
    """What the children print: all of it into the log, status lines also to the terminal."""
    stream = child.stdout
    if stream is None:
        return
    complained = False
    for line in stream:
        stamp = datetime.now().isoformat(timespec="seconds")
        try:
            # Opened anew for every line: whoever tidies up a full disk may remove it.
            with storage_errors(state / LOG), (state / LOG).open("ab") as log:
                log.write(f"{stamp} ".encode() + line)
            complained = False
        except StorageError as error:
            # What is not read would stop the children; what it says is still worth hearing.
            if not complained:
                _tell_if_possible(tell, str(error))
            complained = True
        text = line.decode(errors="replace").rstrip()
        if STATUS in text:
            _tell_if_possible(tell, text.partition(STATUS)[2])


def _tell_if_possible(tell: Tell, sentence: str) -> None:
    with contextlib.suppress(OSError):  # the terminal's own disk may be the full one
        tell(sentence)


def _last_error(root: Path) -> str:
    """The last error in FLARE's log, if there is one."""
    try:
        lines = (root / "error_log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.rpartition(" - ")[2] for line in lines if " - ERROR - " in line]
    said = [each for each in said if each and not each.startswith("Traceback")]
    return f" ({said[-1][:200]})" if said else ""


def end_trees(*pids: int) -> None:
    """End processes and all that they started: politely, then not."""
    family = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            family += [root, *root.children(recursive=True)]
    for each in family:
        _signal(each, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=STOP_WITHIN)
    for each in alive:
        _signal(each, signal.SIGKILL)


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
