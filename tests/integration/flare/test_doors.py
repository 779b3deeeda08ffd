"""What a party asks others' processes for, over FLARE, that is none of its business: refused.

Every asker is a real process with real certificates that has been made to send the request itself.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import stat
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmend.deploy import kits, session
from fedmend.deploy.deployed import make_plan
from fedmend.deploy.job_files import SILO_CONFIG, job_files
from tests.integration.flare.conftest import SETTINGS, Federation, in_process, weights_of
from tests.tiny import same_weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # FLARE's own

PACE = {"kind": "slow", "step": "train", "seconds": 0.2}
ROUNDS = 70
SECONDS = 3
"""How long an asker waits for an answer that should not come."""

ADMIN = {"channel": "admin", "topic": "admin"}
"""How FLARE's server speaks to its clients."""


def ask(federation: Federation, cell: str, target: str, **order: Any) -> dict[str, Any]:
    """What comes back when the process that has this cell asks another one."""
    orders = federation.orders
    answer = orders / f"answer-{cell}.json"
    answer.unlink(missing_ok=True)
    order = {"target": target, "seconds": SECONDS, **order}
    (orders / "being-written").write_text(json.dumps(order))
    (orders / "being-written").rename(orders / f"ask-{cell}.json")
    deadline = time.monotonic() + 10 * SECONDS
    while not answer.exists():
        assert time.monotonic() < deadline, f"{cell} never asked"
        time.sleep(0.1)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def secret_of(federation: Federation, silo: str) -> tuple[Path, str]:
    """A file of a silo that is nobody else's business, and a piece of it."""
    path = federation.stage.kit_folders / silo / kits.KEY
    return path, path.read_text()[100:160]


def audit(federation: Federation, party: str) -> list[str]:
    path = federation.stage.state(party) / "audit.txt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text().splitlines()


def refusals(federation: Federation, party: str) -> list[str]:
    """What a party refused, which stands in its terminal and in its audit file."""
    lines = [line for line in audit(federation, party) if " refused " in line]
    printed = federation.stage.printed(party)
    assert all(line.partition(" refused ")[2] in printed for line in lines)
    return lines


@pytest.mark.parametrize("asker", ["silo-0", kits.SERVER])
def test_nobody_reads_a_silos_files(federation: Federation, asker: str) -> None:
    """Neither another silo, whose request an honest server passes on, nor the server itself."""
    path, piece = secret_of(federation, "silo-1")
    for command in (f"cat {path}", f"grep - {path}", f"ls {path.parent}"):
        answer = ask(federation, asker, "silo-1", **ADMIN, request="sys.shell", body=command)
        assert piece not in answer["said"]
        assert kits.KEY not in answer["said"]
    where = "silo-1" if asker == kits.SERVER else kits.SERVER
    wanted = "sys.shell" if asker == kits.SERVER else "admin"
    assert any(asker in line and wanted in line for line in refusals(federation, where))


@pytest.mark.parametrize(
    "request_of",
    ["sys.report_env", "sys.info", "train.delete_run", "train.shutdown", "train.restart"],
)
def test_a_server_gets_nothing_but_what_a_run_needs(
    federation: Federation, request_of: str
) -> None:
    about = {"job_id": "../../../kits/silo-1"}
    ask(federation, kits.SERVER, "silo-1", **ADMIN, request=request_of, body="", about=about)
    assert any(request_of in line for line in refusals(federation, "silo-1"))
    assert federation.stage.processes["silo-1"].poll() is None
    assert (federation.stage.kit_folders / "silo-1" / kits.KEY).exists()


def test_an_observer_is_no_silo(federation: Federation, tmp_path: Path) -> None:
    """A certificate that says observer, in a kit that says silo."""
    stage = federation.stage
    path, piece = secret_of(federation, "silo-1")
    for person in (kits.OBSERVER, kits.SUBMITTER):
        kit = tmp_path / person
        shutil.copytree(stage.kit_folders / person, kit)
        about = json.loads((kit / kits.KIT).read_text())
        (kit / kits.KIT).write_text(json.dumps({**about, "role": "silo"}))
        shutil.copy(stage.kit_folders / "silo-0" / "policy.toml", kit)
        shutil.copytree(stage.graph("silo-0"), stage.graph(person))
        try:
            stage.start(person, kit)
            stage.wait_for(person, "not connected yet", 60)
            order = {**ADMIN, "request": "sys.shell", "body": f"cat {path}"}
            assert piece not in ask(federation, person, "silo-1", **order)["said"]
            assert "connected to the server" not in stage.printed(person)
        finally:
            stage.stop(person)
            shutil.rmtree(stage.graph(person))
        assert any(person in line for line in refusals(federation, kits.SERVER))
    status = federation.command("status", stage.kit_folders / kits.SUBMITTER, "--json")
    assert status.finish() == 0, status.text
    assert json.loads(status.lines[-1])["silos"] == list(stage.silos)


def test_a_server_deploys_a_silos_side_of_a_run_and_nothing_else(
    federation: Federation, tmp_path: Path
) -> None:
    """Not code, not into other folders, not components with arguments of its choice."""
    marker, state = tmp_path / "it-ran", federation.stage.state("silo-1")
    before = sorted((state / "flare" / "local").iterdir())
    plan = make_plan("fedavg", SETTINGS, ["silo-1"], run="f" * 16)
    ours = json.dumps(job_files(plan, ["silo-1"])[f"silo/{SILO_CONFIG}"])
    code = f"open({str(marker)!r}, 'w').close()\n"
    job = str(uuid.uuid4())
    for name, files in (
        (job, {SILO_CONFIG: ours, "custom/fedmend/__init__.py": code}),
        (job, {SILO_CONFIG: ours.replace("fedmend.deploy.job.SiloJob", "os.getcwd")}),
        (job, {SILO_CONFIG: ours, "config/config_fed_client.conf": "a = ${HOME}"}),
        ("local", {SILO_CONFIG: ours}),
        ("../flare/local", {SILO_CONFIG: ours}),
    ):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        ready = {"job_id": name, "job_meta": {"job_id": name, "submitter_name": "submitter"}}
        packed = base64.b64encode(data.getvalue()).decode()
        for request, body in (("train.deploy", {"packed": packed}), ("train.start_job", {})):
            order = {**ADMIN, "request": request, **body, "body": {}, "about": ready}
            answer = ask(federation, kits.SERVER, "silo-1", **order)
            # Nothing was deployed that could be started.
            assert "refused" in answer["said"] or "NVFLARE_ERROR" in answer["said"], answer
    assert not marker.exists()
    assert sorted((state / "flare" / "local").iterdir()) == before
    assert not (state / "flare" / job).exists()


def test_people_get_what_our_commands_ask_for_and_nothing_else(
    federation: Federation, tmp_path: Path
) -> None:
    """By FLARE's own console, as an observer; some of it takes no right at all there."""
    kit = kits.read_kit(federation.stage.kit_folders / kits.OBSERVER)
    asked = ["cells", "list_sessions", "sys_info server", "shutdown all", "delete_job x"]
    with session.session(kit) as opened:
        for command in asked:
            answer = opened.api.server_execute(command)
            assert "refused" in str(answer), (command, answer)
    lines = refusals(federation, kits.SERVER)
    for command in asked:
        assert any(f"{kits.OBSERVER}: {command.split()[0]}" in line for line in lines)
    refused = federation.submit("fedavg", tmp_path / "run", 3, kit=kits.OBSERVER)
    assert refused.finish() == 2
    lines = audit(federation, kits.SERVER)
    assert any("refused observer: submit_job" in line for line in lines)
    assert not any("granted observer" in line for line in lines)
    for party in (kits.SERVER, *federation.stage.silos):
        assert federation.stage.processes[party].poll() is None


def test_a_kit_that_is_used_twice(federation: Federation, tmp_path: Path) -> None:
    """The second one is refused, both and `status` say so, a run goes on; then they may change."""
    stage = federation.stage
    shutil.copytree(stage.kit_folders / "silo-2", tmp_path / "copy")
    shutil.copytree(stage.graph("silo-2"), stage.graph("twin"))
    try:
        stage.start("twin", tmp_path / "copy")
        stage.wait_for("twin", "the server refuses: this kit is in use by another process", 60)
        stage.wait_for("silo-2", "the server says: this kit is used a second time, from ", 20)
        assert "connected to the server" not in stage.printed("twin")
        status = federation.command("status", stage.kit_folders / kits.OBSERVER)
        assert status.finish() == 0, status.text
        assert "The kit of silo-2 was used a second time, from " in status.text
        run = tmp_path / "run"
        submitted = federation.submit("fedavg", run, 4)
        assert submitted.finish() == 0, submitted.text
        assert same_weights(weights_of(run), in_process("fedavg", 4).weights)
        assert any("silo-2: to take part from" in each for each in refusals(federation, "server"))
        stage.stop("silo-2")
        stage.wait_for("twin", "ready", 60)
    finally:
        stage.stop("twin")
        shutil.rmtree(stage.graph("twin"))


def test_a_silo_that_speaks_in_the_servers_name(federation: Federation) -> None:
    order = {**ADMIN, "request": "train.shutdown", "body": "", "pretend": "server"}
    ask(federation, "silo-0", "silo-1", **order)
    time.sleep(1)
    assert federation.stage.processes["silo-1"].poll() is None
    assert any("silo-0" in line for line in refusals(federation, kits.SERVER))


def test_nothing_listens_where_others_of_the_machine_could_come_in(federation: Federation) -> None:
    """Only the server's one port; between a party's own processes, sockets of its own user."""
    listening = {
        party: [
            each.laddr.port
            for process in federation.family(party)
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        for party in (kits.SERVER, *federation.stage.silos)
    }
    port = federation.stage.submitter.port
    assert listening == {kits.SERVER: [port], "silo-0": [], "silo-1": [], "silo-2": []}
    for party in listening:
        sockets = [p for p in federation.stage.state(party).rglob("*") if p.is_socket()]
        assert sockets
        for path in (*sockets, federation.stage.state(party)):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
            assert path.stat().st_uid == os.getuid()


def test_a_runs_processes_answer_only_their_own_run(federation: Federation, tmp_path: Path) -> None:
    """All that could end or read a run, asked from everywhere; the run notices nothing."""
    stage = federation.stage
    for silo in stage.silos:
        federation.order(silo, PACE)
    run = tmp_path / "run"
    submitted = federation.submit("fedavg", run, ROUNDS)
    submitted.wait_for("silos are starting", 60)
    for silo in stage.silos:
        stage.wait_for(silo, "training, round 1;", 60)
    (job,) = (
        path.name
        for path in (stage.state("silo-0") / "flare").iterdir()
        if _is_uuid(path.name) and _is_running(federation, path.name)
    )
    path, piece = secret_of(federation, "silo-1")
    shell = {**ADMIN, "request": "sys.shell", "body": f"cat {path}"}
    abort = {**ADMIN, "request": "train.abort", "body": "", "about": {"job_id": job}}
    command = {"channel": "server_command", "payload": {}}
    ended = {"channel": "server_parent_listener", "topic": "update_run_status"}
    status = {"payload": {"execution_error": True}, "headers": {"job_id": job}}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (f"silo-0.{job}", "silo-1", shell),
        (f"silo-0.{job}", "silo-1", {**abort, "pretend": "server"}),
        (f"server.{job}", "silo-1", shell),
        (f"server.{job}", "silo-1", abort),
        (f"silo-0.{job}", f"silo-1.{job}", {"channel": "client_command", "topic": "abort"}),
        (f"server.{job}", f"silo-1.{job}", {"channel": "client_command", "topic": "abort"}),
        (kits.SERVER, f"silo-1.{job}", {"channel": "client_command", "topic": "abort"}),
        ("silo-0", f"silo-1.{job}", {"channel": "client_command", "topic": "abort"}),
        (f"silo-0.{job}", f"server.{job}", {**command, "topic": "abort"}),
        ("silo-0", f"server.{job}", {**command, "topic": "abort"}),
        (f"silo-0.{job}", f"server.{job}", {**command, "topic": "app_command"}),
        ("silo-0", kits.SERVER, {**ended, **status}),
        (f"silo-0.{job}", kits.SERVER, {**ended, **status}),
        ("silo-0", "silo-1", {"channel": "cellnet.channel", "topic": "stop_cell"}),
        (kits.SERVER, "silo-1", {"channel": "cellnet.channel", "topic": "bulk", "payload": []}),
    ]
    for asker, target, order in asked:
        answer = ask(federation, asker, target, **{**order, "seconds": 0.5})
        assert piece not in answer["said"], (asker, target)
        assert answer["code"] != "ok" or "refused" in answer["said"], (asker, target, answer)
    assert submitted.finish() == 0, submitted.text
    assert same_weights(weights_of(run), in_process("fedavg", ROUNDS).weights)
    granted = [line for line in audit(federation, "silo-1") if " granted " in line]
    assert any("submitter" in line and "train.start_job" in line for line in granted)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _is_running(federation: Federation, job: str) -> bool:
    return any(job in " ".join(process.cmdline()) for process in federation.family("silo-0"))
