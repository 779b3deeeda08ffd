"""What deep neighbours can be worth to FedDEP's classifier, and what its generators make of them.

Cora, cut at random into five silos, where four fifths of the edges are missing. Every row trains F
by FedAvg and tests it in two ways: *zeros* is the paper's inference, the whole graph with all
mended embeddings zero; *with them* is each silo's own graph with its mended embeddings. Each way
has its own choice of the round, by validation nodes tested the same way.

True neighbours in place of generated ones are the most a generator could give: every node gets the
embeddings of the neighbours it really misses, of a GNN trained on the whole graph. "labels apart":
that GNN learns from one half of the training nodes and F from the other, so that no embedding can
give away a label F is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import fedmend as fm
from benchmarks.common import Measured, Options, Row, working_on
from fedmend.data.partition import Partition
from fedmend.data.sampling import Hop, whole_graph_hop
from fedmend.engines.computing import computing_with
from fedmend.federation import Nothing, Schema
from fedmend.graph import Graph
from fedmend.mending.deep import EncoderTraining
from fedmend.mending.generator import Generated
from fedmend.mending.nearest import nearest_rows
from fedmend.methods import fedavg, feddep
from fedmend.models.backbones import Backbone, build
from fedmend.models.features import Features
from fedmend.training.aggregation import weighted_mean
from fedmend.training.streams import stream

SILOS = 5
SEEDS = 5

Silos = Mapping[str, feddep.Silo]
Mend = Callable[[Partition, Silos, int], Row]
"""Gives silos their deep neighbours; what it says of them goes into the row."""


def nobody(_: Partition, silos: Silos, seed: int) -> Row:  # noqa: ARG001  # one shape for all
    return {}


def generated(_: Partition, silos: Silos, seed: int) -> Row:  # noqa: ARG001  # one shape for all
    """Proto and DGen, as `feddep` does it."""
    shared = {name: silo.share_prototypes(Nothing()).centres for name, silo in silos.items()}
    sets = feddep.AllPrototypes({str(i): each for i, each in enumerate(shared.values())})
    spread, known, told = [], Shares(), Shares()
    for silo in silos.values():
        silo.learn_generator(sets)
        made = silo.local.neighbours
        if made is None or silo.embeddings is None or silo.prototypes is None:
            raise RuntimeError(f"{silo.name} generated nothing")
        spread.append(_deviation(made.rows) / _deviation(silo.embeddings))
        classes = _classes_of_clusters(silo.graph.y, silo.prototypes.cluster)
        everyone = torch.arange(silo.graph.num_nodes)
        for rows, owner, shares in (
            (silo.embeddings, everyone, known),
            (made.rows, made.owner, told),
        ):
            found = classes[nearest_rows(rows, silo.prototypes.centres)]
            shares.add(found == silo.graph.y[owner], silo.graph, owner)
    return {
        "spread": sum(spread) / len(spread),
        "embeddings_right": known.means(),
        "generated_right": told.means(),
    }


def true_ones(partition: Partition, silos: Silos, seed: int) -> Row:
    """The true embeddings of the true missing neighbours."""
    whole = _whole(partition)
    taught = _taught(whole, silos, partition)
    settings = next(iter(silos.values())).settings
    training = EncoderTraining("whole", taught, settings, seed)
    training.train()
    embeddings = training.embeddings()
    heard = torch.repeat_interleave(torch.arange(whole.num_nodes), whole.degree)
    for name, silo in silos.items():
        rows = torch.from_numpy(partition.rows(name))
        place = torch.full((whole.num_nodes,), -1)
        place[rows] = torch.arange(len(rows))
        cut = (place[heard] >= 0) & (place[whole.col] < 0)
        silo.local.neighbours = Generated(embeddings[whole.col[cut]], place[heard[cut]])
    return {}


def _taught(whole: Graph, silos: Silos, partition: Partition) -> Graph:
    """The whole graph with the training nodes that no silo trains F on; if there are none, all."""
    used = torch.zeros(whole.num_nodes, dtype=torch.bool)
    for name, silo in silos.items():
        used[torch.from_numpy(partition.rows(name))] = silo.graph.train_mask
    left = whole.train_mask & ~used
    train = left if bool(left.any()) else whole.train_mask
    return whole.with_masks(train, whole.val_mask, whole.test_mask)


@dataclass(frozen=True)
class Trial:
    """One row: who gives the deep neighbours, and the settings that differ from the defaults."""

    what: str
    mend: Mend
    settings: Mapping[str, Any]
    apart: bool = False


GENERATORS: dict[str, dict[str, Any]] = {
    "generated, all weights 1 (default)": {},
    "generated, no pull towards other silos": {
        "others_weight": 0.0,
        "generator_epochs": 400,
        "least_neighbours": 1,
    },
    "the same, local GNN of 5 epochs": {
        "others_weight": 0.0,
        "generator_epochs": 400,
        "least_neighbours": 1,
        "encoder_epochs": 5,
    },
}
TRIALS = (
    Trial("nobody (FedAvg)", nobody, {}),
    Trial("true ones, r=1", true_ones, {"rate": 1.0}),
    Trial("true ones, r=0.5", true_ones, {"rate": 0.5}),
    Trial("nobody, half of the labels", nobody, {}, apart=True),
    Trial("true ones, r=1, labels apart", true_ones, {"rate": 1.0}, apart=True),
    Trial("true ones, r=0.5, labels apart", true_ones, {"rate": 0.5}, apart=True),
    *(
        Trial(f"{what}, r={rate:g}", generated, {**settings, "rate": rate})
        for what, settings in GENERATORS.items()
        for rate in (1.0, 0.5)
    ),
)


def deep_neighbours(options: Options) -> Measured:
    """A row per trial, with a figure per seed."""
    seeds, rounds = (1, 2) if options.quick else (SEEDS, 50)
    cora = fm.load("cora")
    rows = []
    for trial in TRIALS:
        with working_on(trial.what), computing_with(1):
            found = [one_seed(trial, cora, seed, rounds) for seed in range(seeds)]
        rows.append({"what": trial.what, "seeds": found})
    return Measured(rows, {"silos": SILOS, "split": "random", "rounds": rounds})


def one_seed(trial: Trial, graph: Graph, seed: int, rounds: int) -> Row:
    """The accuracies of one trial and seed, and what the mending says of itself."""
    partition = fm.split(graph, SILOS, "random", seed=seed)
    # Nobody hears itself: what is measured is the embeddings, and nothing beside them.
    settings = feddep.FedDEPSettings(self_loops="none", **trial.settings)
    coin = torch.rand(graph.num_nodes, generator=stream(seed, "server", "labels apart")) < 0.5
    silos = {}
    for name, own in partition.silos.items():
        train = own.train_mask
        if trial.apart:
            train = train & coin[torch.from_numpy(partition.rows(name))]
        used = own.with_masks(train, own.val_mask, own.test_mask)
        silos[name] = feddep.Silo(name, used, settings, seed)
    said = trial.mend(partition, silos, seed)
    return {**trained(_whole(partition), silos, settings, seed, rounds), **said}


def trained(
    whole: Graph, silos: Silos, settings: feddep.FedDEPSettings, seed: int, rounds: int
) -> Row:
    """FedAvg of F; its test accuracies with zeros and with the mended embeddings."""
    shape = settings.shape(Schema(whole.num_features, whole.label_names))
    model = build(shape, stream(seed, "server", "initial weights"))
    weights = {key: each.detach() for key, each in model.named_parameters()}
    own = [Place.of(silo.graph, _mended(silo)) for silo in silos.values()]
    ways = {"zeros": [replace(place, mended=None) for place in own], "with_them": own}
    tested = {"zeros": [Place.of(whole, None)], "with_them": own}
    best = dict.fromkeys(ways, -1.0)
    result: Row = {}
    for _ in range(rounds):
        updates = {name: silo.train(fedavg.Weights(weights)) for name, silo in silos.items()}
        weights = weighted_mean(
            {name: update.weights for name, update in updates.items()},
            {name: float(update.training_nodes) for name, update in updates.items()},
            like=weights,
        )
        model.load_state_dict(weights)
        for way, places in ways.items():
            validated = accuracy(model, places, "val_mask")
            if validated >= best[way]:
                best[way] = validated
                result[way] = accuracy(model, tested[way], "test_mask")
    return result


@dataclass(frozen=True)
class Place:
    """A graph to predict on, and what its nodes bring along."""

    graph: Graph
    features: Features
    hop: Hop
    mended: Tensor | None

    @staticmethod
    def of(graph: Graph, mended: Tensor | None) -> Place:
        return Place(graph, Features(graph.x, reused=True), whole_graph_hop(graph), mended)


@torch.no_grad()
def accuracy(model: Backbone, places: list[Place], role: str) -> float:
    """Over the nodes of a role in all places together."""
    model.eval()
    right = []
    for place in places:
        scores = model(place.features, [place.hop] * len(model.layers), None, place.mended)
        mask = getattr(place.graph, role)
        right.append((scores.argmax(1) == place.graph.y)[mask])
    return float(torch.cat(right).double().mean())


class Shares:
    """Counts what is right for training and for test nodes."""

    def __init__(self) -> None:
        self._right: dict[str, list[Tensor]] = {"train": [], "test": []}

    def add(self, right: Tensor, graph: Graph, owner: Tensor) -> None:
        self._right["train"].append(right[graph.train_mask[owner]])
        self._right["test"].append(right[graph.test_mask[owner]])

    def means(self) -> dict[str, float]:
        return {role: float(torch.cat(each).double().mean()) for role, each in self._right.items()}


def _mended(silo: feddep.Silo) -> Tensor | None:
    made = silo.local.neighbours
    return None if made is None else made.mean(silo.graph.num_nodes)


def _whole(partition: Partition) -> Graph:
    if partition.whole is None:
        raise RuntimeError("a dataset that was cut is known as a whole")
    return partition.whole


def _deviation(rows: Tensor) -> float:
    """How far rows are from their mean, as a root mean square."""
    return float(((rows - rows.mean(0)) ** 2).sum(1).mean().sqrt())


def _classes_of_clusters(labels: Tensor, cluster: Tensor) -> Tensor:
    """The commonest class of every cluster."""
    counts = torch.zeros(int(cluster.max()) + 1, int(labels.max()) + 1)
    counts.index_put_((cluster, labels), torch.ones(len(labels)), accumulate=True)
    return counts.argmax(1)
