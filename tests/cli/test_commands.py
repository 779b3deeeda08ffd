"""Each command once, as a new user would type it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedmend.methods import METHODS
from tests.cli.conftest import Command

QUICK = ("--rounds", "2", "--silos", "3")


def test_help_lists_every_command(fedmend: Command) -> None:
    done = fedmend("--help")
    assert done.returncode == 0
    for name in ("run", "compare", "predict", "partition", "check", "methods", "privacy"):
        assert name in done.stdout


def test_help_imports_no_torch(process: Command) -> None:
    done = process("--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "fedmend.cli.main" in done.stderr
    for heavy in ("torch", "numpy", "scipy", "igraph", "pyarrow"):
        assert f" {heavy}\n" not in done.stderr, heavy


def test_version(fedmend: Command) -> None:
    assert fedmend("--version").stdout.startswith("fedmend 0.")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("methods", list(METHODS)),
        ("datasets", ["cora", "pubmed", "msacademic", "csbm"]),
        ("splits", ["louvain", "label-dirichlet", "metis"]),
    ],
)
def test_lists_have_one_line_each(fedmend: Command, command: str, names: list[str]) -> None:
    done = fedmend(command)
    assert done.returncode == 0
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line[:1].strip()]
    for name in names:
        assert name in first_words


def process_with(packages: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command where these packages are installed too."""
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "fedmend.cli.main", *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_settings_of_a_method(fedmend: Command) -> None:
    done = fedmend("methods", "fedprox")
    assert "mu=0.01" in done.stdout
    assert "one shared by all silos" in done.stdout
    assert "backbone=sage (fixed)" in fedmend("methods", "fedsage").stdout
    # Default, limits, and what the paper has.
    lines = [" ".join(line.split()) for line in fedmend("methods", "fedsage+").stdout.splitlines()]
    assert any(line.startswith("alpha=0.1 0.0 or more 1.0 weight of") for line in lines)
    assert any(line.startswith("lr=0.001 0.0 or more as here step size") for line in lines)
    assert any(line.startswith("optimizer=adam adam, sgd as here") for line in lines)


def test_a_list_with_a_broken_plugin_is_a_list(fedmend: Command, tmp_path: Path) -> None:
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedmend.methods]\nbad = nowhere_at_all:x\n")
    listed = process_with(tmp_path, "methods")
    assert listed.returncode == 0
    assert "fedavg " in listed.stdout
    assert listed.stderr.startswith("fedmend: the method 'bad' of broken 1.0 fails (ModuleNotF")
    assert len(listed.stderr.splitlines()) == 1


def test_run_ends_with_a_table_and_leaves_a_folder(process: Command, tmp_path: Path) -> None:
    done = process("run", "fedavg", *QUICK, "--out", "result", "--set", "hidden=16")
    assert done.returncode == 0, done.stderr
    assert "What left each silo" in done.stdout
    assert "weights" in done.stdout
    assert done.stderr == ""  # not a terminal: no progress
    record = json.loads((tmp_path / "result" / "record.json").read_text())
    assert record["settings"]["hidden"] == 16
    assert record["settings"]["rounds"] == 2
    assert f"{record['result']['accuracy']:.4f}" in done.stdout
    assert (tmp_path / "result" / "weights.safetensors").exists()
    assert (tmp_path / "result" / "ledger.csv").exists()
    shown = process("status", "result")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"Finished {record['measured']['finished']}")
    assert f"{record['result']['accuracy']:.4f}" in shown.stdout


def test_run_json_is_one_object_and_nothing_else(fedmend: Command) -> None:
    done = fedmend("run", "fedsage", *QUICK, "--seeds", "2", "--out", "r", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accuracy"]["count"] == 2
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    assert found["runs"][0]["split"]["hash"] != found["runs"][1]["split"]["hash"]


def test_default_folder_is_under_runs(fedmend: Command, tmp_path: Path) -> None:
    assert fedmend("run", "local", *QUICK).returncode == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("local-cora-")


def test_split_seed_fixes_the_split(fedmend: Command) -> None:
    options = ("--seeds", "2", "--split-seed", "7", "--split", "random", "--json")
    found = json.loads(fedmend("run", "fedavg", *QUICK, *options).stdout)
    first, second = found["runs"]
    assert first["split"]["hash"] == second["split"]["hash"]
    assert first["rounds"] != second["rounds"]


def test_settings_from_a_file_and_its_override(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('hidden = 8\nbackbone = "gcn"\nrounds = 1\n')
    options = ("--config", "s.toml", "--set", "hidden=12", "--silos", "2", "--json")
    found = json.loads(fedmend("run", "fedavg", *options).stdout)
    settings = found["runs"][0]["settings"]
    assert (settings["hidden"], settings["backbone"], settings["rounds"]) == (12, "gcn", 1)


def test_compare_pairs_methods_on_shared_splits(fedmend: Command, tmp_path: Path) -> None:
    options = ("--methods", "fedavg,fedprox,global", "--seeds", "2", "--set", "mu=0")
    done = fedmend("compare", *options, *QUICK, "--out", "c", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    runs = found["runs"]
    for seed in (0, 1):
        assert len({runs[name][seed]["split"]["hash"] for name in runs}) == 1
    # FedProx at mu=0 is FedAvg, through the whole command.
    assert runs["fedprox"][1]["result"] == runs["fedavg"][1]["result"]
    again = fedmend("compare", *options, *QUICK, "--out", "c", "--resume")
    assert again.returncode == 0, again.stderr
    assert "against fedavg" in again.stdout
    assert "all raw data" in again.stdout
    assert (tmp_path / "c" / "summary.json").exists()


def test_a_finished_run_is_not_overwritten(fedmend: Command) -> None:
    assert fedmend("run", "fedavg", *QUICK, "--out", "same").returncode == 0
    done = fedmend("run", "fedavg", *QUICK, "--out", "same")
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_more_rounds_of_the_same_run(fedmend: Command) -> None:
    """A finished run of fewer rounds goes on to what the longer run gives at once."""
    options = ("--silos", "3", "--checkpoint-every", "1", "--json")
    whole = fedmend("run", "fedavg", "--rounds", "4", *options, "--out", "whole")
    assert fedmend("run", "fedavg", "--rounds", "2", *options, "--out", "part").returncode == 0
    more = fedmend("run", "fedavg", "--rounds", "4", *options, "--out", "part", "--resume")
    assert more.returncode == 0, more.stderr
    first, second = (json.loads(done.stdout)["runs"][0]["result"] for done in (whole, more))
    assert first == second


def test_partition_check_run_predict(fedmend: Command, tmp_path: Path) -> None:
    done = fedmend("partition", "cora", "silos", "--silos", "3", "--split", "random")
    assert done.returncode == 0, done.stderr
    assert "ΔE/|E|" in done.stdout
    checked = fedmend("check", "silos/silo-0")
    assert checked.returncode == 0, checked.stderr
    assert "903 nodes" in checked.stdout or "902 nodes" in checked.stdout
    assert json.loads(fedmend("check", "silos/silo-0", "--json").stdout)["nodes"] in (902, 903)
    run = fedmend("run", "fedsage", "--dataset", "silos", "--rounds", "2", "--out", "run")
    assert run.returncode == 0, run.stderr
    csv_done = fedmend("predict", "run", "--graph", "silos/silo-1", "--out", "p.csv")
    assert csv_done.returncode == 0, csv_done.stderr
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) in (902, 903)
    probabilities = [float(v) for k, v in rows[0].items() if k.startswith("probability_")]
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    parquet = fedmend("predict", "run", "--graph", "silos/silo-1", "--out", "p.parquet")
    assert parquet.returncode == 0, parquet.stderr
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert table["label"] == [row["label"] for row in rows]


def test_predict_nodes_that_came_after_training(fedmend: Command, tmp_path: Path) -> None:
    assert fedmend("partition", "cora", "now", "--silos", "3", "--format", "csv").returncode == 0
    shutil.copytree(tmp_path / "now", tmp_path / "before")
    nodes, edges = (tmp_path / "before/silo-1" / name for name in ("nodes.csv", "edges.csv"))
    *lines, one, two = nodes.read_text().splitlines()
    nodes.write_text("\n".join(lines) + "\n")
    gone = {one.split(",")[0], two.split(",")[0]}
    kept = [line for line in edges.read_text().splitlines() if not set(line.split(",")) & gone]
    edges.write_text("\n".join(kept) + "\n")
    small = ("--rounds", "2", "--set", "autoencoder_epochs=2", "--set", "autoencoder_rounds=1")
    run = fedmend("run", "fedggr", "--dataset", "before", *small, "--out", "run")
    assert run.returncode == 0, run.stderr
    which = ("predict", "run", "--graph", "now/silo-1", "--out", "p.csv")
    told = fedmend(*which, "--silo", "silo-1")
    assert told.returncode == 0, told.stderr
    assert "2 of them are new" in told.stdout
    with (tmp_path / "p.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)][-2:] == [
            one.split(",")[0],
            two.split(",")[0],
        ]
    done = json.loads(fedmend(*which, "--silo", "silo-1", "--json").stdout)
    assert (done["new"], done["silo"], done["nodes"]) == (2, "silo-1", len(lines) + 1)
    assert "did you mean 'silo-1'" in fedmend(*which, "--silo", "silo1").stderr
    alone = fedmend(*which)
    assert alone.returncode == 0, alone.stderr
    assert "name the silo they belong to" in alone.stdout
    (tmp_path / "run/nodes.safetensors").write_bytes(b"damaged")
    damaged = fedmend(*which, "--silo", "silo-1")
    assert damaged.returncode == 2
    assert "nodes.safetensors does not hold" in damaged.stderr


def test_the_variable_leaves_the_bundled_cora_alone(fedmend: Command, tmp_path: Path) -> None:
    """Somebody who keeps Planetoid's files for other datasets gets the same Cora as everybody."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "ind.cora.x").write_bytes(b"not to be read")
    named = {"FEDMEND_DATA": str(tmp_path / "files")}
    cut = ("partition", "cora", "silos", "--silos", "3", "--split", "random")
    assert fedmend(*cut, env=named).returncode == 0
    chosen = fedmend(*cut[:2], "other", *cut[3:], "--data-root", str(tmp_path / "files"))
    assert chosen.returncode == 2
    assert "lacks" in chosen.stderr


def test_partition_by_an_ownership_column(fedmend: Command, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    lines = ["id,label,hospital,a,b"]
    lines += [
        f"n{i},{'x' if i % 3 else 'y'},{'north' if i < 20 else 'south'},{i},1" for i in range(40)
    ]
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    (folder / "edges.csv").write_text("src,dst\n" + "\n".join(f"n{i},n{i + 1}" for i in range(39)))
    done = fedmend("partition", "graph", "out", "--split", "column", "--column", "hospital")
    assert done.returncode == 0, done.stderr
    assert {"north", "south"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert "ΔE=1" in done.stdout
    run = fedmend("run", "fedavg", "--dataset", "out", "--rounds", "2", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["runs"][0]["model"]["num_features"] == 2


def test_predict_uses_the_named_silos_model(fedmend: Command) -> None:
    assert fedmend("partition", "cora", "silos", "--silos", "2").returncode == 0
    run = fedmend("run", "local", "--dataset", "silos", "--rounds", "2", "--out", "run")
    assert run.returncode == 0, run.stderr
    which = ("predict", "run", "--graph", "silos/silo-1", "--json")
    missing = fedmend(*which)
    assert missing.returncode == 2
    assert "--silo NAME" in missing.stderr
    found = json.loads(fedmend(*which, "--silo", "silo-0").stdout)
    assert found["silo"] == "silo-0"
    own = json.loads(fedmend(*which, "--silo", "silo-1").stdout)
    assert own["accuracy"] > found["accuracy"]


def test_silos_that_are_cut_already_keep_their_cut(fedmend: Command, tmp_path: Path) -> None:
    """Every default gives way to what the folder is, and what is shown is the folder's."""
    graph = "csbm:nodes=60,classes=3,features=4"
    assert fedmend("partition", graph, "p1", "--silos", "2", "--split", "random").returncode == 0
    quick = ("--dataset", "p1", "--rounds", "1", "--json")
    for out, more in (("a", ()), ("b", ("--silos", "2", "--split", "random"))):
        done = json.loads(fedmend("run", "fedavg", *quick, *more, "--out", out).stdout)
        source = done["runs"][0]["source"]
        assert (source["silos"], source["split"]) == (2, "random")
    options = ("--values", "0.1", "--seeds", "1", "--out", "study")
    assert fedmend("study", "hide", *quick, *options).returncode == 0
    about = json.loads((tmp_path / "study/study.json").read_text())
    assert (about["silos"], about["split"]) == (2, "random")
    (tmp_path / "suite.toml").write_text(
        'datasets = ["p1"]\nsplits = ["louvain", "leiden"]\nsilos = [2]\nseeds = 1\n'
        '[settings]\nrounds = 1\n[[rows]]\nmethod = "fedavg"\n'
    )
    tables = json.loads(fedmend("bench", "suite.toml", "--json").stdout)["tables"]
    assert [(table["split"], table["silos"]) for table in tables] == [("random", 2)]


def test_a_long_dataset_makes_a_folder_all_the_same(fedmend: Command, tmp_path: Path) -> None:
    done = fedmend("run", "fedavg", "--dataset", "csbm:" + "nodes=60," * 60, "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("fedavg-csbm-nodes-60-*/record.json"))) == 1


def test_check_a_graph_with_owners(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/nodes.csv").write_text("id,label,hospital,a\n1,x,north,1\n2,y,south,0\n")
    (tmp_path / "own/edges.csv").write_text("src,dst\n1,2\n")
    assert "hospital" in fedmend("check", "own").stderr
    assert "hospital: 2 different owners" in fedmend("check", "own", "--column", "hospital").stdout
    about = json.loads(fedmend("check", "own", "--column", "hospital", "--json").stdout)
    assert (about["features"], about["owners"]) == (1, 2)
    done = fedmend("check", "own", "--column", "clinic")
    assert done.returncode == 2
    assert "clinic" in done.stderr
