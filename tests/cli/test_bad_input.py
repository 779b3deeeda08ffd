"""Bad input gets one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Done

NODES = "id,label,split,a,b\n1,x,train,0.5,1\n2,y,val,1,0\n3,x,test,0,1\n4,y,train,1,1\n"
EDGES = "src,dst\n1,2\n2,3\n3,4\n"


def graph_folder(path: Path, nodes: str = NODES, edges: str = EDGES) -> None:
    path.mkdir(parents=True)
    (path / "nodes.csv").write_text(nodes)
    (path / "edges.csv").write_text(edges)


def refused(done: Done, *parts: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["run", "fedvag"], ["unknown method 'fedvag'", "did you mean 'fedavg'?"]),
        (["run", "fedavg", "--dataset", "corra"], ["unknown dataset", "'cora'"]),
        (["run", "fedavg", "--split", "louvian"], ["unknown split", "'louvain'"]),
        (["run", "fedavg", "--set", "hiden=3"], ["unknown setting", "'hidden'"]),
        (["run", "fedavg", "--set", "mu=3"], ["unknown setting 'mu'"]),
        (["run", "fedavg", "--set", "hidden=abc"], ["hidden='abc'", "a whole number"]),
        (["run", "fedavg", "--set", "lr=-1"], ["lr=-1", "at least 0"]),
        (["run", "fedavg", "--set", "lr=nan"], ["lr"]),
        (["run", "fedavg", "--set", "hidden"], ["key=value"]),
        (["run", "fedavg", "--set", "optimizer=adagrad"], ["optimizer", "adam"]),
        (["run", "fedavg", "--silos", "3000"], ["3000", "2708"]),
        (
            ["run", "fedavg", "--dataset", "csbm:nodes=60", "--silos", "58"],
            ["no training nodes"],
        ),
        (["run", "fedavg", "--evaluation", "global"], ["evaluation mode", "global-graph"]),
        (["run", "fedavg", "--ratio", "60-20-20"], ["60/20/20"]),
        (["run", "fedavg", "--ratio", "80/20/20"], ["add up"]),
        (["run", "fedavg", "--device", "warp"], ["device 'warp'"]),
        (["run", "fedavg", "--set", "min_silos=9"], ["min_silos=9", "5 silos"]),
        (["run", "fedavg", "--dataset", "./nowhere"], ["./nowhere", "neither a folder"]),
        (["run", "fedavg", "--dataset", "csbm:nodes"], ["key=value"]),
        (["run", "fedavg", "--dataset", "csbm:nodez=5"], ["nodes"]),
        (["run", "fedavg", "--config", "none.toml"], ["none.toml"]),
        (["run", "fedsage", "--backbone", "gcn"], ["fedsage means backbone=sage"]),
        (["run", "fedper", "--set", "personal_layers=2"], ["personal_layers=2"]),
        (["compare", "--methods", "fedavg,nope"], ["unknown method 'nope'"]),
        (["compare", "--methods", "fedavg,fedavg"], ["twice"]),
        (["check", "nowhere"], ["nowhere"]),
        (["predict", "nowhere", "--graph", "x"], ["nowhere", "not a finished run"]),
        (["partition", "cora", "out", "--format", "xml"], ["xml"]),
        (["methods", "fedvag"], ["did you mean 'fedavg'?"]),
    ],
)
def test_one_line_and_exit_code_2(fedmend: Command, args: list[str], parts: list[str]) -> None:
    refused(fedmend(*args), *parts)


def test_a_dataset_that_is_not_here(fedmend: Command, tmp_path: Path) -> None:
    offline = {
        "FEDMEND_CACHE": str(tmp_path / "cache"),
        "https_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    done = fedmend("run", "fedavg", "--dataset", "photo", env=offline)
    refused(done, "amazon_electronics_photo.npz", "https://", "cache")


def test_silos_whose_features_differ(fedmend: Command, tmp_path: Path) -> None:
    graph_folder(tmp_path / "silos" / "north")
    wider = NODES.replace("a,b", "a,b,c").replace("\n", ",1\n").replace("c,1", "c")
    graph_folder(tmp_path / "silos" / "south", wider)
    done = fedmend("run", "fedavg", "--dataset", "silos", "--rounds", "1")
    refused(done, "north", "south", "2", "3")


def test_a_silo_without_training_nodes(fedmend: Command, tmp_path: Path) -> None:
    graph_folder(tmp_path / "silos" / "north")
    graph_folder(tmp_path / "silos" / "south", NODES.replace("train", "test"))
    done = fedmend("run", "fedavg", "--dataset", "silos", "--rounds", "1")
    refused(done, "south", "no training nodes")


@pytest.mark.parametrize(
    ("nodes", "edges", "parts"),
    [
        (NODES.replace("0.5", "half"), EDGES, ["nodes.csv", "half"]),
        (NODES.replace("0.5", "nan"), EDGES, ["nodes.csv", "1"]),
        (NODES.replace("id,", "key,"), EDGES, ["id"]),
        (NODES.replace("\n4,", "\n1,"), EDGES, ["1"]),
        (NODES, EDGES.replace("3,4", "3,44"), ["edges.csv", "44"]),
        (NODES.replace("val", "validate"), EDGES, ["validate"]),
        ("", EDGES, ["nodes.csv"]),
        ("\x00\x01\x02", EDGES, ["nodes.csv"]),
    ],
)
def test_malformed_files(
    fedmend: Command, tmp_path: Path, nodes: str, edges: str, parts: list[str]
) -> None:
    graph_folder(tmp_path / "graph", nodes, edges)
    refused(fedmend("check", "graph"), *parts)


def test_a_folder_that_cannot_be_written(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    done = fedmend("run", "fedavg", "--rounds", "1", "--out", "file/run")
    refused(done, "cannot write", "file")


def test_a_disk_that_is_full(process: Command, tmp_path: Path) -> None:
    """The system refuses files above 100 kB: weights do not fit, nothing half-written is left."""

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    options = ("--rounds", "1", "--silos", "2", "--out", "run")
    done = process("run", "fedavg", *options, preexec_fn=small_disk)
    refused(done, "cannot write", "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == []
