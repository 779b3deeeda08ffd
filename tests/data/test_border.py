"""Borders: from a partition, from folders, and those that contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from tests.tiny import tiny_graph

from fedmend.data.border import Border, borders_of, check_borders, edge_digests, pseudonyms
from fedmend.data.folders import read_own_border, read_silos, write_partition, write_silo
from fedmend.data.partition import Partition, split
from fedmend.errors import DataError, FileFormatError, GraphError

PARTITION = split(tiny_graph(40), 3, "random", seed=2)
HEAD = "src,remote_silo,remote_id\n"


def test_a_border_has_every_cut_edge_from_its_own_side() -> None:
    assert PARTITION.whole is not None
    assert PARTITION.assignment is not None
    expected: dict[str, set[tuple[int, int, int]]] = {name: set() for name in PARTITION.names}
    place = {name: PARTITION.rows(name).tolist() for name in PARTITION.names}
    for one, other in PARTITION.cross_edges.T.tolist():
        for own, remote in ((one, other), (other, one)):
            name = PARTITION.names[PARTITION.assignment[own]]
            silo = int(PARTITION.assignment[remote])
            there = PARTITION.names[silo]
            alias = int(pseudonyms(there, [PARTITION.whole.node_ids[remote]])[0])
            expected[name].add((place[name].index(own), silo, alias))
    for name, border in borders_of(PARTITION).items():
        columns = (border.rows.tolist(), border.silos.tolist(), border.remote.tolist())
        listed = list(zip(*columns, strict=True))
        assert set(listed) == expected[name]
        assert len(listed) == len(expected[name])
        assert border.nodes.tolist() == pseudonyms(name, PARTITION.silos[name].node_ids).tolist()


def test_pseudonyms_depend_on_silo_and_id_and_not_on_the_ids_type() -> None:
    assert pseudonyms("a", [1, 2]).tolist() == pseudonyms("a", ["1", "2"]).tolist()
    everyone = np.concatenate([pseudonyms("a", range(500)), pseudonyms("b", range(500))])
    assert len(np.unique(everyone)) == 1000
    assert everyone.min() >= 0


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_folders_give_the_same_borders(tmp_path: Path, format: Literal["csv", "parquet"]) -> None:
    write_partition(PARTITION, tmp_path, format)
    for file in (tmp_path / "evaluation").iterdir():
        file.unlink()
    read = read_silos(tmp_path)
    assert read.whole is None
    for name, border in PARTITION.borders.items():
        found = read.borders[name]
        order = np.lexsort((border.remote, border.silos, border.rows))
        for mine, theirs in (
            (border.rows[order], found.rows),
            (border.silos[order], found.silos),
            (border.remote[order], found.remote),
            (border.nodes, found.nodes),
        ):
            assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("given", [True, False], ids=["given borders", "a whole graph"])
def test_a_silo_reads_its_own_border_alone(
    tmp_path: Path, format: Literal["csv", "parquet"], given: bool
) -> None:
    borders = PARTITION.borders
    partition = Partition(PARTITION.silos, "by hand", None, given_borders=borders)
    for name in PARTITION.names:
        write_silo(partition if given else PARTITION, name, tmp_path / name, format)
        found = read_own_border(tmp_path / name, name, PARTITION.names)
        assert found is not None
        assert edge_digests(found, name, "run") == edge_digests(borders[name], name, "run")
        assert found.nodes.tolist() == borders[name].nodes.tolist()
    write_silo(Partition(PARTITION.silos, "by hand", None), "silo-0", tmp_path / "bare", format)
    assert read_own_border(tmp_path / "bare", "silo-0", PARTITION.names) is None


def test_two_silos_hash_the_edges_between_them_alike() -> None:
    borders = PARTITION.borders
    digests = {name: edge_digests(border, name, "run") for name, border in borders.items()}
    for one in borders:
        assert set(digests[one]) == set(borders) - {one}
        for other in digests[one]:
            assert digests[one][other] == digests[other][one]
    assert len({digests["silo-0"]["silo-1"], digests["silo-0"]["silo-2"]}) == 2
    whole = borders["silo-0"]
    assert edge_digests(whole, "silo-0", "another run") != digests["silo-0"]
    fewer = replace(whole, rows=whole.rows[1:], silos=whole.silos[1:], remote=whole.remote[1:])
    assert edge_digests(fewer, "silo-0", "run") != digests["silo-0"]


def test_silos_without_borders_say_what_is_missing() -> None:
    with pytest.raises(DataError, match="a table border"):
        _ = Partition(PARTITION.silos, "by hand", None).borders


def folders(root: Path, border_of_b: str | None) -> None:
    for silo, border in (("a", HEAD + "1,b,x\n"), ("b", border_of_b)):
        (root / silo).mkdir()
        ids = ("1", "2") if silo == "a" else ("x", "y")
        rows = "".join(f"{each},0.5,0,train\n" for each in ids)
        (root / silo / "nodes.csv").write_text("id,value,label,split\n" + rows)
        (root / silo / "edges.csv").write_text("src,dst\n")
        if border is not None:
            (root / silo / "border.csv").write_text(border)


def test_borders_of_own_data(tmp_path: Path) -> None:
    folders(tmp_path, HEAD + "x,a,1\nx,a,1\n")
    borders = read_silos(tmp_path).borders
    assert borders["a"].remote.tolist() == pseudonyms("b", ["x"]).tolist()
    assert borders["b"].remote.tolist() == pseudonyms("a", ["1"]).tolist()  # and once only


@pytest.mark.parametrize(
    ("border", "says"),
    [
        (None, "b has no table border, but a has one"),
        (HEAD, "border of a has an edge to a node of b, whose border"),
        (HEAD + "x,a,7\n", "border of b has an edge to a node of a that is not"),
        (HEAD + "z,a,1\n", "row 1: src z is no id in nodes.csv"),
        (HEAD + "x,c,1\n", "row 1: remote_silo c is not one of the other"),
        (HEAD + "x,b,y\n", "row 1: remote_silo b is not one of the other"),
        ("src,remote_id\nx,1\n", "remote_silo"),
    ],
)
def test_borders_that_cannot_be(tmp_path: Path, border: str | None, says: str) -> None:
    folders(tmp_path, border)
    with pytest.raises((FileFormatError, GraphError), match=says):
        read_silos(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda border: replace(border, nodes=border.nodes[::-1].copy()),
        lambda border: replace(border, remote=border.remote + 1),
        lambda border: replace(border, silos=(border.silos + 1) % 3),
        lambda border: Border(
            border.nodes, border.names, border.rows[1:], border.silos[1:], border.remote[1:]
        ),
    ],
)
def test_contradicting_borders(spoil: Callable[[Border], Border]) -> None:
    borders = dict(PARTITION.borders)
    check_borders(borders)
    with pytest.raises(GraphError, match="border"):
        check_borders({**borders, "silo-1": spoil(borders["silo-1"])})
