"""`fedmend study` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmend.studies import STUDIES
from tests.cli.conftest import COMMAND, Command

SMALL = (
    *("--dataset", "csbm:nodes=80,classes=3,features=6", "--rounds", "2", "--seeds", "2"),
    *("--set", "batch_size=8", "--workers", "1"),
)


def test_without_a_name_they_are_listed(fedmend: Command) -> None:
    done = fedmend("study")
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())  # long lines are wrapped
    for name, study in STUDIES.items():
        assert name in shown
        assert study.repeats in shown


def test_a_study_leaves_table_files_and_plot(fedmend: Command, tmp_path: Path) -> None:
    done = fedmend("study", "layers", *SMALL, "--silos", "3", "--values", "1,2", "--out", "s")
    assert done.returncode == 0, done.stderr
    assert "Δ is the difference to fedavg" in done.stdout
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        *("fedavg", "global", "hifgl", "study.csv", "study.json", "study.png", "study.svg")
    }
    saved = json.loads((tmp_path / "s/study.json").read_text())
    assert [each["value"] for each in saved["entries"]] == ["1", "1", "1", "2", "2", "2"]
    record = json.loads((tmp_path / "s/fedavg/1/seed-0/record.json").read_text())
    assert (record["settings"]["layers"], record["settings"]["hidden"]) == (1, 64)
    assert record["settings"]["backbone"] == "gcn"
    again = fedmend(
        "study", "layers", *SMALL, "--silos", "3", "--values", "1,2", "--out", "s", "--json"
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["entries"] == saved["entries"]


def test_without_matplotlib_a_hint_and_no_crash(
    fedmend: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    done = fedmend("study", "silos", *SMALL, "--values", "2", "--out", "s", "--methods", "fedavg")
    assert done.returncode == 0
    assert "fedmend[plots]" in done.stderr
    assert not (tmp_path / "s/study.png").exists()
    assert (tmp_path / "s/study.csv").exists()


def test_a_failed_cell_is_told_and_the_rest_is_shown(fedmend: Command) -> None:
    options = ("--values", "2,1000", "--methods", "fedavg", "--out", "s")
    done = fedmend("study", "silos", *SMALL, *options)
    assert done.returncode == 1
    assert "1000 is more than the graph has nodes" in done.stderr
    assert "failed" in done.stdout
    assert "0." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("layrs",), "did you mean 'layers'"),
        (("silos", "--silos", "3"), "use --values instead of --silos"),
        (("privacy", "--silos", "2"), "study privacy varies the silos: use --values"),
        (("privacy", "--values", "3 silos"), "known: 3 silos, sigma 4.2; 5 silos"),
        (("width", "--dataset", "coraa"), "did you mean 'cora'"),
        (("width", "--split", "nosuch"), "unknown split 'nosuch'"),
        (("width", "--ratio", "60/60/60"), "add up to at most 1"),
        (("width", "--evaluation", "nosuch"), "unknown evaluation mode 'nosuch'"),
        (("width", "--out", "/dev/null"), "/dev/null is a file"),
        (("layers", "--set", "layers=2"), "use --values"),
        (("layers", "--values", ","), "names no value"),
        (("layers", "--values", "1,many"), "layers='many' is not allowed"),
        (("layers", "--values", "1,0"), "layers=0 is not allowed"),
        (("width", "--methods", "fedag"), "did you mean 'fedavg'"),
        (("width", "--set", "nonsense=1"), "unknown setting 'nonsense'"),
    ],
)
def test_mistakes_are_one_line(
    fedmend: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = fedmend("study", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    command = [
        *(COMMAND, "study", "silos", "--dataset", "csbm:nodes=600", "--values", "2,3"),
        *("--methods", "fedavg", "--seeds", "2", "--rounds", "25", "--out", str(tmp_path / "s")),
        *("--checkpoint-every", "1", "--jobs", "2", "--workers", "1", "--set", "hidden=16"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("s/*/*/*/checkpoint.safetensors")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert "go on with the same command" in err
    assert "Traceback" not in err
    assert not (tmp_path / "s/study.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("s/*/*/*/record.json"))) == 4
