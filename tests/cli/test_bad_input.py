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
        (["check", "no\nwhere"], ["no where"]),
        (["predict", "nowhere", "--graph", "x"], ["nowhere", "not a finished run"]),
        (["partition", "cora", "out", "--format", "xml"], ["xml"]),
        (["methods", "fedvag"], ["did you mean 'fedavg'?"]),
        (["run", "fedavg", "--split", "label-dirichlet:alpha=abc"], ["alpha", "a number", "abc"]),
        (["run", "fedavg", "--split", "louvain:tolerance=abc"], ["tolerance", "a number", "abc"]),
        (["run", "fedavg", "--split", "random:seed=3"], ["no options", "'seed'"]),
        (["run", "fedavg", "--split", "louvain:silos=3"], ["unknown option", "'silos'"]),
        (["run", "fedavg", "--dataset", "cora:data_root=/x"], ["no option 'data_root'"]),
        (["run", "fedavg", "--dataset", "csbm:download=1"], ["no option 'download'"]),
        (["run", "fedavg", "--dataset", "csbm:name=1"], ["no option 'name'"]),
        (["run", "fedavg", "--dataset", "csbm:degree=1e308"], ["degree must be at most"]),
        (["run", "fedavg", "--dataset", f"csbm:features={10**30}"], ["features must be at most"]),
        (["run", "fedavg", "--device", "meta"], ["device 'meta' cannot be used here"]),
        (["run", "hifgl", "--device", "cuda"], ["unknown setting 'device'"]),
        (["run", "fedavg", "--out", "x" * 300], ["cannot write", "name too long"]),
        (["run", "fedavg", "--resume", "--out", "x" * 300], ["cannot write", "name too long"]),
        (["run", "fedavg", "--dataset", "x" * 300], ["unknown dataset"]),
        (["check", "x" * 300], ["choose a shorter one"]),
        (["run", "fedavg", "--resume"], ["--resume needs", "--out"]),
        (["compare", "--resume"], ["--resume needs", "--out"]),
        (["compare", "--methods", ","], ["no method is named", "--methods"]),
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


GRAPH = "csbm:nodes=60,classes=3,features=4"


@pytest.fixture
def silos_in_p1(fedmend: Command, tmp_path: Path) -> None:
    """A folder p1 of two silos."""
    done = fedmend("partition", GRAPH, "p1", "--silos", "2", "--split", "random")
    assert done.returncode == 0, done.stderr
    (tmp_path / "suite.toml").write_text(
        'datasets = ["p1"]\nsplits = ["louvain"]\nsilos = [2, 3]\nseeds = 1\n'
        '[settings]\nrounds = 1\n[[rows]]\nmethod = "fedavg"\n'
    )


@pytest.mark.parametrize(
    "args",
    [
        ["run", "fedavg", "--dataset", "p1", "--silos", "3"],
        ["run", "fedavg", "--dataset", "p1", "--split", "bogus"],
        ["run", "fedavg", "--dataset", "p1", "--split", "louvain"],
        ["compare", "--dataset", "p1", "--silos", "3"],
        ["study", "silos", "--dataset", "p1", "--values", "1,2"],
        ["study", "hide", "--dataset", "p1", "--silos", "3"],
        ["bench", "suite.toml"],
        ["partition", "p1", "px", "--silos", "3"],
        ["partition", "p1", "px", "--column", "hospital"],
    ],
)
@pytest.mark.usefixtures("silos_in_p1")
def test_silos_that_are_cut_already(fedmend: Command, args: list[str]) -> None:
    refused(fedmend(*args), "p1 is already cut into 2 silos (random)", "leave --silos and --split")


@pytest.mark.usefixtures("silos_in_p1")
def test_shares_for_nodes_that_have_roles(fedmend: Command) -> None:
    done = fedmend("run", "fedavg", "--dataset", "p1", "--ratio", "50/25/25")
    refused(done, "p1", "leave --ratio out")


@pytest.mark.usefixtures("silos_in_p1")
def test_a_silo_the_run_does_not_know(fedmend: Command) -> None:
    assert fedmend("run", "fedavg", "--dataset", "p1", "--rounds", "1", "--out", "r").stdout
    done = fedmend("predict", "r", "--graph", "p1/silo-0", "--silo", "nosuch")
    refused(done, "unknown silo 'nosuch'", "silo-0, silo-1")


def test_two_ways_to_cut(fedmend: Command) -> None:
    done = fedmend("partition", GRAPH, "out", "--split", "random", "--column", "hospital")
    refused(done, "--column hospital", "leave --split random out")


def test_more_threads_than_torch_survives(fedmend: Command) -> None:
    done = fedmend("run", "fedavg", "--threads", "100000")
    assert done.returncode == 2
    assert "1024" in done.stderr


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_a_place_that_no_tracker_can_write(fedmend: Command, tmp_path: Path, tracker: str) -> None:
    """Where the tracker is not installed, that is said in one line too."""
    (tmp_path / "file").write_text("here")
    options = ("--rounds", "1", "--out", "run", "--track", f"{tracker}:file")
    refused(fedmend("run", "fedavg", "--dataset", GRAPH, *options), f"--track {tracker}")
    assert not (tmp_path / "run").exists()
