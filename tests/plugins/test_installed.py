"""The package in tests/plugin, installed for real: listed, on the command line, in the battery.

`pip` builds and installs it into a folder of its own, without network; a process that has that
folder in PYTHONPATH is one in whose environment it is installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugins.running import fedmend, process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the package and what an installer writes beside it."""
    folder = str(tmp_path_factory.mktemp("installed"))
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    done = process("-m", "pip", "install", *options, "--target", folder, "tests/plugin", at=ROOT)
    assert done.code == 0, done.err
    return folder


OFFERED = {
    "methods": "fedmedian",
    "backbones": "plain-gcn",
    "splits": "by-degree",
    "datasets": "caves",
    "metrics": "balanced-accuracy",
}


def test_it_is_in_every_list_and_runs_on_the_command_line(installed: str, tmp_path: Path) -> None:
    on = "--dataset caves:caves=6 --silos 2 --split by-degree --backbone plain-gcn --rounds 2"
    on += " --set metric=balanced-accuracy"
    *lists, settings, trained, cut, predicted = fedmend(
        *OFFERED,
        "methods fedmedian",
        f"run fedmedian {on} --out it",
        "partition caves:caves=6 silos --silos 2 --split by-degree",
        "predict it --graph silos/silo-0",
        at=tmp_path,
        plugins=installed,
    )
    for done, name in zip(lists, OFFERED.values(), strict=True):
        assert (done.code, done.err) == (0, "")
        assert name in [line.split()[0] for line in done.out.splitlines() if line[:1].strip()]
        assert "(plugin fedmend-example 0.3.1)" in done.words
    assert "Comes from the plugin fedmend-example 0.3.1. " in settings.words
    assert "keep=1 1 or more as here" in settings.words
    assert trained.code == 0, trained.err
    assert "What left each silo" in trained.out
    assert cut.code == 0, cut.err
    assert "24 nodes predicted with the shared model of fedmedian" in predicted.words
    # The run says whose it is, and where that is missing, one line says so too.
    record = json.loads((tmp_path / "it" / "record.json").read_text())
    assert record["plugins"] == dict.fromkeys(
        ("method", "backbone", "partitioner", "dataset", "metric"), "fedmend-example 0.3.1"
    )
    assert set(record["rounds"]["training"]["0"]) == {"validation_balanced-accuracy"}
    for done in fedmend("predict it --graph silos/silo-0", "report it", at=tmp_path):
        assert done.code == 2
        assert "its method 'fedmedian' is of the plugin 'fedmend-example 0.3.1'" in done.err
        assert "not here: install it, or name its file with --plugin" in done.err
        assert len(done.err.splitlines()) == 1


def test_without_it_every_name_is_refused_in_one_line(tmp_path: Path) -> None:
    said = {
        "run fedmedian": "unknown method 'fedmedian'; did you mean",
        "run fedavg --backbone plain-gcn": "unknown value of backbone 'plain-gcn'",
        "run fedavg --split by-degree": "unknown split 'by-degree'",
        "run fedavg --dataset caves": "unknown dataset 'caves'",
        "run fedavg --set metric=balanced-accuracy": "unknown value of metric 'balanced-accuracy'",
    }
    *refused, one, other = fedmend(*said, "methods", "splits", at=tmp_path)
    for done, sentence in zip(refused, said.values(), strict=True):
        assert done.code == 2
        assert sentence in done.err
        assert len(done.err.splitlines()) == 1
    assert "fedmedian" not in one.out
    assert "by-degree" not in other.out


def test_it_passes_the_battery_of_every_method(installed: str, tmp_path: Path) -> None:
    battery = ("tests/contract/test_every_method.py", "-k", "fedmedian or fedavg-plain")
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'kept'}")
    done = process("-m", "pytest", *options, *battery, at=ROOT, plugins=installed)
    assert done.code == 0, done.out
    dots = sum(line.count(".") for line in done.out.splitlines() if line.startswith("."))
    assert dots >= 60, done.out


# Files


def test_a_file_is_a_plugin_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedmend import register\n"
        "from fedmend.methods import Method\n"
        "held = Method('held', 'FedProx that pulls hard', 'fedmend.methods.fedprox',"
        " 'FedProxSettings', fixed={'mu': 1.0})\n"
        "register('method', 'held', held)\n"
    )
    listed = fedmend("methods --plugin mine.py", at=tmp_path)[0]
    assert "FedProx that pulls hard (plugin mine.py" in listed.words
    # Also in the processes that it starts.
    on = "--dataset csbm:nodes=60 --values 2 --rounds 1 --seeds 1 --jobs 2 --out it"
    done = process(
        *("-m", "fedmend.cli.main", "study", "silos", "--methods", "held,local", *on.split()),
        *("--plugin", "mine.py"),
        at=tmp_path,
    )
    assert done.code == 0, done.err
    assert "held" in done.out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere_at_all", "No module named 'nowhere_at_all', in mine.py line 1"),
        ("import fedmend as fm; fm.register('method', 'fedavg', 3)", "there is a method 'fedavg'"),
        ("import fedmend as fm; fm.register('method', 'mine', 3)", "must be a fedmend.methods.Met"),
    ],
)
def test_a_broken_file_is_one_line_and_no_traceback(tmp_path: Path, code: str, said: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    done = fedmend("methods --plugin mine.py", at=tmp_path)[0]
    assert done.code == 2
    assert said in done.err
    assert str(file) in done.err
    assert len(done.err.splitlines()) == 1
    # Named for all processes, it spoils no command that does not need it.
    for done in fedmend("--help", "run --help", at=tmp_path, FEDMEND_PLUGINS=str(file)):
        assert (done.code, done.err) == (0, "")


def test_what_fails_while_it_runs_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedmend import register\n"
        "from fedmend.methods import Method, fedavg\n"
        "def server(silos, settings):\n"
        "    return settings.nothing\n"
        "class Ours: Silo, server = fedavg.Silo, staticmethod(server)\n"
        "register('method', 'mine', Method('mine', 'x', Ours, fedavg.FedAvgSettings))\n"
        "register('partitioner', 'none', lambda graph, silos, rng: [0])\n"
        "register('dataset', 'text', lambda: 'no graph')\n"
    )
    said = {
        "mine": "no attribute 'nothing', in mine.py line 4): correct it, or do without it",
        "fedavg --split none": "the split 'none' must give every node (2708) a silo from 0 to 4",
        "fedavg --dataset text": "the dataset 'text' must give a Graph, it gave 'no graph'",
    }
    tried = fedmend(*(f"run {each} --plugin mine.py" for each in said), at=tmp_path)
    for done, sentence in zip(tried, said.values(), strict=True):
        assert done.code == 2
        assert sentence in done.err
        assert len(done.err.splitlines()) == 1, done.err
