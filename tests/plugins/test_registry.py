"""Names of our own and of others: what is offered is found, what is broken costs its name only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedmend
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.plugins.registry import KINDS, PROGRAM, Plugin, Registry, origins, register, registry

Offer = Callable[..., None]


def numbers() -> Registry[int]:
    """A registry of numbers, under the group of the methods."""

    def accept(name: str, given: Any) -> int:
        if not isinstance(given, int):
            raise SettingsError(f"{name!r} must be a number, got {given!r}")
        return given

    return Registry("method", {"one": 1, "two": 2}, accept)


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install a package that offers entry points, by the files an installer would write."""

    def install(package: str, code: str, **points: str) -> None:
        folder = tmp_path / package
        about = folder / f"{package}-1.2.dist-info"
        about.mkdir(parents=True)
        (folder / f"{package}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = "".join(f"{name} = {target}\n" for name, target in points.items())
        (about / "entry_points.txt").write_text(f"[fedmend.methods]\n{lines}")
        monkeypatch.syspath_prepend(folder)

    return install


def test_entry_points_are_found_by_name_and_loaded_when_asked_for(offer: Offer) -> None:
    offer("quiet_three", "three = 3", three="quiet_three:three")
    known = numbers()
    assert "three" in known
    assert list(known) == ["one", "two", "three"]
    assert len(known) == 3
    assert "quiet_three" not in sys.modules  # its name is in the list, its code has not run
    assert known.find("three") == 3
    assert known.plugin_of("three") == Plugin("quiet_three", "1.2")
    assert known.plugin_of("one") is None


def test_our_own_names_need_no_look_at_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**_: str) -> None:
        raise AssertionError("looked at what is installed")

    monkeypatch.setattr("importlib.metadata.entry_points", never)
    known = numbers()
    assert known.find("one") == 1
    assert "a/folder" not in known  # cannot be a name
    with pytest.raises(AssertionError, match="looked at"):
        known.find("three")


def test_an_unknown_name_offers_the_nearest_also_of_a_plugin(offer: Offer) -> None:
    offer("three_near", "three = 3", three="three_near:three")
    with pytest.raises(UnknownNameError, match="unknown method 'thre'; did you mean 'three'"):
        numbers().find("thre")


@pytest.mark.parametrize(
    ("code", "target", "said"),
    [
        ("import nowhere_at_all", "x", "ModuleNotFoundError: No module named 'nowhere_at_all', in"),
        ("\n\nx = 1 / 0", "x", "ZeroDivisionError: division by zero, in broken_{n}.py line 3"),
        ("raise SystemExit('bye')", "x", "SystemExit: bye"),
        ("def x(:", "x", "SyntaxError"),
        ("x = 3", "y", "AttributeError"),
        ("x = 'text'", "x", "'bad' must be a number, got 'text'"),
    ],
)
def test_a_broken_one_costs_its_own_name_only(
    offer: Offer, request: pytest.FixtureRequest, code: str, target: str, said: str
) -> None:
    n = abs(hash(request.node.name))
    offer(f"broken_{n}", code, bad=f"broken_{n}:{target}", three="builtins:three")
    known = numbers()
    assert known.find("one") == 1
    for _ in range(2):  # the second time it is not run again
        with pytest.raises(SettingsError, match=f"the method 'bad' of broken_{n} 1.2") as caught:
            known.find("bad")
        assert said.format(n=n) in str(caught.value)
        assert "\n" not in str(caught.value)
    usable, remarks = known.listed()
    assert usable == {"one": 1, "two": 2}
    assert [text.split(" of ")[0] for text in remarks] == ["the method 'bad'", "the method 'three'"]


def test_a_name_is_taken_once(offer: Offer) -> None:
    offer("first_three", "three = 3", three="first_three:three", one="first_three:three")
    offer("second_three", "three = 33", three="second_three:three")
    known = numbers()
    with pytest.raises(SettingsError) as caught:
        known.find("three")
    assert "is offered by" in str(caught.value)
    assert "first_three 1.2" in str(caught.value)
    assert "uninstall one of them" in str(caught.value)
    assert known.find("one") == 1  # nobody replaces our own
    usable, remarks = known.listed()
    assert usable == {"one": 1, "two": 2}
    assert "'one' of first_three 1.2 is not used: the name is that of fedmend itself" in remarks[1]
    known.add("four", 4, PROGRAM)
    for name, owner in (("four", "a program"), ("one", "fedmend itself")):
        with pytest.raises(
            SettingsError, match=f"there is a method '{name}' already, of {owner}: choose another"
        ):
            known.add(name, 5, Plugin("late", "1"))


@pytest.mark.parametrize(
    "name", ["", "Big", "1st", "a b", "a/b", "a.b", "a:b", "-x", "x" * 64, "a\n"]
)
def test_a_name_is_what_can_stand_in_a_command_and_a_file(offer: Offer, name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be called"):
        numbers().add(name, 3, PROGRAM)


def test_an_entry_point_of_an_impossible_name_is_told_in_the_list(offer: Offer) -> None:
    offer("capital", "x = 3", Three="capital:x")
    usable, remarks = numbers().listed()
    assert usable == {"one": 1, "two": 2}
    assert len(remarks) == 1
    assert remarks[0].startswith("capital 1.2 cannot call a method 'Three'")


# The registries there are


def test_every_kind_has_its_registry() -> None:
    for kind in KINDS:
        found = registry(kind)
        assert found.kind == kind
        assert found.built_in
        assert set(found.built_in) <= set(found)
    with pytest.raises(UnknownNameError, match="unknown kind 'methods'; did you mean 'method'"):
        register("methods", "mine", None)
    assert fedmend.register is register


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_takes(kind: str) -> None:
    with pytest.raises(SettingsError, match=f"{kind} 'something' must be a .*got 3"):
        register(kind, "something", 3)
    assert "something" not in registry(kind)


def test_where_names_come_from() -> None:
    assert origins(method="fedavg", backbone="gcn", dataset="cora", partitioner="louvain") == {}


# Files


def run(code: str, *files: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FEDMEND_PLUGINS": os.pathsep.join(map(str, files))}
    return subprocess.run(
        [sys.executable, "-c", code],
        **{
            **{"env": environment, "capture_output": True, "text": True},
            **{"timeout": 120, "check": False},
            **options,
        },
    )


def test_a_file_is_loaded_once_and_when_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import fedmend\n"
        "print('loaded')\n"
        "def halves(graph, silos, rng): ...\n"
        "fedmend.register('partitioner', 'halves', halves)\n"
    )
    code = (
        "from fedmend.data.partitioners import PARTITIONERS as known\n"
        "print('louvain' in known, 'halves' in known, known.plugin_of('halves').name)\n"
        "print(len(known.plugin_of('halves').version), list(known)[-1], 'thirds' in known)\n"
    )
    done = run(code, file)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:3] == ["loaded", "True True mine.py", "12 halves False"]


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    file, text = tmp_path / "broken.py", tmp_path / "broken.txt"
    file.write_text("import fedmend\nfedmend.regster()\n")
    text.write_text("")
    code = (
        "from fedmend.errors import SettingsError\n"
        "from fedmend.methods import METHODS, find\n"
        "find('fedavg')\n"
        "for _ in range(2):\n"
        "    try: find('mine')\n"
        "    except SettingsError as error: print(error)\n"
    )
    done = run(code, file)
    said = "no attribute 'regster', in broken.py line 2): correct it, or do without it"
    assert [line.endswith(said) for line in done.stdout.splitlines()] == [True, True], done
    assert f"the plugin {file} fails" in done.stdout
    assert "name a file of Python code" in run(code, text).stdout
    assert "cannot read the plugin" in run(code, tmp_path / "nowhere.py").stdout
