"""The deployment commands' own lines and errors; what they do is in tests/integration/flare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SILOS = ("--server", "localhost:18999", "--silos", "north,south")


def test_provision_prints_what_to_do_next(fedmend: Command, tmp_path: Path) -> None:
    done = fedmend("provision", "kits", *SILOS, "--days", "10")
    assert done.returncode == 0, done.stderr
    assert "New kits in kits: server, north, south, submitter, observer." in done.stdout
    assert "expires on" in done.stdout
    assert "fedmend silo kits/north --graph DIR" in done.stdout
    again = fedmend("provision", "kits", "--server", "localhost:18999", "--silos", "west", "--json")
    found = json.loads(again.stdout)
    assert found["made"] == ["west"]
    assert set(found["kept"]) == {"server", "submitter", "observer"}
    assert "PRIVATE KEY" not in done.stdout + again.stdout


@pytest.fixture
def kits(fedmend: Command) -> str:
    assert fedmend("provision", "kits", *SILOS).returncode == 0
    return "kits"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("server", "nowhere"), "is not a start-up kit"),
        (("server", "kits/north"), "the kit of a silo; this command takes that of the server"),
        (("silo", "kits/north", "--graph", "nowhere"), "nowhere is not a folder with a graph"),
        (("silo", "kits/north", "--graph", "kits"), "it needs the tables nodes and edges"),
        (("silo", "kits/submitter", "--graph", "."), "this command takes that of a silo"),
        (("status", "kits/server"), "takes that of a submitter or an observer"),
        (("submit", "kits/submitter", "fedagv"), "did you mean 'fedavg'"),
        (("submit", "kits/submitter", "global"), "global cannot be deployed"),
        (("submit", "kits/submitter", "fedavg", "--set", "rounds=0"), "rounds=0 is not allowed"),
        (("submit", "kits/submitter", "fedavg", "--set", "mu=1"), "unknown setting 'mu'"),
        (("submit", "kits/submitter", "fedavg", "--resume", "runs/x"), "no deployed run in runs/x"),
        (("rehearse", "global"), "global cannot be deployed"),
        (("provision", "kits", "--server", "x", "--silos", "a"), "belongs to a federation whose"),
    ],
)
def test_one_line_errors(kits: str, fedmend: Command, args: tuple[str, ...], says: str) -> None:
    done = fedmend(*args)
    assert done.returncode == 2, done
    assert says in " ".join(done.stderr.split())
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_policy_that_makes_no_sense_stops_a_silo_at_once(
    kits: str, fedmend: Command, tmp_path: Path
) -> None:
    (tmp_path / kits / "north" / "policy.toml").write_text('refuse_kinds = ["embedings"]')
    for table in ("nodes", "edges"):
        (tmp_path / f"{table}.csv").write_text("id\n")
    done = fedmend("silo", f"{kits}/north", "--graph", ".")
    assert done.returncode == 2
    assert "did you mean 'embeddings'" in done.stderr


def test_without_flare(fedmend: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmend.deploy.find_spec", lambda _: None)
    done = fedmend("server", "kits")
    assert done.returncode == 2
    assert "pip install 'fedmend[flare]'" in done.stderr
