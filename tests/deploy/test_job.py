"""The server's side of a job, as far as it needs no FLARE."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.deploy.deployed import PLAN
from fedmend.deploy.job import ServerJob, _only_one, run_folder
from fedmend.deploy.status import tell
from fedmend.errors import FederationError, SettingsError

RUN = "0123456789abcdef"


def test_a_run_that_still_goes_on_keeps_its_plan(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, RUN)
    (folder / PLAN).write_text("the plan that runs")
    job = object.__new__(ServerJob)  # made properly, it would watch over this process
    job._plan = {"run": RUN}
    with _only_one(folder), pytest.raises(FederationError, match="still going on"):
        job._train(tmp_path)
    assert (folder / PLAN).read_text() == "the plan that runs"


@pytest.mark.parametrize("run", ["../elsewhere", "", "0123", f"{RUN}/x", f"{RUN}\n"])
def test_a_runs_name_is_no_path(tmp_path: Path, run: str) -> None:
    with pytest.raises(SettingsError, match="is not the name of a run"):
        run_folder(tmp_path, run)
    assert not list(tmp_path.iterdir())


def test_the_record_is_offered_last(tmp_path: Path) -> None:
    job = object.__new__(ServerJob)
    job._folder = tmp_path
    for name in ("record.json", "weights.safetensors", "ledger.csv", "checkpoint.safetensors"):
        (tmp_path / name).touch()
    assert job._files() == ["weights.safetensors", "ledger.csv", "record.json"]


def test_status_lines_are_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell("silo-1 says\n\x1b[2J" + "x" * 5000)
    printed = capsys.readouterr().out
    assert printed.startswith("fedmend| silo-1 says ?[2Jxxx")
    assert len(printed) < 1100
