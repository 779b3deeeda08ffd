"""Generated neighbours beside the true ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedmend.evaluation import generated
from fedmend.evaluation.generated import Generated, compare_generated
from fedmend.runs.train import train
from tests.tiny import QUICK, tiny_partition

PARTITION = tiny_partition()


def invented(name: str, count: int) -> Generated:
    graph = PARTITION.silos[name]
    owner = torch.arange(count) % graph.num_nodes
    rows = torch.randn(count, graph.num_features, generator=torch.Generator().manual_seed(count))
    return Generated(rows, owner, graph.x)


def test_numbers_are_those_counted_by_hand() -> None:
    found = {name: invented(name, 3) for name in PARTITION.names}
    compared = compare_generated(found, PARTITION)
    assert PARTITION.whole is not None
    assert PARTITION.assignment is not None
    true = []
    for place, name in enumerate(PARTITION.names):
        for node in PARTITION.rows(name).tolist():
            start, end = PARTITION.whole.rowptr[node : node + 2].tolist()
            others = PARTITION.whole.col[start:end].tolist()
            true.append(sum(PARTITION.assignment[other] != place for other in others))
    assert compared["true"] == true
    assert compared["missing"] == 2 * PARTITION.cross_edges.shape[1]
    assert compared["generated"] == 9
    first = PARTITION.silos[PARTITION.names[0]].num_nodes
    assert compared["predicted"][:first] == [1, 1, 1] + [0] * (first - 3)


def test_the_plane_keeps_the_main_distances() -> None:
    """Rows that differ on two axes only keep their distances."""
    rows = torch.zeros(6, 6)
    rows[:, 2] = torch.tensor([0.0, 1, 2, 3, 4, 5])
    rows[:, 4] = torch.tensor([0.0, 2, -1, 3, 1, 0])
    name = PARTITION.names[0]
    flat = torch.zeros(PARTITION.silos[name].num_nodes, 6)
    found = compare_generated({name: Generated(rows, torch.arange(6), flat)}, PARTITION)
    points = torch.tensor(found["projection"]["generated"])
    torch.testing.assert_close(
        torch.cdist(points, points), torch.cdist(rows, rows), atol=1e-3, rtol=0
    )


def test_the_plane_is_that_of_the_covariances_two_main_axes() -> None:
    found = {name: invented(name, 9) for name in PARTITION.names}
    projection = compare_generated(found, PARTITION)["projection"]
    points = torch.tensor(projection["generated"] + projection["true"])
    assert PARTITION.whole is not None
    missing = generated._rows_of_missing(found, PARTITION, PARTITION.whole.num_nodes)
    rows = torch.cat([*(each.rows for each in found.values()), missing])
    centred = rows - rows.mean(0)
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -2:].flip(1)
    torch.testing.assert_close(points.abs(), (centred @ axes).abs(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("columns", [1, 2])
def test_even_a_line_is_drawn_on_a_plane(columns: int) -> None:
    name = PARTITION.names[0]
    flat = torch.zeros(PARTITION.silos[name].num_nodes, columns)
    made = Generated(torch.ones(1, columns), torch.zeros(1, dtype=torch.int64), flat)
    found = compare_generated({name: made}, PARTITION)["projection"]
    assert {len(point) for point in found["generated"] + found["true"]} == {2}


def test_a_record_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "MOST_NODES", 10)
    monkeypatch.setattr(generated, "MOST_POINTS", 7)
    compared = compare_generated({name: invented(name, 9) for name in PARTITION.names}, PARTITION)
    assert len(compared["true"]) == len(compared["predicted"]) == 10
    assert len(compared["projection"]["generated"]) == 7
    assert len(compared["projection"]["true"]) <= 7


def test_nothing_generated() -> None:
    compared = compare_generated({name: invented(name, 0) for name in PARTITION.names}, PARTITION)
    assert compared["generated"] == 0
    assert compared["projection"] == {"generated": [], "true": []}


def test_runs_of_generators_have_it_in_their_record_and_others_do_not() -> None:
    small: dict[str, Any] = {
        "embedding": 4,
        "generator_hidden": 4,
        "generator_epochs": 1,
        "hide": 0.4,
    }
    plus = train("fedsage+", PARTITION, generator_width=4, generator_rounds=0, **small, **QUICK)
    deep = train("feddep", PARTITION, encoder_epochs=1, **small, **QUICK)
    for result in (plus, deep):
        compared = result.record.generator
        assert compared is not None
        assert compared.missing == 2 * PARTITION.cross_edges.shape[1]
        assert compared.generated == sum(compared.predicted)
    assert train("fedavg", PARTITION, **QUICK).record.generator is None
