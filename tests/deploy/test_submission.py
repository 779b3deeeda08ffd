"""What a submitter does, with a stand-in for FLARE's session: notes, refusals, fetching.

Real servers are in tests/integration/flare.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api import api_spec

from fedmend.deploy import submission
from fedmend.deploy.kits import Kit
from fedmend.engines.base import Moment, Watch
from fedmend.errors import FederationError, RefusedError, SettingsError, StorageError, WireError
from fedmend.runs import record as records
from fedmend.runs.record import Record
from fedmend.runs.train import train
from tests.tiny import QUICK, tiny_partition

KIT = Kit(Path(), "submitter", "submitter", "localhost", 1, datetime.now(UTC))
FILES = (records.RECORD, records.WEIGHTS, records.LEDGER)


@dataclass
class Server:
    """A session with a server that has `finished`, a run's folder, to offer for any job."""

    finished: Path
    silos: list[str] = field(default_factory=lambda: ["north", "south"])
    submitted: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    running: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    on_submit: Callable[[], None] = lambda: None
    on_file: Callable[[str], None] = lambda name: None

    def get_system_info(self) -> Any:
        return SimpleNamespace(client_info=[SimpleNamespace(name=name) for name in self.silos])

    def submit_job(self, path: str) -> str:
        self.on_submit()
        self.submitted.append(Path(path).name)
        return "job-1"

    def list_jobs(self, reverse: bool) -> list[dict[str, str]]:
        assert reverse
        return [{"job_id": "job-7", "job_name": self.running}]

    def get_job_meta(self, job: str) -> dict[str, str]:
        return {"status": "RUNNING" if self.running and job else "SUBMITTED"}

    def do_app_command(self, job: str, topic: str, given: dict[str, Any]) -> dict[str, Any]:
        match given["ask"]:
            case "events":
                found = [*self.events, {"event": "finished", "files": list(FILES)}]
                return {"events": found[given["since"] :]}
            case "file":
                self.on_file(given["name"])
                self.fetched.append(given["name"])
                data = (self.finished / given["name"]).read_bytes()
                return {"data": base64.b64encode(data).decode(), "size": len(data)}
        return {"ok": True}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train("fedavg", tiny_partition(), out=folder, evaluation="own-subgraph", **QUICK)
    return folder


@pytest.fixture
def server(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(finished)

    @contextmanager
    def session(kit: Kit) -> Iterator[Server]:
        yield made

    monkeypatch.setattr(submission, "session", session)
    return made


def submit(out: Path, watch: Watch | None = None, **given: Any) -> Record:
    settings = {**QUICK, **given.pop("settings", {})}
    method = given.pop("method", "fedavg")
    return submission.submit(KIT, method, settings, out, watch or Watch(), **given)


def note(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / submission.DEPLOYMENT).read_text())
    return found


# How a run is found again


def test_the_runs_name_is_written_down_before_it_is_submitted(
    server: Server, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []
    server.on_submit = lambda: seen.append(note(tmp_path))
    submit(tmp_path)
    assert seen == [{**note(tmp_path), "job": None}]
    assert note(tmp_path)["job"] == "job-1"
    assert server.submitted == [f"fedmend-{note(tmp_path)['run']}"]


def test_a_folder_that_cannot_be_written_is_found_out_before(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="a part of the path is a file"):
        submit(tmp_path / "file" / "run")
    assert not server.submitted


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_run_that_was_interrupted_while_it_was_submitted(server: Server, tmp_path: Path) -> None:
    server.on_submit = interrupt
    with pytest.raises(KeyboardInterrupt):
        submit(tmp_path)
    assert note(tmp_path)["job"] is None
    with pytest.raises(SettingsError, match="already holds a run: --resume"):
        submit(tmp_path)
    run, server.on_submit = note(tmp_path)["run"], lambda: None
    submit(tmp_path, resume=True)  # it had not arrived: submitted now, under the same name
    assert server.submitted == [f"fedmend-{run}"]
    assert note(tmp_path) == {**note(tmp_path), "run": run, "job": "job-1"}


def test_a_job_that_nobody_wrote_down_is_found_by_its_run(server: Server, tmp_path: Path) -> None:
    server.on_submit = interrupt
    with pytest.raises(KeyboardInterrupt):
        submit(tmp_path)
    server.running = f"fedavg-{note(tmp_path)['run']}"  # it had arrived after all
    submit(tmp_path, resume=True)
    assert not server.submitted


def test_a_refused_submitter_leaves_the_folder_free(server: Server, tmp_path: Path) -> None:
    def refuse() -> None:
        raise api_spec.AuthorizationError("no")

    server.on_submit = refuse
    for _ in range(2):
        with pytest.raises(RefusedError, match="this kit's role may not start runs"):
            submit(tmp_path)


def test_a_job_that_flare_refuses_is_one_line(server: Server, tmp_path: Path) -> None:
    def refuse() -> None:
        raise api_spec.InvalidJobDefinition("no such\n\x1b[31mthing")

    server.on_submit = refuse
    with pytest.raises(FederationError) as why:
        submit(tmp_path)
    said = "cannot start runs: FLARE says InvalidJobDefinition: no such ?[31mthing"
    assert str(why.value) == said


# What is asked for


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seed": 1}, "seed was 0, now it is 1"),
        ({"settings": {"hidden": 9}}, "hidden was 8, now it is 9"),
        ({"method": "fedprox"}, "method was fedavg, now it is fedprox;"),
        ({"silos": ["north"]}, r"silos was \['north', 'south'\], now it is \['north'\]"),
    ],
)
def test_another_run_is_not_gone_on_with(
    server: Server, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    submit(tmp_path)
    before = note(tmp_path)
    with pytest.raises(SettingsError, match=says):
        submit(tmp_path, resume=True, **given)
    assert note(tmp_path) == before
    assert len(server.submitted) == 1


def test_more_rounds_are_for_the_server_to_judge(server: Server, tmp_path: Path) -> None:
    submit(tmp_path)
    submit(tmp_path, resume=True, settings={"rounds": 9}, silos=["south", "north"])
    assert len(server.submitted) == 2


def test_a_running_job_is_not_given_more_rounds(server: Server, tmp_path: Path) -> None:
    submit(tmp_path)
    server.running = "job-1"
    submit(tmp_path, resume=True)  # joins it
    with pytest.raises(SettingsError, match="rounds was 3, now it is 9"):
        submit(tmp_path, resume=True, settings={"rounds": 9})
    assert len(server.submitted) == 1


def test_a_note_of_an_older_version_will_do(server: Server, tmp_path: Path) -> None:
    submit(tmp_path)
    older = {key: note(tmp_path)[key] for key in ("run", "silos", "job")}
    (tmp_path / submission.DEPLOYMENT).write_text(json.dumps(older))
    submit(tmp_path, resume=True)
    assert len(server.submitted) == 2


@pytest.mark.parametrize("change", [{"silos": 7}, {"settings": 7}])
def test_a_damaged_note(server: Server, tmp_path: Path, change: dict[str, Any]) -> None:
    submit(tmp_path)
    (tmp_path / submission.DEPLOYMENT).write_text(json.dumps({**note(tmp_path), **change}))
    with pytest.raises(SettingsError, match="is damaged"):
        submit(tmp_path, resume=True)


def test_a_run_of_nobody_is_not_submitted(server: Server, tmp_path: Path) -> None:
    submit(tmp_path)
    server.silos = ["west"]
    with pytest.raises(
        FederationError, match=r"none of the run's silos is connected: north, south \(connected: w"
    ):
        submit(tmp_path, resume=True)
    with pytest.raises(FederationError, match="it names none"):
        submission._taking_part([], ["west"], resume=False)
    with pytest.raises(FederationError, match=r"not connected: south \(connected: east, west\)"):
        submission._taking_part(["south", "west"], ["east", "west"], resume=False)
    # A run that goes on does without who is not there.
    assert submission._taking_part(["south", "west"], ["east", "west"], resume=True) == ["west"]
    assert len(server.submitted) == 1


# What comes back


def test_the_record_is_fetched_last(server: Server, tmp_path: Path) -> None:
    submit(tmp_path)
    assert server.fetched == [records.WEIGHTS, records.LEDGER, records.RECORD]


def test_an_interrupted_fetch_leaves_no_finished_run(server: Server, tmp_path: Path) -> None:
    submit(tmp_path)
    server.on_file = interrupt
    with pytest.raises(KeyboardInterrupt):
        submit(tmp_path, resume=True)
    assert not (tmp_path / records.RECORD).exists()


def test_a_servers_words_are_no_escape_sequences(server: Server, tmp_path: Path) -> None:
    figures = {"round": 1, "rounds": 3, "metrics": {}, "bytes_up": 0, "bytes_down": 0}
    server.events = [
        {"event": "round", "phase": "\x1b]0;title\x07", **figures, "seconds": 0.0},
        {"event": "sentence", "text": "\x1b[2Jall\nis " + "well " * 999},
    ]
    moments: list[Moment] = []
    said: list[str] = []
    submit(tmp_path / "one", Watch(moments.append, said.append))
    assert moments[0].phase == "?]0;title?"
    assert said[-1].startswith("?[2Jall is well")
    assert len(said[-1]) <= 1000
    server.events = [{"event": "failed", "error": "WireError", "text": "\x9b31mno"}]
    with pytest.raises(WireError, match=r"^\?31mno$"):
        submit(tmp_path / "two")
