"""docs/extend.md, followed: every file written, every command run, every entry point there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedmend.plugins.registry import KINDS
from tests.plugins.running import fedmend, process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+) ?(\S*)\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files."""
    folder = tmp_path_factory.mktemp("typed")
    for _, name, text in BLOCKS:
        if name:
            (folder / name).write_text(text)
    return folder


def test_every_command(typed: Path) -> None:
    commands = [
        line.removeprefix("$ fedmend ")
        for language, _, text in BLOCKS
        if language == "console"
        for line in text.splitlines()
    ]
    assert len(commands) >= 8
    for command, done in zip(commands, fedmend(*commands, at=typed), strict=True):
        assert (done.code, done.err) == (0, ""), command
    assert (typed / "runs" / "both" / "summary.json").exists()


def test_every_program(typed: Path) -> None:
    programs = [text for language, name, text in BLOCKS if language == "python" and not name]
    assert programs
    for program in programs:
        (typed / "program.py").write_text(program)
        done = process("program.py", at=typed)
        assert done.code == 0, done.err
        assert 0.0 < float(done.out) <= 1.0


def test_every_entry_point(typed: Path) -> None:
    """What the page's package offers is in its files, and is accepted under these names."""
    offered = tomllib.loads((typed / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(offered) == {f"fedmend.{kind}s" for kind in KINDS}
    about = typed / "my_fedmend-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-fedmend\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
            for group, points in offered.items()
        )
    )
    lists = fedmend(
        *("methods", "backbones", "splits", "datasets", "metrics"), at=typed, plugins=str(typed)
    )
    names = ("median", "sum-net", "by-feature", "ring", "worst-class")
    for done, name in zip(lists, names, strict=True):
        assert (done.code, done.err) == (0, "")
        assert any(line.startswith(f"{name} ") for line in done.out.splitlines())
        assert "(plugin my-fedmend 0.1.0)" in done.words


def test_every_way_and_kind_is_on_the_page() -> None:
    for kind in KINDS:
        assert f"`fedmend.{kind}s`" in PAGE
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
