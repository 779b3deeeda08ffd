"""`fedmend bench` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedmend.bench import shipped
from tests.cli.conftest import Command

SUITE = """
datasets = ["csbm:nodes=80,classes=3,features=6", "csbm:nodes=2,classes=2"]
splits = ["random"]
silos = [3]
seeds = 1
[settings]
rounds = 2
batch_size = 8
[[rows]]
method = "fedavg"
[[rows]]
method = "local"
"""


def test_without_a_name_they_are_listed(fedmend: Command) -> None:
    done = fedmend("bench")
    assert done.returncode == 0
    for name in shipped():
        assert name in done.stdout


def test_a_suite_shows_tables_and_leaves_a_resumable_folder(
    fedmend: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(SUITE)
    options = ("--out", "b", "--page", "results", "--workers", "1")
    done = fedmend("bench", "mine.toml", *options)
    # The second dataset cannot be made: told once, and the first is finished all the same.
    assert done.returncode == 1
    assert done.stderr.count("edges inside classes are wanted") == 1
    assert "5 of 10 cells failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert "against fedavg" in " ".join(done.stdout.split())
    assert "edges between silos" in done.stdout
    assert "logistic*" in done.stdout
    for name in ("bench.json", "table.md", "table.csv", "table.tex", "table.html"):
        assert (tmp_path / "b" / name).exists()
    assert "# mine" in (tmp_path / "results/mine.md").read_text()
    again = fedmend("bench", "mine.toml", "--out", "b", "--json")
    found = json.loads(again.stdout)
    assert len(found["tables"]) == 2
    assert again.returncode == 1
    assert len(found["failures"]) == 5
    assert found["tables"][0]["lines"][0]["accuracy"]["count"] == 1


def test_a_part_of_a_suite(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE)
    options = ("--rows", "local", "--seeds", "2", "--set", "hidden=4", "--json", "--workers", "1")
    data = ("--datasets", "csbm:nodes=80;classes=3")
    assert fedmend("bench", "mine.toml", *options, *data).returncode == 2
    first = "csbm:nodes=80,classes=3,features=6"  # the other one cannot be made
    done = fedmend("bench", "mine.toml", *options, "--datasets", first)
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    assert table["lines"][0]["label"] == "local"
    assert table["lines"][0]["accuracy"]["count"] == 2
    record = next((tmp_path / "runs/bench-mine").rglob("local/seed-0/record.json"))
    assert json.loads(record.read_text())["settings"]["hidden"] == 4


def test_other_seeds(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE.replace(', "csbm:nodes=2,classes=2"', ""))
    options = ("--seeds", "2", "--first-seed", "10", "--out", "b", "--page", "pages")
    done = fedmend("bench", "mine.toml", *options, "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    assert table["lines"][0]["seeds"] == [10, 11]
    assert len({*table["hashes"].values()}) == 2  # splits of their own
    assert "2 seeds (10 to 11)" in (tmp_path / "pages/mine.md").read_text()
    assert json.loads((tmp_path / "b/bench.json").read_text())["first_seed"] == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("quik",), "did you mean 'quick'"),
        (("none.toml",), "cannot read none.toml"),
        (("quick", "--datasets", "pubmed"), "unknown dataset of suite quick"),
        (("quick", "--datasets", ","), "no dataset of suite quick is named"),
        (("quick", "--splits", ","), "no split of suite quick is named"),
        (("quick", "--silos", ","), "no number of silos of suite quick is named"),
        (("quick", "--rows", ","), "no row of suite quick is named"),
        (("quick", "--rows", ""), "no row of suite quick is named"),
        (("quick", "--rows", "fedsage,fedsage"), "a row of suite quick is named twice"),
        (("quick", "--page", "page.md"), "must be a folder: the suite's page in it is quick.md"),
        (("quick", "--page", "/dev/null/pages"), "/dev/null is a file, not a folder"),
        (("quick", "--out", "/dev/null"), "/dev/null is a file"),
        (("quick", "--silos", "x"), "not a list of whole numbers"),
        (("quick", "--silos", "7"), "unknown number of silos"),
        (("quick", "--rows", "fedsag"), "unknown row of suite quick"),
        (("quick", "--set", "nonsense=1"), "unknown setting 'nonsense'"),
        (("quick", "--set", "hidden=many"), "hidden='many' is not allowed"),
    ],
)
def test_mistakes_are_one_line(
    fedmend: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = fedmend("bench", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_finished_suite_is_not_replaced(fedmend: Command, tmp_path: Path) -> None:
    first = SUITE.replace(', "csbm:nodes=2,classes=2"', "")
    (tmp_path / "mine.toml").write_text(first)
    assert fedmend("bench", "mine.toml", "--out", "b", "--workers", "1").returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/mine.md").write_bytes(b"\xff\xfe")
    (tmp_path / "mode.toml").write_text(f'evaluation = "nosuch"\n{first}')
    for arguments, said in (
        (("mine.toml", "--rounds", "3"), "holds a run of other settings"),
        (("mine.toml", "--page", "pages"), "mine.md is not a text file"),
        (("mode.toml",), "unknown evaluation mode 'nosuch'"),
    ):
        done = fedmend("bench", *arguments, "--out", "b")
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert before == {p: p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()}


def test_where_every_cell_fails_the_reason_is_told_once(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE.replace("silos = [3]", "silos = [1000]"))
    done = fedmend("bench", "mine.toml", "--out", "b", "--page", "pages")
    assert done.returncode == 1
    assert done.stderr.count("is more than the graph has nodes") == 1
    assert "no cell succeeded" in done.stderr
    assert not (tmp_path / "pages").exists()


def test_the_runs_of_another_suite_are_taken_over(fedmend: Command, tmp_path: Path) -> None:
    short = SUITE.replace(', "csbm:nodes=2,classes=2"', "")
    (tmp_path / "mine.toml").write_text(short)
    (tmp_path / "other.toml").write_text(short.replace('"local"', '"fedprox"'))
    options = ("--workers", "1", "--json", "--rows", "fedavg")
    one = json.loads(fedmend("bench", "mine.toml", "--out", "one", *options).stdout)
    done = fedmend("bench", "other.toml", "--out", "two", "--reuse", "one", *options)
    (other,) = json.loads(done.stdout)["tables"]
    assert other["lines"][0]["seconds"] == one["tables"][0]["lines"][0]["seconds"]
    wrong = fedmend("bench", "other.toml", "--out", "three", "--reuse", "nowhere", *options)
    assert wrong.returncode == 2
    assert "nowhere: there is no such folder" in wrong.stderr


def test_a_suite_that_is_run_in_parts_is_one_section(fedmend: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE.replace(', "csbm:nodes=2,classes=2"', ""))
    page = ("--page", "pages", "--workers", "1")
    for row in ("fedavg", "local"):
        done = fedmend("bench", "mine.toml", "--rows", row, "--out", row, *page)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "pages/mine.md").read_text()
    assert text.count("| fedavg |") == text.count("| local |") == 1
    # What is kept is enough for the whole table; nothing is run for it.
    done = fedmend("bench", "mine.toml", "--out", "b", "--reuse", "pages", *page)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "b").rglob("record.json"))
    assert (tmp_path / "pages/mine.md").read_text() == text
    done = fedmend("bench", "mine.toml", "--rows", "local", "--rounds", "3", "--out", "c", *page)
    assert done.returncode == 2
    assert "pages/figures/mine.jsonl holds figures of other settings" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "c").exists()
