"""Text from files and from other parties is shown as it is, whatever rich makes of brackets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedmend.cli import common
from fedmend.data.folders import write_partition
from fedmend.data.partition import Partition
from fedmend.deploy import submission
from fedmend.runs.train import train
from tests.cli.conftest import Command
from tests.tiny import QUICK, tiny_partition

ODD = ":warning: [/no] [bold] x"


def odd_silos() -> Partition:
    graphs = tiny_partition().silos.values()
    return Partition(dict(zip(("[no]", "[bold]a", "b"), graphs, strict=True)), "by hand", None)


def test_a_remark_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    common.Display(1).say(f"north was lost: {ODD}")
    assert capsys.readouterr().err == f"fedmend: north was lost: {ODD}\n"


def test_lists_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_lines([("[/no]", ODD)])
    assert capsys.readouterr().out.rstrip() == f"[/no]   {ODD}"


def test_progress_is_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedmend.engines.base import Moment

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with common.Display(1) as display:
        watch = display.watch("[/no]", 0)
        assert watch.on_round is not None
        watch.on_round(Moment("[/phase]", 1, 2, {}, 0, 0, 0.0))
    with common.spinner("Asking [/no] ..."):
        pass
    assert "[/no], seed 0: [/phase]" in capsys.readouterr().err


def test_names_of_silos_and_folders_are_no_markup(fedmend: Command, tmp_path: Path) -> None:
    write_partition(odd_silos(), tmp_path / "[bold]cut")
    few = ("--rounds", "1", "--set", "hidden=8")
    done = fedmend("run", "fedavg", "--dataset", "[bold]cut", *few, "--out", "[red]out")
    assert done.returncode == 0, done.stderr
    for text in ("fedavg on [bold]cut, 3 silos", "│ [no] ", "│ [bold]a ", "Run folder: [red]out"):
        assert text in done.stdout
    done = fedmend(
        "compare", "--methods", "local,fedavg", "--dataset", "[bold]cut", *few, "--out", "[/x]"
    )
    assert done.returncode == 0, done.stderr
    for text in ("[bold]cut, 3 silos", "Run folders: [/x]"):
        assert text in done.stdout


def test_what_silos_of_a_federation_say_is_no_markup(
    fedmend: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = train("fedavg", odd_silos(), **{**QUICK, "rounds": 1}).record
    record = replace(record, said=(f"north was lost: {ODD}",), silos_with_own_model=())
    monkeypatch.setattr(submission, "submit", lambda *_, **__: record)
    assert fedmend("provision", "kits", "--server", "x:18999", "--silos", "north").returncode == 0
    done = fedmend("submit", "kits/submitter", "fedavg", "--out", "[red]out")
    assert done.returncode == 0, done.stderr
    assert f"Note: north was lost: {ODD}\n" in done.stdout
    assert "Run folder: [red]out\n" in done.stdout


def test_an_option_goes_before_set_and_set_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("hidden = 1\nlr = 0.1\nmu = 2.0\n")
    found = common.gather_settings(["hidden=3", "lr=0.3"], file, hidden=5, backbone=None)
    assert found == {"hidden": 5, "lr": "0.3", "mu": 2.0}
