"""`fedmend report` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

pytest.importorskip("vl_convert", reason="reports need the extra fedmend[report]")


def test_a_page_of_a_comparison(fedmend: Command, tmp_path: Path) -> None:
    data = ("--dataset", "csbm:nodes=80,classes=3,features=6", "--split", "random")
    options = ("--rounds", "2", "--silos", "3", "--set", "batch_size=8")
    methods = ("--methods", "fedavg,local")
    made = fedmend("compare", *data, *options, *methods, "--out", "c")
    assert made.returncode == 0, made.stderr
    done = fedmend("report", "c", "--out", "page.html")
    assert done.returncode == 0, done.stderr
    assert "page.html: 2 runs" in done.stdout
    text = (tmp_path / "page.html").read_text()
    assert "Confusion matrix of the test nodes" in text  # the silos could be made again
    assert 'data-chart="graph-0"' in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere is not a folder"),
        ((".",), "is not a finished run"),
    ],
)
def test_mistakes_are_one_line(fedmend: Command, arguments: tuple[str, ...], said: str) -> None:
    done = fedmend("report", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
