"""Server, silos, submitter and observer as processes: what works, and what is refused."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedmend.deploy import job_files, kits, session
from fedmend.deploy.deployed import make_plan
from fedmend.deploy.rehearsal import equal
from fedmend.files import plain
from fedmend.methods import METHODS
from fedmend.privacy.policy import POLICY_FILE
from fedmend.runs.record import read_run
from fedmend.runs.train import train
from tests.integration.flare.conftest import (
    PARTITION,
    SETTINGS,
    Federation,
    in_process,
    methods_rows,
    record_of,
    weights_of,
)
from tests.tiny import same_weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # FLARE's own


@pytest.mark.parametrize("method", ["fedavg", "hifgl"])
def test_a_submitted_run_is_the_in_process_one(
    federation: Federation, tmp_path: Path, method: str
) -> None:
    run = tmp_path / "run"
    submitted = federation.submit(method, run, 4)
    assert submitted.finish() == 0, submitted.text
    expected = in_process(method, 4)
    assert same_weights(weights_of(run), expected.weights)
    assert methods_rows(run) == expected.ledger.entries
    record = record_of(run)
    for key in ("method", "settings", "seed", "evaluation", "result", "rounds", "model"):
        assert record[key] == plain(getattr(expected.record, key)), key
    assert "What left each silo" in submitted.text
    # A silo can use what it helped to train, with its own folder of the run.
    silo = federation.stage.state("silo-1") / "runs" / record["engine"]["run"]
    out = tmp_path / "predictions.csv"
    graph = federation.stage.graph("silo-1")
    predicted = federation.command("predict", silo, "--graph", graph, "--out", out)
    assert predicted.finish() == 0, predicted.text
    assert len(out.read_text().splitlines()) == 1 + PARTITION.silos["silo-1"].num_nodes


def test_own_models_stay_at_their_silos(federation: Federation, tmp_path: Path) -> None:
    run = tmp_path / "run"
    submitted = federation.submit("fedper", run, 3)
    assert submitted.finish() == 0, submitted.text
    assert not (run / "weights").exists()
    record, expected = record_of(run), in_process("fedper", 3)
    assert record["silos_with_own_model"] == sorted(expected.own)
    for name, weights in expected.own.items():
        assert equal(federation.stage.own_weights(name, read_run(run).record), weights)
    # Nobody but the silo itself can predict with its model, and it can.
    silo = federation.stage.state("silo-1") / "runs" / record["engine"]["run"]
    graph, out = federation.stage.graph("silo-1"), tmp_path / "predictions.csv"
    predicted = federation.command("predict", silo, "--graph", graph, "--out", out, "--json")
    assert predicted.finish() == 0, predicted.text
    assert out.exists()
    assert f'"test_accuracy": {record["result"]["by_silo"]["silo-1"]["accuracy"]}' in predicted.text
    refused = federation.command("predict", run, "--silo", "silo-1", "--graph", graph)
    assert refused.finish() == 2
    assert "stays at the silo" in refused.text
    # Both sides of the run can be looked at.
    page = tmp_path / "report.html"
    reported = federation.command("report", run, silo, "--out", page)
    assert reported.finish() == 0, reported.text
    assert "silo-1 alone" in page.read_text()
    assert methods_rows(run) == expected.ledger.entries


def test_status_and_an_observers_rights(federation: Federation, tmp_path: Path) -> None:
    kit = federation.stage.kit_folders / kits.OBSERVER
    status = federation.command("status", kit, "--json")
    assert status.finish() == 0, status.text
    assert json.loads(status.lines[-1])["silos"] == ["silo-0", "silo-1", "silo-2"]
    refused = federation.submit("fedavg", tmp_path / "run", 3, kit=kits.OBSERVER)
    assert refused.finish() == 2
    assert "this kit's role may not start runs" in refused.text
    assert "Traceback" not in refused.text


def test_a_silos_policy_is_the_last_word(federation: Federation, tmp_path: Path) -> None:
    policy = federation.stage.kit_folders / "silo-1" / POLICY_FILE
    before = policy.read_text()
    try:
        policy.write_text('refuse_kinds = ["weights"]\n')
        refused = federation.submit("fedavg", tmp_path / "run", 3)
        assert refused.finish() == 2
    finally:
        policy.write_text(before)
    assert "silo-1 takes no part: its policy lets no weights leave" in refused.text
    run = json.loads((tmp_path / "run" / "deployment.json").read_text())["run"]
    assert not list((federation.stage.state("server") / "runs" / run).glob("checkpoint*"))


def test_a_job_brings_no_code_of_a_plugin(federation: Federation, tmp_path: Path) -> None:
    """Who has not installed a method, nor named its file, refuses it by name."""
    file = tmp_path / "held.py"
    file.write_text(
        "from fedmend import register\n"
        "from fedmend.methods import Method\n"
        "register('method', 'held', Method('held', 'FedProx that pulls hard',"
        " 'fedmend.methods.fedprox', 'FedProxSettings', fixed={'mu': 1.0}))\n"
    )
    plugin = ("--plugin", str(file))
    refused = federation.submit("held", tmp_path / "first", 2, *plugin)
    assert refused.finish() == 2
    assert "unknown method 'held'" in refused.text
    assert "Traceback" not in refused.text
    environment = federation.stage.environment
    assert environment is not None
    try:
        federation.stage.environment = {**environment, "FEDMEND_PLUGINS": str(file)}
        federation.kill("server")
        federation.revive("server")
        for silo in federation.stage.silos:  # they come back by themselves
            federation.stage.wait_for("server", f"silo {silo} is connected", 60)
        refused = federation.submit("held", tmp_path / "second", 2, *plugin)
        assert refused.finish() == 2
        assert "takes no part: it has no method 'held': install it at the silo" in refused.text
        for silo in federation.stage.silos:
            federation.kill(silo)
        federation.revive()
        accepted = federation.submit("held", tmp_path / "third", 2, *plugin)
        assert accepted.finish() == 0, accepted.text
    finally:
        federation.stage.environment = environment
        for party in list(federation.stage.processes):
            federation.kill(party)
    mode = METHODS["fedprox"].deployed_evaluation
    expected = train("fedprox", PARTITION, evaluation=mode, rounds=2, mu=1.0, **SETTINGS)
    assert same_weights(weights_of(tmp_path / "third"), expected.weights)


def test_a_message_the_method_does_not_declare(federation: Federation, tmp_path: Path) -> None:
    federation.order("silo-1", {"kind": "undeclared", "step": "train", "round": 2})
    refused = federation.submit("fedavg", tmp_path / "run", 3)
    assert refused.finish() == 2
    assert "silo-1 sent something else than a reply" in refused.text
    assert "fedavg.Validation is not allowed here" in refused.text


def test_an_oversized_message(federation: Federation, tmp_path: Path) -> None:
    refused = federation.submit(
        "fedavg", tmp_path / "run", 3, "--set", "hidden=64", "--largest-message", "2000"
    )
    assert refused.finish() == 2
    assert "above the limit of 2000" in refused.text


# Certificates


def first_bytes(port: int, context: ssl.SSLContext) -> bytes:
    """What a server says to somebody who starts to speak gRPC; nothing if it hangs up."""
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as stream,
        ):
            stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return stream.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_without_a_certificate_nobody_gets_in(federation: Federation) -> None:
    kit = federation.stage.submitter
    context = ssl.create_default_context(cafile=str(kit.file(kits.ROOT)))
    assert first_bytes(kit.port, context) == b""
    context.load_cert_chain(kit.file(kits.CERTIFICATE), kit.file(kits.KEY))
    assert first_bytes(kit.port, context) != b""  # the certificate is what made the difference


def connected(federation: Federation) -> list[str]:
    status = federation.command("status", federation.stage.kit_folders / kits.OBSERVER, "--json")
    assert status.finish() == 0, status.text
    found: list[str] = json.loads(status.lines[-1])["silos"]
    return found


def test_strangers(federation: Federation, tmp_path: Path) -> None:
    """Another authority's certificate, and one silo's certificate under another's name."""
    stage = federation.stage
    others = tmp_path / "others"
    kits.provision(others, stage.submitter.address, ["intruder"])
    shutil.copytree(stage.kit_folders / "silo-0", others / "impostor")
    about = json.loads((others / "impostor" / kits.KIT).read_text())
    (others / "impostor" / kits.KIT).write_text(json.dumps({**about, "name": "impostor"}))
    names = ("intruder", "impostor")
    try:
        for name in names:
            shutil.copytree(stage.graph("silo-0"), stage.graph(name))
            stage.start(name, others / name)
        for name in names:
            stage.wait_for(name, "not connected yet", 60)
        assert connected(federation) == ["silo-0", "silo-1", "silo-2"]
        for name in names:
            assert "connected to the server" not in stage.printed(name)
    finally:
        stage.stop(*names)
    log = (stage.state(kits.SERVER) / "flare" / "log.txt").read_text()
    assert "authenticated as 'silo-0' but claimed endpoint 'impostor'" in log
    assert "intruder" not in log  # it never got beyond the handshake
    # Nor can the other authority's submitter say anything.
    refused = federation.command("status", others / kits.SUBMITTER)
    assert refused.finish() == 2
    assert "cannot connect to the server" in refused.text


# Jobs that a modified submitter sends


def raw_job(federation: Federation, change: Callable[[Path], None]) -> str:
    """Submit a job as a modified submitter would; what the server says."""
    kit = federation.stage.submitter
    plan = make_plan("fedavg", SETTINGS, list(federation.stage.silos), run="f" * 16)
    with tempfile.TemporaryDirectory() as folder, session.session(kit) as opened:
        path = job_files.write_job(Path(folder), plan, list(federation.stage.silos))
        change(path)
        try:
            return f"accepted as {opened.submit_job(str(path))}"
        except Exception as error:  # noqa: BLE001  # FLARE raises many kinds
            return str(error)


def test_jobs_that_ship_code_or_name_other_classes(federation: Federation, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    stored = tmp_path / "stored"

    def with_code(path: Path) -> None:
        folder = path / "silo" / "custom"
        folder.mkdir()
        (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")

    def with_component(app: str, **component: Any) -> Callable[[Path], None]:
        def change(path: Path) -> None:
            (config,) = (path / app / "config").iterdir()
            job = json.loads(config.read_text())
            job["components"].append({"id": "x", **component})
            config.write_text(json.dumps(job))

        return change

    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    for change in (
        with_code,
        with_component("silo", path="subprocess.Popen", args={"args": ["touch", str(marker)]}),
        # One of the classes that a server is made of: it made folders where a job told it to.
        with_component("server", path=storage, args={"root_dir": str(stored), "uri_root": "/"}),
    ):
        outcome = raw_job(federation, change)
        assert "this is no job of fedmend's" in outcome, outcome
    assert not marker.exists()
    assert not stored.exists()


@pytest.mark.parametrize("app", ["", "server", "silo"])
def test_configurations_that_read_the_machine(
    federation: Federation, tmp_path: Path, app: str
) -> None:
    """FLARE prefers another format than JSON, one that includes files, variables and URLs."""
    asked: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def change(path: Path) -> None:
            folder = path / app / "config" if app else path
            (config,) = (each for each in folder.iterdir() if each.is_file())
            text = config.read_text()[1:-1].rstrip().rstrip("}")
            include = f'include url("http://127.0.0.1:{server.server_port}/{app}")'
            config.unlink()
            config.with_suffix(".conf").write_text(f"{text}\n, leak: ${{HOME}}\n{include}\n")

        try:
            outcome = raw_job(federation, change)
        finally:
            server.shutdown()
    assert "this is no job of fedmend's" in outcome, outcome
    assert not asked


def test_a_removed_silo_does_not_get_in_any_more(federation: Federation) -> None:
    """The last test of this file: silo-2 stays out."""
    stage = federation.stage
    (stage.kit_folders / kits.SERVER / kits.REMOVED).write_text("silo-2\n")
    stage.stop(kits.SERVER)
    federation.revive()
    for name in ("silo-0", "silo-1"):
        stage.wait_for(kits.SERVER, f"silo {name} is connected", 60)
    log, deadline = stage.state("silo-2") / "flare" / "log.txt", time.monotonic() + 60
    while "client_quit" not in log.read_text():  # how FLARE's client tells that it was refused
        assert time.monotonic() < deadline, stage.printed("silo-2")
        time.sleep(0.2)
    assert "not let in: silo-2" in stage.printed(kits.SERVER)
    assert "silo silo-2 is connected" not in stage.printed(kits.SERVER)
    assert connected(federation) == ["silo-0", "silo-1"]
