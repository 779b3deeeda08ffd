"""Who may ask whom for what, and how it is written down; with processes: integration/flare."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode

from fedmend.deploy.audit import AUDIT, Audit
from fedmend.deploy.doors import _is_wanted, is_job
from fedmend.deploy.sockets import SCHEME, OwnSockets

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # FLARE's own

JOB, OTHER = "5f0c6d1e-0000-4000-8000-00000000000a", "5f0c6d1e-0000-4000-8000-00000000000b"
INSIDE, OUTSIDE = True, False

WANTED = [
    ("server", "north", OUTSIDE, "north", "server", "task register"),
    ("north", "server", OUTSIDE, "server", "north", "admin admin"),
    ("server", f"north.{JOB}", OUTSIDE, f"north.{JOB}", f"server.{JOB}", "server_command get_task"),
    (f"server.{JOB}", "server", INSIDE, f"north.{JOB}", f"server.{JOB}", "server_command get_task"),
    (f"north.{JOB}", "server", OUTSIDE, f"server.{JOB}", f"north.{JOB}", "collab call"),
    # Where the run has no connection of its own to the server yet.
    ("north", "server", OUTSIDE, f"server.{JOB}", f"north.{JOB}", "collab call"),
    ("north", f"north.{JOB}", INSIDE, f"north.{JOB}", f"server.{JOB}", "server_command get_task"),
    ("north", f"north.{JOB}", INSIDE, f"north.{JOB}", "north", "admin train.notify_job_status"),
    ("server", "_admin_x", OUTSIDE, "_admin_x", "server", "hci_channel command"),
]


@pytest.mark.parametrize("message", WANTED)
def test_what_a_run_needs_comes_in_and_nothing_else(
    message: tuple[str, str, bool, str, str, str],
) -> None:
    own, via, inside, origin, target, purpose = message
    assert _is_wanted(*message, False)
    assert _is_wanted(own, via, inside, origin, target, "", True)  # how a transport stands
    assert not _is_wanted(own, via, inside, origin, target, "admin sys.shell", False)
    assert not _is_wanted(own, via, not inside, origin, target, purpose, False)
    for liar in ("server", "south", f"south.{JOB}", f"{via}.x", f"server.{OTHER}"):
        # A run of the server hears all silos, by way of a parent that has looked.
        if liar not in (origin, f"south.{JOB}" if via == "server" and inside else ""):
            assert not _is_wanted(own, via, inside, liar, target, purpose, False), liar


@pytest.mark.parametrize(
    "message",
    [
        ("server", "south", OUTSIDE, "south", "north", "admin admin"),
        ("server", "south", OUTSIDE, "south", f"north.{JOB}", "client_command abort"),
        ("server", f"south.{JOB}", OUTSIDE, f"south.{JOB}", f"north.{JOB}", "collab call"),
        ("server", f"south.{OTHER}", OUTSIDE, f"south.{OTHER}", f"server.{JOB}", "collab call"),
        ("server", "south", OUTSIDE, "south", f"server.{JOB}", "server_command abort"),
        ("server", f"server.{JOB}", OUTSIDE, f"server.{JOB}", "server", "task register"),
        ("server", "observer", OUTSIDE, "observer", "server", "task register"),
        ("server", "Submitter", OUTSIDE, "Submitter", "server", "task register"),
        ("server", "_admin_x", OUTSIDE, "_admin_x", "north", "admin admin"),
        ("north", "south", OUTSIDE, "south", "north", "admin admin"),
        ("north", f"north.{JOB}", INSIDE, f"north.{JOB}", "north", "admin admin"),
        ("north", "server", OUTSIDE, f"server.{JOB}", "north", "admin admin"),
        ("north", "server", OUTSIDE, "server", "south", "admin admin"),
        (f"north.{JOB}", "server", OUTSIDE, "server", f"north.{JOB}", "client_command abort"),
        ("north", "server", OUTSIDE, "server", "north", "cellnet.channel bulk"),
    ],
)
def test_what_nobody_may_ask(message: tuple[str, str, bool, str, str, str]) -> None:
    assert not _is_wanted(*message, False)


def test_a_jobs_name_is_no_path() -> None:
    assert is_job(JOB)
    for text in (f"../{JOB}", JOB.upper(), f"{JOB}\n", "", None, 7, JOB.replace("-", "")):
        assert not is_job(text)


def test_an_audit_is_its_owners_and_cannot_be_flooded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = Audit(tmp_path)
    audit.granted("server for submitter", "train.start_job")
    for _ in range(250):
        audit.refused("south", "sys.shell \x1b[2J of\nnorth")
    for number in range(2000):
        audit.refused("south", f"request {number}")
    path = tmp_path / AUDIT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = path.read_text().splitlines()
    assert len(lines) < 1100
    assert [line.split(maxsplit=1)[1] for line in lines[:4]] == [
        "granted server for submitter: train.start_job",
        "refused south: sys.shell ?[2J of north",
        "refused south: sys.shell ?[2J of north (10 times)",
        "refused south: sys.shell ?[2J of north (100 times)",
    ]
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("refused")[2] for line in printed] == [
        line.partition("refused")[2] for line in lines[1:]
    ]


def test_own_sockets_lie_in_folders_with_long_names(tmp_path: Path) -> None:
    """And with such that do not fit into an address as they are."""
    folder = tmp_path / ("a folder #%?" * 12)
    folder.mkdir(parents=True)
    path = folder / "door"
    url, again = OwnSockets.get_urls(SCHEME, {"path": str(path)})
    assert url == again
    assert " " not in url
    heard: list[object] = []

    class Monitor:
        def state_change(self, connection: object) -> None:
            heard.append(connection)

    driver = OwnSockets()
    driver.register_conn_monitor(Monitor())
    params = communicator.parse_url(url)
    connector = ConnectorInfo("x", driver, params, Mode.PASSIVE, 0, 0, False, threading.Event())
    before = Path.cwd()
    os.chdir(folder)
    try:
        listening = threading.Thread(target=driver.listen, args=(connector,), daemon=True)
        listening.start()
        while not (path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o600):
            assert listening.is_alive()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("door")
            while not heard:
                assert listening.is_alive()
    finally:
        os.chdir(before)
        driver.shutdown()
        listening.join(10)
    assert not listening.is_alive()
