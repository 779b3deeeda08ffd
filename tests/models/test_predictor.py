"""What a silo predicts with: ids tell who is who, and a file is believed nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedmend.data.mended import mended
from fedmend.errors import DataError
from fedmend.graph import Graph
from fedmend.models.backbones import ModelShape, build
from fedmend.models.predictor import Predictor, hash_of, predict, predictor
from tests.tiny import same_weights, tiny_graph

GRAPH = tiny_graph(20)
FUSED = ModelShape("fused-sage", 6, 3, hidden=8, layers=2, heads=1, dropout=0.5, embedding=4)
SHAPE = replace(FUSED, backbone="sage", embedding=0)
ROWS = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
MADE = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
OWNERS = torch.tensor([0, 3, 3, 7, 19])


def weights_of(shape: ModelShape) -> dict[str, Tensor]:
    model = build(shape, torch.Generator().manual_seed(0))
    return {key: value.detach() for key, value in model.named_parameters()}


def of(shape: ModelShape) -> Predictor:
    return Predictor(shape, weights_of(shape), True, GRAPH.node_ids)


def moved() -> tuple[Graph, Tensor]:
    """The graph with its nodes in another order, some of them gone."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))[:15]
    return GRAPH.subgraph(order), order


def test_rows_follow_their_nodes() -> None:
    found = replace(of(FUSED), rows=ROWS)
    assert torch.equal(found.predict(GRAPH), predict(found.model, GRAPH, ROWS))
    graph, order = moved()
    assert torch.equal(found.predict(graph), predict(found.model, graph, ROWS[order]))
    assert not torch.equal(found.predict(graph), predict(found.model, graph))


def test_nodes_that_are_new_bring_nothing_along_unless_something_inserts_them() -> None:
    known = Predictor(FUSED, weights_of(FUSED), True, GRAPH.node_ids[:18], rows=ROWS[:18])
    none = torch.cat([ROWS[:18], torch.zeros(2, 4)])
    assert torch.equal(known.predict(GRAPH), predict(known.model, GRAPH, none))
    asked: list[list[int]] = []

    def insert(_: Predictor, graph: Graph, new: Tensor) -> Tensor:
        asked.append(new.tolist())
        return ROWS[new]

    given = replace(known, insert=insert).predict(GRAPH)
    assert asked == [[18, 19]]
    assert torch.equal(given, predict(known.model, GRAPH, ROWS))


def test_generated_neighbours_follow_their_owners() -> None:
    found = replace(of(SHAPE), generated=(MADE, OWNERS))
    whole = mended(GRAPH, OWNERS, MADE)
    assert torch.equal(found.predict(GRAPH), predict(found.model, whole)[:20])
    graph, order = moved()
    places = {int(node): place for place, node in enumerate(order)}
    kept = [(row, places[int(o)]) for row, o in enumerate(OWNERS) if int(o) in places]
    rows, owners = (torch.tensor(each) for each in zip(*kept, strict=True))
    expected = predict(found.model, mended(graph, owners, MADE[rows]))[:15]
    torch.testing.assert_close(found.predict(graph), expected)


def test_what_was_heard_is_of_one_graph() -> None:
    heard = torch.softmax(torch.randn(20, 3), 1)
    found = replace(of(SHAPE), heard=heard, of_graph=hash_of(GRAPH))
    assert found.predict(GRAPH) is heard
    other = Graph(
        GRAPH.x + 1, GRAPH.edges, GRAPH.y, node_ids=GRAPH.node_ids, label_names=GRAPH.label_names
    )
    assert torch.equal(found.predict(other), predict(found.model, other))


@pytest.mark.parametrize("mode", ["own-subgraph", "global-graph", "cross-edges"])
def test_what_counts_in_each_mode(mode: str) -> None:
    found = replace(
        of(FUSED), rows=ROWS, generated=(MADE, OWNERS), heard=torch.zeros(20, 3), anywhere=False
    ).on(mode)
    assert (found.rows is not None) == (mode == "own-subgraph")
    assert (found.generated is not None) == (mode == "own-subgraph")
    assert (found.heard is not None) == (mode == "cross-edges")
    assert replace(of(FUSED), rows=ROWS, anywhere=True).on(mode).rows is ROWS


def test_what_is_remembered_is_read_again() -> None:
    server = {"module/x": torch.ones(2)}
    before = replace(
        of(FUSED),
        rows=ROWS,
        generated=(MADE, OWNERS),
        heard=torch.ones(20, 3),
        of_graph=hash_of(GRAPH),
        known={"autoencoder/y": torch.ones(1)},
    ).knowing(server)
    after = of(FUSED).remembering(before.remembered(), server)
    assert same_weights(after.remembered(), before.remembered())
    assert after.of_graph == before.of_graph
    assert after.known.keys() == {"autoencoder/y", "server/module/x"}
    assert (before.can_insert(), replace(before, known={}).can_insert()) == (True, False)


@pytest.mark.parametrize(
    "told",
    [
        {"rows": ROWS[:3]},
        {"rows": ROWS[:, :3]},
        {"rows": ROWS.double()},
        {"rows": ROWS * float("nan")},
        {"heard": torch.ones(20, 2), "graph": torch.ones(1, dtype=torch.uint8)},
        {"generated features": MADE, "generated for": OWNERS + 1},
        {"generated features": MADE, "generated for": OWNERS - 1},
        {"generated features": MADE, "generated for": OWNERS.double()},
        {"generated features": MADE[:, :2], "generated for": OWNERS},
        {"generated features": MADE[:2], "generated for": OWNERS},
    ],
)
def test_what_cannot_be_of_the_silo_is_refused(told: dict[str, Tensor]) -> None:
    with pytest.raises(DataError) as caught:
        of(FUSED).remembering(told, {})
    assert "\n" not in str(caught.value)


def test_a_silo_without_a_model_predicts_with_none() -> None:
    assert predictor(SHAPE, GRAPH.node_ids, None, {}) is None
    assert predictor(SHAPE, GRAPH.node_ids, None) is None
    own = predictor(SHAPE, GRAPH.node_ids, None, weights_of(SHAPE))
    assert own is not None
    assert not own.shared
