"""A whole deployment on one machine: fresh kits, a process per party, loopback; then a comparison.

Everything is what a real deployment uses, commands included; only the machines are one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedmend.data.folders import write_silo
from fedmend.data.partition import Partition
from fedmend.deploy import kits, submission
from fedmend.deploy.deployed import make_plan
from fedmend.deploy.kits import Kit
from fedmend.deploy.processes import TIED, end_trees
from fedmend.engines.base import Watch
from fedmend.engines.endpoint import of_the_platform
from fedmend.errors import FederationError
from fedmend.files import make_folder
from fedmend.methods import find
from fedmend.privacy.ledger import Ledger
from fedmend.reports.tables import human_bytes
from fedmend.runs import record as records
from fedmend.runs.record import Record
from fedmend.runs.train import Result, train

CONNECT_WITHIN = 120.0


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found."""

    method: str
    silos: int
    same_weights: bool
    same_ledger: bool
    same_scores: bool
    ledger_rows: int
    bytes_up: int
    platform_bytes: int
    accuracy: float | None
    seconds_to_connect: float
    seconds_deployed: float
    seconds_in_process: float
    noise: bool = False
    """Silos hide something with noise, each with its own: no two runs end with the same model."""

    @property
    def same(self) -> bool:
        return self.same_ledger and (self.noise or (self.same_weights and self.same_scores))

    def lines(self) -> list[str]:
        """The result in words."""
        words = {True: "[green]the same[/]", False: "[red]DIFFERENT[/]"}
        weights = f"{words[self.same_weights]} as in-process, bit for bit"
        scores = words[self.same_scores]
        if self.noise:
            weights = "not compared: every silo draws noise of its own"
            scores = "not compared either"
        tested = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        return [
            f"[bold]{self.method}[/], {self.silos} silos and a server as processes of their own, "
            f"mutual TLS over loopback{tested}",
            f"  weights     {weights}",
            f"  ledger      {words[self.same_ledger]}: {self.ledger_rows} rows, "
            f"{human_bytes(self.bytes_up)} up; handshake, checkpoints and test "
            f"{human_bytes(self.platform_bytes)} more",
            f"  test scores {scores}",
            f"  {self.seconds_to_connect:.0f} s until all were connected, then "
            f"{self.seconds_deployed:.1f} s; in-process {self.seconds_in_process:.1f} s",
        ]


def rehearse(
    method: str,
    silos: Partition,
    settings: Mapping[str, Any],
    watch: Watch,
    *,
    seed: int = 0,
    folder: Path | None = None,
    threads: int = 1,
) -> Rehearsal:
    """Deploy `method` on this machine, and compare with the in-process engine's result."""
    make_plan(method, settings, list(silos.names), run="0" * 16)  # refuse early what cannot work
    say = watch.on_sentence or (lambda _: None)
    with ExitStack() as stack:
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="fedmend-rehearsal-")
            root = Path(stack.enter_context(temporary))
        else:
            root = make_folder(folder).resolve()
        started = time.perf_counter()
        stage = stack.enter_context(staged(root, silos, say))
        connected = time.perf_counter()
        record = submission.submit(
            stage.submitter,
            method,
            settings,
            root / "run",
            watch,
            silos=list(silos.names),
            seed=seed,
            threads=threads,
        )
        deployed = time.perf_counter()
        say("the same in-process ...")
        result = train(
            method,
            silos,
            seed=seed,
            evaluation=find(method).deployed_evaluation,
            threads=threads,
            **settings,
        )
        in_process = time.perf_counter()
        return _compared(
            record,
            result,
            root / "run",
            stage,
            (connected - started, deployed - connected, in_process - deployed),
        )


def _compared(
    record: Record,
    result: Result,
    run: Path,
    stage: Stage,
    seconds: tuple[float, float, float],
) -> Rehearsal:
    weights = load_file(run / records.WEIGHTS) if record.shared_model else None
    own = {name: stage.own_weights(name, record) for name in record.silos_with_own_model}
    same = equal(weights, result.weights) and own.keys() == result.own.keys()
    same = same and all(equal(own[name], result.own[name]) for name in own)
    entries = Ledger.from_csv((run / records.LEDGER).read_text()).entries
    rows = [entry for entry in entries if not of_the_platform(entry)]
    scores = result.record.result
    return Rehearsal(
        method=result.method.name,
        silos=len(stage.silos),
        same_weights=same,
        same_ledger=rows == result.ledger.entries,
        same_scores=record.result == scores,
        ledger_rows=len(rows),
        bytes_up=sum(row.bytes for row in rows if row.direction == "up"),
        platform_bytes=sum(each.bytes for each in entries) - sum(each.bytes for each in rows),
        accuracy=None if scores is None else scores.accuracy,
        seconds_to_connect=seconds[0],
        seconds_deployed=seconds[1],
        seconds_in_process=seconds[2],
        noise=any(each.drawn for each in result.record.privacy),
    )


def equal(one: Mapping[str, Tensor] | None, other: Mapping[str, Tensor] | None) -> bool:
    """Whether two models are the same to the bit."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@dataclass
class Stage:
    """A federation on this machine: its kits and its processes."""

    root: Path
    kit_folders: Path
    silos: tuple[str, ...]
    processes: dict[str, subprocess.Popen[bytes]]
    environment: Mapping[str, str] | None = None

    @property
    def submitter(self) -> Kit:
        return kits.read_kit(self.kit_folders / kits.SUBMITTER)

    def state(self, party: str) -> Path:
        return self.root / "state" / party

    def graph(self, silo: str) -> Path:
        return self.root / "graphs" / silo

    def own_weights(self, silo: str, record: Record) -> dict[str, Tensor]:
        """The model that a silo kept to itself: only here, where we are all of them."""
        folder = self.state(silo) / "runs" / str(record.engine.run)
        return load_file(folder / records.OWN_WEIGHTS / f"{silo}.safetensors")

    def start(self, party: str, kit: Path | None = None) -> None:
        """Start a party's command, as its organisation would."""
        kit = kit or self.kit_folders / party
        kind = ["server", kit] if party == kits.SERVER else ["silo", kit, "--graph"]
        graph = [] if party == kits.SERVER else [self.graph(party)]
        command = [*kind, *graph, "--state", self.state(party)]
        output = (make_folder(self.root / "output") / f"{party}.txt").open("ab")
        with output:
            self.processes[party] = subprocess.Popen(
                [sys.executable, "-m", "fedmend.cli.main", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**(self.environment or os.environ), TIED: "1"},
            )

    def stop(self, *parties: str) -> None:
        """End parties' processes, all at once, whatever state they are in."""
        ending = [self.processes.pop(party) for party in parties if party in self.processes]
        end_trees(*(process.pid for process in ending))
        for process in ending:
            process.wait()

    def printed(self, party: str) -> str:
        """What a party's command has printed so far."""
        path = self.root / "output" / f"{party}.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, party: str, text: str, seconds: float = CONNECT_WITHIN) -> None:
        """Wait until a party has printed a text; an error if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while text not in self.printed(party):
            process = self.processes.get(party)
            ended = process is None or process.poll() is not None
            if ended or time.monotonic() > deadline:
                last = self.printed(party).strip().splitlines()[-1:] or ["it printed nothing"]
                why = "ended" if ended else f"was not ready within {seconds:g} s"
                raise FederationError(f"{party} {why}: {last[0]}")
            time.sleep(0.05)


def free_port() -> int:
    """A port of loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def staged(
    root: Path,
    silos: Partition,
    say: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Stage]:
    """Fresh kits, graphs in folders, and every party's process, all connected; ended at the end."""
    names = kits.check_silo_names(silos.names)
    stage = Stage(root, root / "kits", tuple(sorted(names)), {}, environment)
    kits.provision(stage.kit_folders, f"localhost:{free_port()}", names)
    for name in silos.names:
        write_silo(silos, name, stage.graph(name))
    try:
        say(f"starting a server and {len(names)} silos ...")
        stage.start(kits.SERVER)
        stage.wait_for(kits.SERVER, "ready")
        for name in stage.silos:
            stage.start(name)
        for name in stage.silos:
            stage.wait_for(name, "ready")
        yield stage
    finally:
        stage.stop(*stage.processes)
