"""Where silos come from: what is cut, and what is cut already."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.data.folders import write_folder, write_partition
from fedmend.errors import SettingsError
from fedmend.runs.plan import Source, is_cut, is_folder, seed_folders
from fedmend.runs.train import train
from tests.tiny import QUICK, tiny_partition

GRAPH = "csbm:nodes=40,classes=2,features=4"


@pytest.fixture
def silos(tmp_path: Path) -> Path:
    """A folder of two silos, cut at random."""
    return write_partition(Source(GRAPH, 2, "random").partition(0), tmp_path / "silos")


def test_what_is_cut(silos: Path) -> None:
    assert is_folder(str(silos))
    assert is_cut(str(silos))
    assert not is_cut(str(silos / "silo-0"))
    for name in ("cora", GRAPH, "nowhere", "x" * 300, "a\0b"):
        assert not is_folder(name)
        assert not is_cut(name)


def test_a_source_says_how_it_is_cut(silos: Path) -> None:
    assert Source(GRAPH).cut() == (None, "louvain")
    assert Source(GRAPH, 3, "leiden").cut() == (3, "leiden")
    assert Source(str(silos)).cut() == (2, "random")
    (silos / "partition.json").unlink()
    assert Source(str(silos)).cut() == (2, "folders")


@pytest.mark.parametrize(("number", "split"), [(3, None), (None, "louvain"), (2, "bogus")])
def test_another_cut_than_the_folders_is_refused(
    silos: Path, number: int | None, split: str | None
) -> None:
    with pytest.raises(SettingsError, match=r"already cut into 2 silos \(random\)"):
        Source(str(silos), number, split).partition(0)


def test_the_folders_own_cut_may_be_named(silos: Path) -> None:
    made = Source(str(silos), 2, "random").partition(0)
    assert made.hash == Source(str(silos)).partition(0).hash


def test_a_column_may_be_called_by_a_number(tmp_path: Path) -> None:
    graph = Source(GRAPH).partition(0).whole
    assert graph is not None
    write_folder(graph, tmp_path / "own", "csv")
    nodes = tmp_path / "own/nodes.csv"
    first, *rest = nodes.read_text().splitlines()
    owners = [f"{row},{'north' if i % 2 else 'south'}" for i, row in enumerate(rest)]
    nodes.write_text("\n".join([f"{first},3", *owners]) + "\n")
    made = Source(str(tmp_path / "own"), split="column:column=3").partition(0)
    assert made.names == ("north", "south")


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    train("fedavg", tiny_partition(), out=tmp_path, **QUICK)
    with pytest.raises(SettingsError, match="already holds a run"):
        seed_folders(tmp_path, [0], resume=False)
    assert seed_folders(tmp_path, [0], resume=True) == {0: tmp_path}


@pytest.mark.parametrize("threads", [0, 1025])
def test_so_many_threads_are_refused(threads: int) -> None:
    with pytest.raises(SettingsError, match="threads from 1 to 1024"):
        train("fedavg", tiny_partition(), threads=threads, **QUICK)
