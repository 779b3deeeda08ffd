"""Somebody's own torch module as a backbone: the same figures as ours, and what it must keep."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend import register
from fedmend.config import make
from fedmend.data.sampling import drawing, gathered_hops, whole_graph_hop
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.methods import METHODS
from fedmend.models.backbones import BACKBONES, ModelShape, build
from fedmend.models.features import Features
from fedmend.models.predictor import model_with, predict
from fedmend.runs.cells import known_settings
from fedmend.runs.train import train
from tests.tiny import QUICK, same_weights, tiny_graph, tiny_partition

_NUMBERS = count()


def named(network: Callable[[ModelShape], nn.Module]) -> str:
    """Register a network under a name of its own; gives the name."""
    name = f"plain-{next(_NUMBERS)}"
    register("backbone", name, network)
    return name


class Gcn(nn.Module):
    """Two layers of a GCN, as one would write them down."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.first = nn.Linear(shape.num_features, shape.hidden)
        self.second = nn.Linear(shape.hidden, shape.outputs)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        degree = torch.bincount(edge_index[1], minlength=len(x))
        hidden = torch.relu(self._heard(self.first.weight, x, edge_index, degree) + self.first.bias)
        return (
            self._heard(self.second.weight, self.dropout(hidden), edge_index, degree)
            + self.second.bias
        )

    def _heard(self, weight: Tensor, x: Tensor, edge_index: Tensor, degree: Tensor) -> Tensor:
        told = x @ weight.T
        source, target = torch.cat([edge_index, torch.arange(len(x)).expand(2, -1)], dim=1)
        scale = (1.0 + degree).rsqrt()
        share = (scale[source] * scale[target])[:, None]
        return torch.zeros_like(told).index_add(0, target, told[source] * share)


class GcnOfTrueDegrees(Gcn):
    """The same, told how many neighbours each node has in truth."""

    def forward(self, x: Tensor, edge_index: Tensor, degree: Tensor) -> Tensor:  # type: ignore[override]
        hidden = torch.relu(self._heard(self.first.weight, x, edge_index, degree) + self.first.bias)
        return self._heard(self.second.weight, hidden, edge_index, degree) + self.second.bias


GCN, TRUE_GCN = named(Gcn), named(GcnOfTrueDegrees)


def shape_of(backbone: str, **others: Any) -> ModelShape:
    sizes = {"num_features": 6, "num_classes": 3, "hidden": 5, "layers": 2, "heads": 1}
    return ModelShape(backbone, **{**sizes, "dropout": 0.0, **others})


def ours_as_theirs(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the built-in GCN, under the names of `Gcn`."""
    names = {"module.first": "layers.0", "module.second": "layers.1"}
    return {f"{theirs}.weight": weights[f"{ours}.weight"].T for theirs, ours in names.items()} | {
        f"{theirs}.bias": weights[f"{ours}.bias"] for theirs, ours in names.items()
    }


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("backbone", [GCN, TRUE_GCN])
def test_same_scores_as_the_built_in_gcn_with_the_same_weights(backbone: str, sparse: bool) -> None:
    graph = tiny_graph(sparse=sparse)
    ours = build(shape_of("gcn"), torch.Generator().manual_seed(1))
    weights = {key: torch.randn_like(value) for key, value in ours.state_dict().items()}
    ours.load_state_dict(weights)
    theirs = model_with(shape_of(backbone), ours_as_theirs(weights))
    torch.testing.assert_close(predict(theirs, graph), predict(ours.eval(), graph))


def test_same_scores_in_mini_batches_where_true_degrees_are_asked_for() -> None:
    """At the rim of a batch's neighbourhood, what is in it is less than what there is."""
    graph, batch = tiny_graph(), torch.tensor([3, 50, 7])
    draw = drawing(graph, 0, torch.Generator())
    hops, nodes = gathered_hops(graph, batch, 2, draw)
    assert len(nodes) < graph.num_nodes
    ours = build(shape_of("gcn"), torch.Generator().manual_seed(1)).eval()
    weights = ours_as_theirs(dict(ours.named_parameters()))
    everything = [whole_graph_hop(graph)] * 2
    expected = ours(Features(graph.x), everything)[batch]
    found = {
        backbone: model_with(shape_of(backbone), weights)(Features(graph.x[nodes]), hops)
        for backbone in (GCN, TRUE_GCN)
    }
    torch.testing.assert_close(found[TRUE_GCN], expected)
    assert not torch.allclose(found[GCN], expected)


def test_a_run_of_the_built_in_gcn_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same first weights FedAvg goes the same way, round by round."""
    from fedmend.methods import fedavg

    settings: dict[str, Any] = {**QUICK, "batch_size": 0, "fan_out": 0, "lr": 0.05}
    ours = train("fedavg", tiny_partition(), backbone="gcn", **settings)
    first = build(ours.shape, torch.Generator().manual_seed(3))
    start = {key: value.detach() for key, value in first.named_parameters()}
    monkeypatch.setattr(fedavg, "initial_weights", lambda *_: start)
    ours = train("fedavg", tiny_partition(), backbone="gcn", **settings)
    monkeypatch.setattr(fedavg, "initial_weights", lambda *_: ours_as_theirs(start))
    theirs = train("fedavg", tiny_partition(), backbone=GCN, **settings)
    assert ours.weights is not None
    assert theirs.weights is not None
    for key, value in ours_as_theirs(ours.weights).items():
        torch.testing.assert_close(theirs.weights[key], value, rtol=1e-3, atol=1e-5)
    assert theirs.accuracy == ours.accuracy


def test_a_batch_is_the_edges_that_were_drawn() -> None:
    """Compared with a plain loop over the hops: from whom to whom, each edge once."""
    graph = tiny_graph()
    seen: list[tuple[Tensor, Tensor]] = []

    class Looking(Gcn):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            seen.append((x, edge_index))
            return super().forward(x, edge_index)

    backbone = named(Looking)
    model = build(shape_of(backbone), torch.Generator().manual_seed(1))
    draw = drawing(graph, 2, torch.Generator().manual_seed(5))
    batch = torch.tensor([8, 1])
    hops, nodes = gathered_hops(graph, batch, 2, draw)
    scores = model(Features(graph.x[nodes]), hops)
    assert scores.shape == (2, 3)
    x, edges = seen[-1]
    assert torch.equal(x, graph.x[nodes])
    expected = {
        (int(source), row)  # gathered rows come first, so a row's number is its node's place
        for hop in hops
        for row in range(hop.rows)
        for source in hop.col[hop.rowptr[row] : hop.rowptr[row + 1]]
    }
    assert set(map(tuple, edges.T.tolist())) == expected
    assert edges.shape == (2, len(expected))
    known = {frozenset(pair) for pair in graph.edges.T.tolist()}
    assert {frozenset(nodes[list(pair)].tolist()) for pair in expected} <= known


TAKES_IT = ("global", "local", "oracle", "fedavg", "fedprox", "local+", "fedsage+")


@pytest.mark.parametrize("method", METHODS.built_in)
def test_a_method_takes_it_or_says_why_not(method: str) -> None:
    sizes = {"neighbours": 2, "generator_epochs": 1, "generator_rounds": 1, "embedding": 4}
    known = known_settings(method)
    for whole in ({}, {"batch_size": 0, "fan_out": 0}):
        given = {**QUICK, **sizes, **whole}
        settings = {key: value for key, value in given.items() if key in known}
        settings["backbone"] = GCN
        if method in TAKES_IT:
            result = train(method, tiny_partition(), **settings)
            assert result.shape.backbone == GCN
            assert 0.0 <= result.accuracy <= 1.0
            continue
        with pytest.raises((SettingsError, UnknownNameError)) as caught:
            train(method, tiny_partition(), **settings)
        said = str(caught.value)
        assert "\n" not in said
        assert GCN in said


def test_no_layers_means_none_can_stay_personal() -> None:
    """FedPer counts layers: a module says where they are, in `self.layers`."""

    class Layered(nn.Module):
        def __init__(self, shape: ModelShape) -> None:
            super().__init__()
            widths = [shape.num_features, shape.hidden, shape.outputs]
            self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            first, second = self.layers
            found: Tensor = second(torch.relu(first(x)))
            return found

    with pytest.raises(SettingsError, match=r"keep them in self\.layers"):
        train("fedper", tiny_partition(), backbone=GCN, **QUICK)
    found = train("fedper", tiny_partition(), backbone=named(Layered), **QUICK)
    one, other = (found.own[name] for name in ("silo-0", "silo-1"))
    assert {key for key in one if not torch.equal(one[key], other[key])} >= {
        "module.layers.1.weight"
    }


def test_dropout_is_drawn_from_the_runs_own_stream() -> None:
    state = torch.get_rng_state()
    settings = {**QUICK, "dropout": 0.5, "backbone": GCN}
    one, again = (train("fedavg", tiny_partition(), **settings) for _ in range(2))
    still = train("fedavg", tiny_partition(), **{**settings, "dropout": 0.0})
    assert same_weights(one.weights, again.weights)
    assert not same_weights(one.weights, still.weights)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_first_weights_are_those_of_the_seed() -> None:
    shape = shape_of(GCN)
    one, again, other = (
        build(shape, torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2)
    )
    assert same_weights(one, again)
    assert not same_weights(one, other)


# What is refused, before anything is trained


class Changed(Gcn):
    """A GCN with something about it that does not work here."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.shape = shape
        self.more()

    def more(self) -> None: ...


class Buffered(Changed):
    def more(self) -> None:
        self.norm = nn.BatchNorm1d(4)


class GlobalDropout(Changed):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.3, self.training), edge_index)


class FixedDropout(Changed):
    def more(self) -> None:
        self.dropout = nn.Dropout(0.4)


class Constant(Changed):
    def more(self) -> None:
        self.scale = torch.tensor(2.0)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x * self.scale, edge_index)


class Wide(Changed):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index).repeat(1, 2)


class Doubles(Changed):
    def more(self) -> None:
        self.double()


class Empty(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


ONLY_ONE = Gcn(shape_of("gcn", num_features=4))
"""`ModelShape` of what is tried out: at most four features."""


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (Buffered, r"keeps buffers \(norm.running_mean\)"),
        (GlobalDropout, r"draws from torch's generator for everybody: use torch\.nn\.Dropout"),
        (FixedDropout, "differs between training and predicting"),
        (Constant, "holds more than its parameters: make its constants in forward"),
        (Wide, r"must give 3 numbers for each of 6 nodes, it gave \(6, 6\)"),
        (Doubles, "must have parameters, all of them float32"),
        (Empty, "must have parameters"),
        (lambda shape: ONLY_ONE, "gives the same module twice"),
        (lambda shape: "a network", "must give a torch.nn.Module, got 'a network'"),
    ],
)
def test_what_cannot_be_averaged_sent_and_saved_is_refused(
    network: Callable[[ModelShape], nn.Module], said: str
) -> None:
    state = torch.get_rng_state()
    with pytest.raises(SettingsError, match=f"backbone 'plain-[0-9]+'.* {said}"):
        train("fedavg", tiny_partition(), backbone=named(network), **QUICK)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_list_has_its_first_line() -> None:
    assert BACKBONES[GCN].description == "Two layers of a GCN, as one would write them down"
    settings = make(METHODS["fedavg"].settings_type, {"backbone": GCN})
    assert settings.backbone == GCN
