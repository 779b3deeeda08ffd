"""Every command in the README runs, in the order it stands there, in one fresh folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [line[2:] for line in lines if line.startswith("$ ")]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=500, check=False
    )


def test_there_are_commands_to_run() -> None:
    found = commands()
    assert found[:2] == ["make demo", "make test"]
    assert sum(command.startswith("fedmend ") for command in found) >= 7


def test_every_fedmend_command(tmp_path: Path) -> None:
    for command in commands():
        if command.startswith("fedmend "):
            done = run(shlex.split(command), tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "predictions.csv").exists()


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """Line by line, but for the digits: processors round differently."""
    done = run(["fedmend", "demo"], tmp_path)
    assert done.returncode == 0, done.stderr
    shown = without_figures(blocks("console")[0])
    for line in done.stdout.splitlines():
        if line.strip():
            assert without_figures(line) in shown, line


def without_figures(text: str) -> str:
    """Numbers and the widths they leave do not count."""
    return re.sub(r"[ \n]+", " ", re.sub(r"[-+]?\d+(\.\d+)?", "#", text)).strip()


@pytest.mark.parametrize("target", ["demo", "test", "test-deploy", "check", "bench", "help"])
def test_make_targets(target: str) -> None:
    """`make test` inside a test would never end, so what it would run is looked at."""
    done = run(["make", "--dry-run", target], ROOT)
    assert done.returncode == 0, done.stderr


def test_make_demo_runs_the_demo() -> None:
    assert "fedmend demo" in run(["make", "--dry-run", "demo"], ROOT).stdout
    assert "pytest" in run(["make", "--dry-run", "test"], ROOT).stdout


def test_the_python_example(tmp_path: Path) -> None:
    (example,) = blocks("python")
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 8
    done = run([sys.executable, "-c", example], tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > 0
    assert (tmp_path / "runs" / "first" / "record.json").exists()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
