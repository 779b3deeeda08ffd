"""A federation of real processes over loopback, shared by the tests of one file."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file
from torch import Tensor

from fedmend.deploy import kits
from fedmend.deploy.processes import end_trees
from fedmend.deploy.rehearsal import Stage, staged
from fedmend.engines.endpoint import of_the_platform
from fedmend.methods import METHODS
from fedmend.privacy.ledger import Entry, Ledger
from fedmend.runs.train import Result, train
from tests.tiny import tiny_partition

PARTITION = tiny_partition()
SETTINGS: dict[str, Any] = {
    "hidden": "8",
    "batch_size": "8",
    "fan_out": "2",
    "lr": "0.01",
    "dropout": "0.2",
}
SABOTEUR = Path(__file__).parent / "saboteur"


def settings_of(method: str) -> dict[str, Any]:
    """Those of the settings that a method has; all of them where it is not one of ours."""
    if method not in METHODS:
        return SETTINGS
    known = {each.name for each in fields(METHODS[method].settings_type)}
    return {name: value for name, value in SETTINGS.items() if name in known}


@cache
def in_process(method: str, rounds: int) -> Result:
    mode = METHODS[method].deployed_evaluation
    return train(method, PARTITION, evaluation=mode, rounds=rounds, **settings_of(method))


@dataclass
class Running:
    """A command that runs, and what it has printed so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _new: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as stream:
                for line in stream:
                    self._new.put(line.rstrip())
        self._new.put(None)

    def wait_for(self, text: str, seconds: float) -> str:
        """The next line with this text; fails if it does not come in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {seconds} s: {self.lines}") from None
            assert line is not None, f"ended without {text!r}: {self.lines}"
            self.lines.append(line)
            if text in line:
                return line

    def finish(self, seconds: float = 120) -> int:
        code = self.process.wait(timeout=seconds)
        while (line := self._new.get(timeout=10)) is not None:
            self.lines.append(line)
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Federation:
    """A stage with a saboteur in every process, and commands to talk to it."""

    def __init__(self, stage: Stage, orders: Path) -> None:
        self.stage, self.orders = stage, orders
        self._running: list[Running] = []

    def order(self, party: str, *orders: dict[str, Any]) -> None:
        (self.orders / f"{party}.json").write_text(json.dumps(orders))

    def calm(self) -> None:
        """No more sabotage, everybody's own policy and graph, all running."""
        for path in self.orders.glob("*.json"):
            path.unlink()
        for running in self._running:
            end_trees(running.process.pid)
        self._running.clear()

    def revive(self, *parties: str) -> None:
        """Start the parties (or all) that do not run."""
        wanted = parties or (kits.SERVER, *self.stage.silos)
        down = [party for party in wanted if party not in self.stage.processes]
        for together in ([kits.SERVER], [party for party in down if party != kits.SERVER]):
            starting = [party for party in together if party in down]
            for party in starting:
                (self.stage.root / "output" / f"{party}.txt").unlink(missing_ok=True)
                self.stage.start(party)
            for party in starting:
                self.stage.wait_for(party, "ready")

    def command(self, *args: str | Path) -> Running:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedmend.cli.main", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
        )
        running = Running(process)
        self._running.append(running)
        return running

    def submit(self, method: str, out: Path, rounds: int, *options: str, kit: str = "") -> Running:
        folder = self.stage.kit_folders / (kit or kits.SUBMITTER)
        given = settings_of(method).items()
        pairs = [part for key, value in given for part in ("--set", f"{key}={value}")]
        where = [] if "--resume" in options else ["--out", str(out)]
        return self.command(
            "submit", folder, method, "--rounds", str(rounds), *pairs, *where, *options
        )

    def family(self, party: str) -> list[psutil.Process]:
        root = psutil.Process(self.stage.processes[party].pid)
        return [root, *root.children(recursive=True)]

    def kill(self, party: str) -> None:
        """SIGKILL to everything a party has running, as a power cut would."""
        for process in self.family(party):
            process.send_signal(signal.SIGKILL)
        self.stage.processes.pop(party).wait()


MakeFederation = Callable[[Path], Iterator[Federation]]


def federate(root: Path) -> Iterator[Federation]:
    orders = root / "orders"
    orders.mkdir()
    path = os.pathsep.join([str(SABOTEUR), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "FEDMEND_SABOTAGE": str(orders)}
    with staged(root, PARTITION, lambda _: None, environment) as stage:
        federation = Federation(stage, orders)
        try:
            yield federation
        finally:
            federation.calm()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    yield from federate(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def federation(shared: Federation) -> Iterator[Federation]:
    """The file's federation: all parties run, nobody misbehaves."""
    shared.revive()
    yield shared
    shared.calm()


def weights_of(run: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(run / "weights.safetensors")
    return found


def record_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "record.json").read_text())
    return found


def methods_rows(run: Path) -> list[Entry]:
    """The ledger's rows that the in-process engine has too."""
    entries = Ledger.from_csv((run / "ledger.csv").read_text()).entries
    return [entry for entry in entries if not of_the_platform(entry)]
