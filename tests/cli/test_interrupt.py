"""Ctrl-C on a real process: saved after the round, and resumed to the identical result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import COMMAND

RUN = [COMMAND, "run", "fedavg", "--silos", "3", "--dataset", "csbm:nodes=1500"]
ROUNDS = ["--rounds", "30", "--checkpoint-every", "1", "--set", "dropout=0.3", "--set", "hidden=16"]


def start(folder: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *ROUNDS, "--out", str(folder), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    process = start(folder)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return folder


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_resumed_is_the_same(tmp_path: Path, whole: Path, stop: signal.Signals) -> None:
    process = start(tmp_path / "part")
    try:
        wait_for(tmp_path / "part" / "checkpoint.safetensors", process)
        process.send_signal(stop)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    if stop == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130, (process.returncode, err)
        assert "--resume" in err
        assert "Traceback" not in err
    assert not (tmp_path / "part" / "record.json").exists()

    resumed = start(tmp_path / "part", "--resume")
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    records = [json.loads((n / "record.json").read_text()) for n in (whole, tmp_path / "part")]
    for record in records:
        del record["measured"]
    assert records[0] == records[1]
    first, second = (load_file(n / "weights.safetensors") for n in (whole, tmp_path / "part"))
    assert all(first[key].equal(second[key]) for key in first)
    ledgers = [(n / "ledger.csv").read_text() for n in (whole, tmp_path / "part")]
    assert ledgers[0] == ledgers[1]
