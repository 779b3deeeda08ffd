"""`fedmend privacy nfdp`, as typed and as documented."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.test_bad_input import graph_folder, refused

PAGE = (Path(__file__).parents[2] / "docs" / "methods" / "edge-ldp.md").read_text(encoding="utf-8")
PAPER = ("--d", "5", "--D", "15", "--layers", "2", "--epochs", "50", "--rate", "0.5")


def test_shows_both_columns_and_a_sentence(fedmend: Command) -> None:
    done = fedmend("privacy", "nfdp", *PAPER)
    assert done.returncode == 0, done.stderr
    assert "published" in done.stdout
    assert "recomputed" in done.stdout
    assert "0.3747" in done.stdout
    assert "The bound is vacuous" in done.stdout


def test_json_is_one_object(fedmend: Command) -> None:
    found = json.loads(fedmend("privacy", "nfdp", *PAPER, "--json").stdout)
    assert found["vacuous"] is True
    assert found["settings"]["rate"] == 0.5
    assert found["recomputed"]["sampled"]["delta"] == 1
    assert found["recomputed"]["sampled"]["log10_one_minus_delta"] == pytest.approx(
        -17.609, abs=1e-3
    )
    assert found["published"]["one_hop"]["epsilon"] == pytest.approx(0.3747, abs=1e-4)


def test_takes_a_folder(fedmend: Command, tmp_path: Path) -> None:
    graph_folder(tmp_path / "path")
    found = json.loads(fedmend("privacy", "nfdp", *PAPER, "--graph", "path", "--json").stdout)
    assert found["degrees"] == {"smallest": 1, "largest": 2, "nodes": 4, "isolated": 0}
    shown = fedmend("privacy", "nfdp", *PAPER, "--graph", "path").stdout
    assert "the smallest degree is 1, not 15" in " ".join(shown.split())
    assert fedmend("privacy", "nfdp", "--d", "1", "--graph", "path").returncode == 0


def test_an_isolated_node_in_the_folder(fedmend: Command, tmp_path: Path) -> None:
    graph_folder(tmp_path / "gap", edges="src,dst\n1,2\n2,3\n")
    done = fedmend("privacy", "nfdp", *PAPER, "--graph", "gap")
    assert done.returncode == 0, done.stderr
    assert "There is no guarantee: 1 of 4 nodes" in done.stdout


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--d", "0", "--D", "3"], ["d=0"]),
        (["--D", "0"], ["D=0"]),
        ([], ["D is missing", "graph"]),
        (["--D", "3", "--rate", "2"], ["rate=2", "0 to 1"]),
        (["--D", "3", "--rate", "nan"], ["rate=nan"]),
        (["--D", "3", "--epochs", "0"], ["epochs=0"]),
        (["--D", "3", "--graph", "nowhere"], ["nowhere", "not a folder"]),
    ],
)
def test_bad_input(fedmend: Command, args: list[str], parts: list[str]) -> None:
    refused(fedmend("privacy", "nfdp", *args), *parts)


def test_imports_no_torch(process: Command) -> None:
    done = process("privacy", "nfdp", *PAPER, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "fedmend.privacy.accountants.nfdp" in done.stderr
    for heavy in ("torch", "numpy", "scipy", "pyarrow"):
        assert f" {heavy}\n" not in done.stderr, heavy


def test_prints_what_its_page_shows(fedmend: Command) -> None:
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    command, _, shown = block.partition("\n")
    done = fedmend(*shlex.split(command.removeprefix("$ fedmend ")), env={"COLUMNS": "80"})
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_the_pages_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "edge-ldp.md", "exec"), {})
    assert capsys.readouterr().out == output
