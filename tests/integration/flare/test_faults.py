"""What goes wrong in reality, with real processes: killed, slow, broken, full, restarted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmend.deploy import kits
from fedmend.privacy.policy import POLICY_FILE
from tests.integration.flare.conftest import (
    Federation,
    in_process,
    methods_rows,
    record_of,
    weights_of,
)
from tests.tiny import same_weights

PACE = {"kind": "slow", "step": "train", "seconds": 0.2}
"""Slow enough that something can happen in the middle of a run."""

ROUNDS = 20
"""At that pace a few seconds of training."""

SECRET = "patient 4711, row 17"


def slowly(federation: Federation) -> None:
    for silo in federation.stage.silos:
        federation.order(silo, PACE)


def test_killed_silos_are_lost_and_the_rest_go_on(federation: Federation, tmp_path: Path) -> None:
    """Of silo-1 only the run's process, of silo-2 all that it has."""
    slowly(federation)
    run = tmp_path / "run"
    submitted = federation.submit("fedavg", run, ROUNDS)
    submitted.wait_for("silos are starting", 60)
    federation.stage.wait_for("silo-1", "training, round 1", 60)
    newest(federation, "silo-1").send_signal(signal.SIGKILL)
    submitted.wait_for("silo-1 was lost in round", 10)
    federation.kill("silo-2")
    submitted.wait_for("silo-2 was lost in round", 10)
    assert submitted.finish() == 0, submitted.text
    record = record_of(run)
    assert sorted(record["result"]["by_silo"]) == ["silo-0"]
    assert {entry.silo for entry in methods_rows(run) if entry.round == ROUNDS} == {"silo-0"}
    federation.stage.stop("silo-1")  # so that it is started anew for the next test


def newest(federation: Federation, party: str) -> psutil.Process:
    """The process of a party's run: FLARE's own program started it."""
    return max(federation.family(party), key=psutil.Process.create_time)


def test_a_run_whose_process_died_says_why_and_what_to_do(
    federation: Federation, tmp_path: Path
) -> None:
    """And `status` says what became of runs: of it, of one that could not start, of others."""
    slowly(federation)
    died, refused, done = (tmp_path / name for name in ("died", "refused", "done"))
    submitted = federation.submit("fedavg", died, ROUNDS)
    submitted.wait_for("silos are starting", 60)
    federation.stage.wait_for("silo-1", "training, round 1", 60)
    newest(federation, kits.SERVER).send_signal(signal.SIGKILL)
    assert submitted.finish() == 2
    assert "the run's process at the server ended before the run did" in submitted.text
    assert "--resume" in submitted.text
    assert "OK" not in submitted.text
    federation.calm()
    policy = federation.stage.kit_folders / "silo-1" / POLICY_FILE
    before = policy.read_text()
    try:
        policy.write_text('refuse_kinds = ["weights"]\n')
        assert federation.submit("fedavg", refused, 2).finish() == 2
    finally:
        policy.write_text(before)
    assert federation.submit("fedavg", done, 2).finish() == 0
    status = federation.command("status", federation.stage.kit_folders / kits.OBSERVER, "--json")
    assert status.finish() == 0, status.text
    found = {each["name"]: each["status"] for each in json.loads(status.lines[-1])["jobs"]}

    def became(run: Path) -> str:
        name = json.loads((run / "deployment.json").read_text())["run"]
        return str(found[f"fedavg-{name}"])

    assert became(done) == "finished"
    assert became(refused).startswith("failed: silo-1 takes no part: its policy lets no weights")
    assert became(died).startswith("ended before its run did")


@pytest.fixture(scope="module")
def broken(shared: Federation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run with two faults: silo-1 raises in round 2, silo-2 is too slow in round 4."""
    run = tmp_path_factory.mktemp("broken") / "run"
    shared.revive()
    shared.order(
        "silo-1", {"kind": "exception", "step": "train", "round": 2, "last": 2, "text": SECRET}
    )
    shared.order("silo-2", {"kind": "slow", "step": "train", "round": 4, "last": 4, "seconds": 4})
    submitted = shared.submit("fedavg", run, 6, "--timeout", "2")
    code = submitted.finish()
    shared.calm()
    assert code == 0, submitted.text
    return {"run": run, "text": submitted.text, "record": record_of(run)}


def test_an_exception_in_a_silo_stays_there(shared: Federation, broken: dict[str, Any]) -> None:
    said = "silo-1 was lost in round 2 of training: ValueError in step train: see its log"
    assert said in broken["record"]["said"]
    answered = {e.round for e in methods_rows(broken["run"]) if e.silo == "silo-1"}
    assert {1, 3, 6} <= answered
    server = shared.stage.state(kits.SERVER)
    for path in [broken["run"] / "record.json", *server.rglob("*.txt"), *server.rglob("*.json")]:
        assert SECRET not in path.read_text(errors="replace"), path
    assert SECRET not in broken["text"] + shared.stage.printed(kits.SERVER)
    assert SECRET in shared.stage.printed("silo-1")


def test_a_step_that_takes_too_long(broken: dict[str, Any]) -> None:
    said = "silo-2 was lost in round 4 of training: no answer within 2 s"
    assert said in broken["record"]["said"]
    up = {e.round for e in methods_rows(broken["run"]) if (e.silo, e.direction) == ("silo-2", "up")}
    assert 3 in up
    assert 4 not in up


def test_a_killed_server_and_a_restarted_silo_go_on_to_the_same_weights(
    federation: Federation, tmp_path: Path
) -> None:
    slowly(federation)
    run = tmp_path / "run"
    submitted = federation.submit("fedavg", run, ROUNDS, "--checkpoint-every", "1")
    submitted.wait_for("silos are starting", 60)
    identity = json.loads((run / "deployment.json").read_text())["run"]
    at_server = federation.stage.state(kits.SERVER) / "runs" / identity
    wait_for_file(federation, at_server, "checkpoint.safetensors")
    federation.kill(kits.SERVER)
    federation.kill("silo-2")
    assert submitted.finish() == 2
    assert "--resume" in submitted.text
    assert not (run / "record.json").exists()
    federation.revive()
    for silo in ("silo-0", "silo-1"):  # they come back by themselves
        federation.stage.wait_for(kits.SERVER, f"silo {silo} is connected", 60)
    federation.calm()
    resumed = federation.submit(
        "fedavg", run, ROUNDS, "--checkpoint-every", "1", "--resume", str(run)
    )
    assert resumed.finish() == 0, resumed.text
    expected = in_process("fedavg", ROUNDS)
    assert same_weights(weights_of(run), expected.weights)
    assert methods_rows(run) == expected.ledger.entries
    assert record_of(run)["said"] == []


def test_a_server_that_was_held_up_asks_again(federation: Federation, tmp_path: Path) -> None:
    """No living silo is lost, nor are the same weights."""
    slowly(federation)
    run = tmp_path / "run"
    submitted = federation.submit("fedavg", run, ROUNDS)
    submitted.wait_for("silos are starting", 60)
    federation.stage.wait_for("silo-1", "training, round 1", 60)
    server = federation.family(kits.SERVER)
    for process in server:
        process.suspend()
    time.sleep(HELD_UP)
    for process in server:
        process.resume()
    assert submitted.finish() == 0, submitted.text
    assert record_of(run)["said"] == []
    assert same_weights(weights_of(run), in_process("fedavg", ROUNDS).weights)


HELD_UP = 12.0
"""Seconds; more than a silo may be silent."""


def wait_for_file(federation: Federation, folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not any(folder.glob(pattern)):
        assert time.monotonic() < deadline, federation.stage.printed(kits.SERVER)
        time.sleep(0.05)


def test_full_disks_while_saving_lose_nothing(federation: Federation, tmp_path: Path) -> None:
    """First a silo's, then the server's. The system itself refuses them every further byte."""
    slowly(federation)
    run, every = tmp_path / "run", ("--checkpoint-every", "1")
    first = federation.submit("fedavg", run, ROUNDS, *every)
    first.wait_for("silos are starting", 60)
    identity = json.loads((run / "deployment.json").read_text())["run"]
    at_silo = federation.stage.state("silo-1") / "runs" / identity
    wait_for_file(federation, at_silo, "checkpoint-*.safetensors")
    # All but the command, whose output is no terminal here but a file as well.
    with full_disk(*federation.family("silo-1")[1:]):
        assert first.finish() == 2
    assert any(at_silo.glob("checkpoint-*"))
    assert "silo-1 cannot save its state: its disk is full" in first.text
    assert "cannot write" in federation.stage.printed("silo-1")
    second = federation.submit("fedavg", run, ROUNDS, *every, "--resume", str(run))
    federation.stage.wait_for("silo-1", f"goes on with fedavg (run {identity}", 60)
    # The run's process alone: FLARE's own program, if it cannot write, answers nobody.
    with full_disk(newest(federation, kits.SERVER)):
        assert second.finish() == 2
    assert "cannot write" in second.text
    for submitted in (first, second):
        assert "Traceback" not in submitted.text
    federation.calm()
    third = federation.submit("fedavg", run, ROUNDS, *every, "--resume", str(run))
    assert third.finish() == 0, third.text
    expected = in_process("fedavg", ROUNDS)
    assert same_weights(weights_of(run), expected.weights)
    assert methods_rows(run) == expected.ledger.entries


@contextmanager
def full_disk(*processes: psutil.Process) -> Iterator[None]:
    """No file of these processes can grow any more; then it can again.

    Not a disk that is full, which only root could make, but the same refusal by the system.
    """
    before = {each: each.rlimit(psutil.RLIMIT_FSIZE) for each in processes}
    for process, (_, most) in before.items():
        process.rlimit(psutil.RLIMIT_FSIZE, (1, most))
    try:
        yield
    finally:
        for process, limits in before.items():
            with suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, limits)


def test_ctrl_c_saves_and_resume_goes_on(federation: Federation, tmp_path: Path) -> None:
    slowly(federation)
    run = tmp_path / "run"
    submitted = federation.submit("fedavg", run, ROUNDS)
    submitted.wait_for("silos are starting", 60)
    federation.stage.wait_for("silo-1", "training, round 1", 60)
    submitted.process.send_signal(signal.SIGINT)
    assert submitted.finish() == 130, submitted.text
    assert f"--resume {run}" in submitted.text
    federation.calm()
    resumed = federation.submit("fedavg", run, ROUNDS, "--resume", str(run))
    assert resumed.finish() == 0, resumed.text
    assert same_weights(weights_of(run), in_process("fedavg", ROUNDS).weights)


def test_stopped_parties_leave_no_process_behind(federation: Federation) -> None:
    """SIGKILL ends the command alone; what it started sees that and ends by itself."""
    stop = {"silo-0": signal.SIGTERM, "silo-1": signal.SIGINT, "silo-2": signal.SIGKILL}
    children = [child for silo in stop for child in federation.family(silo)[1:]]
    processes = {silo: federation.stage.processes.pop(silo) for silo in stop}
    for silo, process in processes.items():
        process.send_signal(stop[silo])
    codes = {silo: process.wait(timeout=20) for silo, process in processes.items()}
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert codes == {"silo-0": 0, "silo-1": 0, "silo-2": -signal.SIGKILL}
    for silo in ("silo-0", "silo-1"):
        assert federation.stage.printed(silo).rstrip().endswith("stopped")


def test_a_killed_rehearsal_leaves_no_process_behind(tmp_path: Path) -> None:
    command = ["rehearse", "fedavg", "--dataset", "csbm:nodes=60", "--silos", "1", "--out"]
    rehearsal = subprocess.Popen(
        [sys.executable, "-m", "fedmend.cli.main", *command, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    family = []
    try:
        printed, deadline = tmp_path / "output" / "silo-0.txt", time.monotonic() + 60
        while not (printed.exists() and "ready" in printed.read_text()):
            assert rehearsal.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        family = psutil.Process(rehearsal.pid).children(recursive=True)
        assert len(family) >= 4  # two commands and FLARE's programs
    finally:
        rehearsal.kill()
        rehearsal.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    for process in alive:
        process.kill()
    assert not alive
