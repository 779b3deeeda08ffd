"""FedGGR: the server learns the missing global graph from an embedding of every node.

Liu et al., "Subgraph Federated Learning with Global Graph Reconstruction", section 4. Phases:

1. *Local pre-training* (4.2). Every silo trains a graph autoencoder on its own graph and sends the
   compressed embedding of each of its nodes to the server, once.
2. *Split learning* (4.5, algorithm 1). In every round the server learns a graph over all nodes from
   their embeddings and gives each node a row of Z_glob from its neighbours there (4.4; see
   `fedmend.models.learned_graph`). Each silo gets its nodes' rows, makes Q passes over its training
   nodes with [Z_loc || Z_glob] (4.3), and gives back its weights, which the server averages by
   |V_i|, and the gradient of its rows, from which the server learns, weighted |V_i| / |V|.

What leaves a silo beyond FedAvg's messages: an embedding of every node, and in every round the
gradient of every node's row. Labels are never sent, but the gradients reveal those of the training
nodes to a server that knows the last linear layer, and which nodes these are; the embeddings say
much about the features. `embedding_noise` and `gradient_noise` clip both and add Gaussian noise;
what that is worth is computed and kept in the run's record. See docs/methods/fedggr.md.

Where this follows the released code, or neither it nor the paper:
- Nothing is N x N. The code's dense form gives every pair that is *not* a neighbour the weight
  e^-6; that is kept, as an exact rank-one term (`background`).
- The code sends labels to the server beside the embeddings. Here they never leave.
- The autoencoders are one GCN layer each way, as in the code (the paper says two:
  `autoencoder_layers`). All start from the same weights and are averaged (`autoencoder_rounds`;
  0 = the paper's, each silo alone): trained apart their axes have little in common, and similarity
  across silos means little. The share of learned edges that cross silos is in the history.
- With Q > 1 the last local epoch's gradient is returned. With mini-batches it is the mean over
  the epoch's batches.
- A silo's dropout acts on the rows it received as well. The server has none by default, so that
  the same rows serve training and validation; with `global_dropout` it sends both kinds.
- The weights of the best round and the rows that went with them are the result.
- A silo that is lost in a round leaves its rows without a gradient for that round: an old one
  would belong to other weights. A silo whose embeddings have not arrived is asked for them again
  in every round, and trains without rows (zeros) until they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Unpack

import torch
from torch import Tensor

from fedmend.config import setting
from fedmend.errors import FederationError
from fedmend.federation import Federation, Handed, Nothing, Schema, message
from fedmend.graph import Graph
from fedmend.mending.learned_graph import (
    GlobalModule,
    GraphMemory,
    LearnedGraphSettings,
    initial_module,
    newcomers,
    remembered,
)
from fedmend.mending.pretraining import (
    Pretraining,
    PretrainingSettings,
    collect_embeddings,
    pretrain,
)
from fedmend.methods import fedavg
from fedmend.methods.fedavg import Validation
from fedmend.models.backbones import ModelShape
from fedmend.models.predictor import Predictor
from fedmend.privacy.account import Account
from fedmend.privacy.accountants.gaussian import GaussianAccountant, gaussian_account
from fedmend.privacy.ledger import Kind
from fedmend.privacy.mechanism import GaussianRows
from fedmend.training.aggregation import weighted_mean
from fedmend.training.personal import chosen, first_weights
from fedmend.training.proximal import ProximalSettings, Pull
from fedmend.training.rounds import Round, importances, mean_loss, train_rounds, validated
from fedmend.training.selection import OwnBest
from fedmend.training.split import SplitTraining
from fedmend.training.state import Part, Values


@dataclass(frozen=True, kw_only=True)
class FedGGRSettings(
    LearnedGraphSettings, PretrainingSettings, fedavg.FedAvgSettings, ProximalSettings
):
    """FedAvg's settings with the paper's defaults, and those of the learned graph."""

    rounds: int = setting(200, "rounds of training", low=1, high=10**6)
    patience: int = setting(
        50, "stop after so many rounds without better validation; 0 = never", low=0
    )
    batch_size: int = setting(0, "training nodes per step; 0 = all at once", low=0)
    fan_out: int = setting(0, "neighbours drawn per node and layer; 0 = all", low=0, high=10**6)
    backbone: str = setting(
        "gcn", "the silo's network", choices=("gcn", "gat", "gpr", "sage", "mlp")
    )
    hidden: int = setting(64, "width of the hidden layers", low=1, high=10**6)
    dropout: float = setting(0.5, "share of hidden values dropped in training", low=0.0, high=0.99)
    lr: float = setting(0.01, "step size, of silos and server", low=0.0)
    weighting: str = setting(
        "all",
        "silos count by all their nodes, by their training nodes (nodes), or equal",
        choices=("all", "nodes", "equal"),
    )
    local_width: int = setting(64, "width of Z_loc (F_l)", low=1, high=10**5)
    aggregation: str = setting(
        "fedavg",
        "fedavg; fedprox: silos are pulled towards the shared weights; fedper: the last linear "
        "layer stays with the silo",
        choices=("fedavg", "fedprox", "fedper"),
    )
    gradient_noise: float = setting(
        0.0, "noise on returned gradients over their clipping norm; 0 = neither", low=0.0
    )
    gradient_clip: float = setting(1e-3, "norm they are clipped to if noised", low=1e-9)

    def shape(self, schema: Schema) -> ModelShape:
        plain = super().shape(schema)
        if not self.global_width:
            return plain
        return replace(plain, embedding=self.global_width, joined=self.local_width)

    def is_shared(self, key: str) -> bool:
        """Whether a weight of the silo's side is averaged."""
        return self.aggregation != "fedper" or not key.startswith("joint.")


# Messages


@message("fedggr.GlobalRows")
class GlobalRows:
    """The shared model, and the rows of Z_glob of a silo's nodes; none if the server has none.

    training_rows: those to train with, where dropout makes them others than those to predict with.
    """

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    rows: Annotated[Tensor, Kind.EMBEDDINGS]
    training_rows: Annotated[Tensor, Kind.EMBEDDINGS]


@message("fedggr.SplitUpdate")
class SplitUpdate:
    """A silo's weights after training, and the gradient of its rows in the last local epoch."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    gradient: Annotated[Tensor, Kind.GRADIENTS]
    nodes: Annotated[int, Kind.COUNTS]
    training_nodes: Annotated[int, Kind.COUNTS]
    loss: Annotated[float, Kind.METRICS]
    validation: Annotated[Tensor, Kind.METRICS]


# The silo's side


class Silo(Pretraining, fedavg.Silo):
    """A silo that embeds its nodes for the server, and trains with what the server makes of it."""

    settings: FedGGRSettings
    local: SplitTraining

    def __init__(
        self, name: str, graph: Graph, settings: FedGGRSettings, seed: int, **handed: Unpack[Handed]
    ) -> None:
        super().__init__(name, graph, settings, seed, **handed)
        shape = self.local.model.shape
        self.local = SplitTraining(name, graph, shape, settings, seed)
        if settings.aggregation == "fedper":
            self.local.load(first_weights(shape, seed))
        self.best = OwnBest(settings.metric)
        self.best_rows: Tensor | None = None
        source, nodes = self.noise.under("privacy noise"), graph.num_nodes
        self.start_pretraining(source)
        self.gradient_noise = GaussianRows(
            settings.gradient_clip, settings.gradient_noise, GaussianAccountant(nodes), source
        )

    # Split learning

    def train_split(self, received: GlobalRows) -> SplitUpdate:
        checked = self.validate_split(received)
        settings, local = self.settings, self.local
        if len(received.training_rows):
            self._check(received.training_rows)
            local.rows = received.training_rows.to(local.device)
        prox = settings.aggregation == "fedprox"
        loss = local.train(Pull(received.weights, settings.mu) if prox else None)
        gradient = received.rows if local.gradient is None else local.gradient.cpu()
        return SplitUpdate(
            chosen(local.weights(), settings.is_shared),
            self.gradient_noise.release(gradient),
            self.graph.num_nodes,
            len(local.train_nodes),
            loss,
            checked.validation,
        )

    def validate_split(self, received: GlobalRows) -> Validation:
        """How the received weights and rows do on the silo's validation nodes."""
        self._take(received)
        found = self.local.validate()
        personal = self.settings.aggregation == "fedper"
        if personal and self.best.offer(self.local.weights(), found):
            self.best_rows = self.local.rows
        return Validation(found)

    def keep(self, received: GlobalRows) -> Nothing:
        """The result: the weights and rows of the best round."""
        self._take(received)
        self.best_rows = self.local.rows
        return Nothing()

    def _take(self, received: GlobalRows) -> None:
        rows = received.rows
        self._check(rows)
        self.local.load(received.weights)
        self.local.rows = rows.to(self.local.device) if rows.numel() else None

    def _check(self, rows: Tensor) -> None:
        width = self.settings.global_width
        if rows.shape not in ((0, width), (self.graph.num_nodes, width)):
            raise FederationError(
                f"{self.name} got rows of {tuple(rows.shape)} from the server, expected "
                f"{(self.graph.num_nodes, width)}"
            )

    def own_weights(self) -> dict[str, Tensor] | None:
        return self.best.weights or None

    def predictor(self, shared: Mapping[str, Tensor] | None) -> Predictor | None:
        found = super().predictor(shared)
        if found is None or self.best_rows is None:
            return found
        known = {}
        if self.autoencoder is not None and not self.settings.autoencoder_rounds:
            weights = self.autoencoder.weights()
            known = {f"autoencoder/{key}": value for key, value in weights.items()}
        rows = self.best_rows.cpu()
        insert = newcomers(self.settings, self.seed, self.name)
        return replace(found, rows=rows, anywhere=True, known=known, insert=insert)

    def privacy_facts(self) -> dict[str, float]:
        """How many nodes it has, and how often each one's row was released."""
        if not self.settings.global_width:
            return {}
        return {
            "nodes": float(self.graph.num_nodes),
            "embeddings": float(self.embedding_noise.accountant.uses),
            "gradients": float(self.gradient_noise.accountant.uses),
        }

    # Saving

    def parts(self) -> Mapping[str, Part]:
        return {
            **super().parts(),
            "best": self.best,
            **self.of_pretraining(),
            "gradient noise": self.gradient_noise,
            "rows": Values(self, best_rows=Tensor),
        }


# The server's side


def server(silos: Federation[Silo], settings: FedGGRSettings) -> dict[str, Tensor] | None:
    """Pre-training, split learning, and the best round's rows for everybody."""
    memory = learn(silos, settings)
    return None if settings.aggregation == "fedper" else memory.best


def learn(silos: Federation[Silo], settings: FedGGRSettings) -> GraphMemory:
    """Algorithm 1; gives all that the server knows in the end."""
    weights = fedavg.initial_weights(silos, settings)
    memory = GraphMemory({key: each for key, each in weights.items() if settings.is_shared(key)})
    if settings.global_width:
        memory.module = initial_module(silos, settings)
        memory.dropping = silos.stream("global dropout").get_state()
        pretrain(silos, settings, memory)
    split_rounds(silos, settings, memory)
    if settings.aggregation != "fedper":
        silos.note(memory.best_round, selected=1.0)
        if settings.global_width:
            messages = _rows_for(silos, settings, memory.best, memory.best_rows)
            silos.ask_each(Silo.keep, messages).enough(settings.min_silos)
    if settings.global_width:
        silos.remember(remembered(memory))
    return memory


def split_rounds(silos: Federation[Silo], settings: FedGGRSettings, memory: GraphMemory) -> None:
    """Rounds of split learning, each round's weights and rows offered to the selection."""
    module: GlobalModule | None = None
    rows: dict[str, Tensor] = {}
    as_offered: dict[str, Tensor] = {}

    def make_rows(number: int) -> GlobalModule | None:
        """Rows of round `number`, on neighbours that are searched anew when it is due."""
        nonlocal module, rows, as_offered
        if settings.global_width:
            module = module or GlobalModule(settings, memory)
            if module.search((number - 1) % settings.refresh == 0):
                silos.note(number - 1, crossing_edges=module.crossing())
            rows, as_offered = module.rows(), module.weights()
        return module

    def one_round(number: int) -> Round:
        missing = [name for name in silos.names if name not in memory.embeddings]
        if settings.global_width and missing:
            collect_embeddings(silos, settings, memory, missing)
        learner = make_rows(number)
        dropped = {} if learner is None else learner.training_rows()
        messages = _rows_for(silos, settings, memory.weights, rows, dropped)
        updates = silos.ask_each(Silo.train_split, messages).enough(settings.min_silos)
        received = {name: update.weights for name, update in updates.items()}
        importance = importances(updates, settings.weighting)
        if settings.weighting == "all":
            importance = {name: float(update.nodes) for name, update in updates.items()}
        weights = weighted_mean(received, importance, like=memory.weights)
        if learner is not None:
            learner.learn({name: update.gradient for name, update in updates.items()})
        return Round(weights, validated(updates), mean_loss(updates))

    def validate() -> dict[str, Tensor]:
        make_rows(memory.done + 1)
        messages = _rows_for(silos, settings, memory.weights, rows)
        finals = silos.ask_each(Silo.validate_split, messages).enough(settings.min_silos)
        return validated(finals)

    def keep_rows() -> None:
        memory.best_rows, memory.best_neighbours = dict(rows), memory.neighbours
        memory.best_module = as_offered

    train_rounds(silos, settings, memory, one_round, validate, keep_rows)


def _rows_for(
    silos: Federation[Silo],
    settings: FedGGRSettings,
    weights: dict[str, Tensor],
    rows: Mapping[str, Tensor],
    training_rows: Mapping[str, Tensor] | None = None,
) -> dict[str, GlobalRows]:
    """Every silo's message; a silo that the server has no rows for gets none."""
    none = torch.zeros(0, settings.global_width)
    others = training_rows or {}
    return {
        name: GlobalRows(weights, rows.get(name, none), others.get(name, none))
        for name in silos.names
    }


# What it reveals


def privacy(settings: FedGGRSettings, facts: Mapping[str, Mapping[str, float]]) -> list[Account]:
    """What the server was given, and what the noise on it is worth, if there is any."""
    if not settings.global_width:
        return []  # nothing but FedAvg's messages is sent
    nodes = sum(int(each["nodes"]) for each in facts.values())
    # A row may be replaced by any other: twice the clipping norm apart.
    uses = {
        name: {noise / 2.0: max(int(each[name]) for each in facts.values())}
        for name, noise in (
            ("embeddings", settings.embedding_noise),
            ("gradients", settings.gradient_noise),
        )
    }
    both = Counter(uses["embeddings"])
    both.update(uses["gradients"])
    embeddings = gaussian_account("embeddings", PER, uses["embeddings"])
    gradients = gaussian_account("gradients", PER, uses["gradients"])
    together = gaussian_account("embeddings and gradients together", PER, both)
    return [
        replace(
            embeddings,
            sentence=f"The server is given an embedding of each of the {nodes} nodes (width "
            f"{settings.embedding}). {embeddings.sentence}",
        ),
        replace(
            gradients,
            sentence="The server is given the gradient of every node's row in every round, which "
            f"reveals training labels unless it is noised. {gradients.sentence}",
        ),
        replace(
            together,
            sentence=f"{together.sentence} This holds for one node's own row: its neighbours' rows "
            "and the weights depend on it as well and are not counted.",
        ),
    ]


PER = "a node's own row"
