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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedmend.config import setting
from fedmend.data.sampling import Hop, whole_graph_hop
from fedmend.errors import DataError, FederationError, FileFormatError
from fedmend.evaluation.evaluate import predict
from fedmend.federation import Federation, Nothing, Schema, message
from fedmend.graph import Graph
from fedmend.mending.nearest import squared_norms
from fedmend.methods import fedavg
from fedmend.methods.fedavg import Validation, share_right
from fedmend.methods.fedprox import pull_towards
from fedmend.models.autoencoder import GraphAutoencoder
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features
from fedmend.models.learned_graph import LearnedGraph, Pairs
from fedmend.models.neighbour_search import TILE, indexed_neighbours, nearest_neighbours
from fedmend.privacy.accountants.gaussian import gaussian_epsilon
from fedmend.privacy.ledger import Kind
from fedmend.runs.node_memory import NodeMemory
from fedmend.training.aggregation import weighted_mean
from fedmend.training.local import AdjustGradients, LocalTraining
from fedmend.training.optimizer import Optimizer
from fedmend.training.selection import OwnBest
from fedmend.training.state import under
from fedmend.training.streams import HidingNoise, stream


@dataclass(frozen=True, kw_only=True)
class FedGGRSettings(fedavg.FedAvgSettings):
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
    global_width: int = setting(
        64, "width of Z_glob (F_g); 0 = no global module, plain FedAvg", low=0, high=10**5
    )
    global_dropout: float = setting(
        0.0, "share of embeddings and hidden values the server drops", low=0.0, high=0.99
    )
    global_hidden: int = setting(64, "hidden width of the server's GCN", low=1, high=10**5)
    embedding: int = setting(64, "width of the uploaded embeddings (p)", low=1, high=10**5)
    neighbours: int = setting(15, "neighbours of a node in the learned graph (k)", low=1, high=1000)
    background: bool = setting(True, "pairs that are no neighbours keep the weight e^-6")
    search: str = setting(
        "exact", "exact, or by an index (faiss, not exact)", choices=("exact", "index")
    )
    refresh: int = setting(1, "rounds between two searches for neighbours", low=1)
    autoencoder_layers: int = setting(1, "GCN layers each way", low=1, high=10)
    autoencoder_epochs: int = setting(250, "steps on the whole graph it makes", low=0)
    autoencoder_lr: float = setting(0.03, "step size of the autoencoder", low=0.0)
    autoencoder_rounds: int = setting(
        25, "rounds in which the autoencoders are averaged; 0 = each silo trains alone", low=0
    )
    aggregation: str = setting(
        "fedavg",
        "fedavg; fedprox: silos are pulled towards the shared weights; fedper: the last linear "
        "layer stays with the silo",
        choices=("fedavg", "fedprox", "fedper"),
    )
    mu: float = setting(0.01, "pull towards the shared weights (fedprox)", low=0.0)
    embedding_noise: float = setting(
        0.0, "noise on uploaded embeddings over their clipping norm; 0 = neither", low=0.0
    )
    embedding_clip: float = setting(1.0, "norm they are clipped to if noised", low=1e-9)
    gradient_noise: float = setting(
        0.0, "noise on returned gradients over their clipping norm; 0 = neither", low=0.0
    )
    gradient_clip: float = setting(1e-3, "norm they are clipped to if noised", low=1e-9)

    @property
    def hides_with_noise(self) -> bool:
        return bool(self.global_width and (self.embedding_noise or self.gradient_noise))

    def shape(self, schema: Schema) -> ModelShape:
        plain = super().shape(schema)
        if not self.global_width:
            return plain
        return replace(plain, embedding=self.global_width, joined=self.local_width)

    def is_shared(self, key: str) -> bool:
        """Whether a weight of the silo's side is averaged."""
        return self.aggregation != "fedper" or not key.startswith("joint.")


# Messages


@message("fedggr.AutoencoderWeights")
class AutoencoderWeights:
    """The averaged autoencoder, from the server to a silo."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]


@message("fedggr.AutoencoderUpdate")
class AutoencoderUpdate:
    """A silo's autoencoder after some of its steps."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    nodes: Annotated[int, Kind.COUNTS]
    loss: Annotated[float, Kind.METRICS]


@message("fedggr.NodeEmbeddings")
class NodeEmbeddings:
    """The compressed embedding of every node of a silo, in the silo's order; never its label."""

    embeddings: Annotated[Tensor, Kind.EMBEDDINGS]
    loss: Annotated[float, Kind.METRICS]


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
    validation_right: Annotated[int, Kind.METRICS]
    validation_nodes: Annotated[int, Kind.COUNTS]


# The silo's side


class AutoencoderTraining:
    """A silo's autoencoder: full-batch steps on its own graph."""

    def __init__(self, name: str, graph: Graph, settings: FedGGRSettings, seed: int) -> None:
        self.name, self.settings = name, settings
        self.model = GraphAutoencoder(
            graph.num_features,
            settings.embedding,
            settings.autoencoder_layers,
            stream(seed, "server", "autoencoder weights"),  # everybody starts alike
        ).to(settings.device)
        self._optimizer = Optimizer("adam", self.model.parameters(), settings.autoencoder_lr, 0.0)
        self._features = Features(graph.x.to(settings.device), reused=True)
        self._hop = whole_graph_hop(graph).to(torch.device(settings.device))
        self._squared_norm = float(squared_norms(graph.x).sum())

    def train(self, epochs: int) -> float:
        """Steps down the reconstruction error; gives the last one, before its step."""
        found = 0.0
        for _ in range(epochs):
            loss = self.model.loss(self._features, self._hop, self._squared_norm)
            self._optimizer.clear()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            self._optimizer.step()
            found = float(loss.detach())
        if not math.isfinite(found):
            raise FederationError(
                f"{self.name}: the autoencoder diverged, its loss is {found}; try a smaller "
                "autoencoder_lr"
            )
        return found

    def load(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for key, parameter in self.model.named_parameters():
                parameter.copy_(weights[key])

    def weights(self) -> dict[str, Tensor]:
        return {key: value.detach() for key, value in self.model.named_parameters()}

    @torch.no_grad()
    def encode(self, graph: Graph | None = None) -> Tensor:
        """The embedding of every node of the silo's graph, or of another one."""
        if graph is None:
            return self.model.encode(self._features, self._hop).cpu()
        hop = whole_graph_hop(graph).to(torch.device(self.settings.device))
        return self.model.encode(Features(graph.x.to(self.settings.device)), hop).cpu()

    def state(self) -> dict[str, Tensor]:
        saved = {f"autoencoder/{key}": value for key, value in self.weights().items()}
        for key, value in self._optimizer.state().items():
            saved[f"autoencoder optimizer/{key}"] = value
        return saved

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.load(under("autoencoder/", state))
        self._optimizer.restore(under("autoencoder optimizer/", state))


class SplitTraining(LocalTraining):
    """Training of [Z_loc || Z_glob]: keeps the gradient of the rows it was given."""

    rows: Tensor | None = None
    gradient: Tensor | None = None
    _leaf: Tensor | None = None

    @property
    def _mends(self) -> bool:
        return self.model.joint is not None

    def _epoch(self) -> Sequence[Tensor]:
        self.gradient = None if self.rows is None else torch.zeros_like(self.rows)
        return super()._epoch()

    def _step(self, batch: Tensor, adjust: AdjustGradients | None) -> Tensor:
        self._leaf = None if self.rows is None else self.rows.detach().requires_grad_()
        loss = super()._step(batch, adjust)
        if self.gradient is not None and self._leaf is not None and self._leaf.grad is not None:
            self.gradient.add_(self._leaf.grad, alpha=len(batch) / len(self.train_nodes))
        return loss

    def _forward(self, features: Features, hops: Sequence[Hop], nodes: Tensor | None) -> Tensor:
        rows = self._leaf
        if rows is not None and nodes is not None:
            rows = rows.index_select(0, nodes.to(self.device))
        scores: Tensor = self.model(features, hops, self._dropout, rows)
        return scores

    def _predict(self, hops: Sequence[Hop]) -> Tensor:
        scores: Tensor = self.model(self._features, hops, None, self.rows)
        return scores


class Silo(fedavg.Silo):
    """A silo that embeds its nodes for the server, and trains with what the server makes of it."""

    settings: FedGGRSettings
    local: SplitTraining
    mended_anywhere = True

    def __init__(self, name: str, graph: Graph, settings: FedGGRSettings, seed: int) -> None:
        super().__init__(name, graph, settings, seed)
        shape = self.local.model.shape
        self.local = SplitTraining(name, graph, shape, settings, seed)
        if settings.aggregation == "fedper":
            # Personal layers start alike everywhere: drawn from the run's seed, never sent.
            model = build(shape, stream(seed, "server", "initial weights"))
            self.local.load({key: value.detach() for key, value in model.named_parameters()})
        self.best = OwnBest()
        self.best_rows: Tensor | None = None
        self.autoencoder: AutoencoderTraining | None = None
        self._noise = HidingNoise(seed, name, "privacy noise")
        self.grown: Graph | None = None
        self.predicted: Tensor | None = None

    # Local pre-training

    def _autoencoder(self) -> AutoencoderTraining:
        if self.autoencoder is None:
            self.autoencoder = AutoencoderTraining(self.name, self.graph, self.settings, self.seed)
        return self.autoencoder

    def train_autoencoder(self, received: AutoencoderWeights) -> AutoencoderUpdate:
        """A part of the steps, from averaged weights."""
        own, settings = self._autoencoder(), self.settings
        own.load(received.weights)
        loss = own.train(-(-settings.autoencoder_epochs // settings.autoencoder_rounds))
        return AutoencoderUpdate(own.weights(), self.graph.num_nodes, loss)

    def share_embeddings(self, received: AutoencoderWeights) -> NodeEmbeddings:
        """The embeddings: by the averaged autoencoder, or by one of its own that it now trains."""
        own, loss = self._autoencoder(), 0.0
        if received.weights:
            own.load(received.weights)
        else:
            loss = own.train(self.settings.autoencoder_epochs)
        return NodeEmbeddings(self._protected(own.encode()), loss)

    def _protected(self, embeddings: Tensor) -> Tensor:
        settings = self.settings
        return noised(embeddings, settings.embedding_clip, settings.embedding_noise, self._noise)

    # Split learning

    def train_split(self, received: GlobalRows) -> SplitUpdate:
        checked = self.validate_split(received)
        settings, local = self.settings, self.local
        if len(received.training_rows):
            self._check(received.training_rows)
            local.rows = received.training_rows.to(local.device)
        prox = settings.aggregation == "fedprox"
        loss = local.train(pull_towards(received.weights, settings.mu) if prox else None)
        gradient = received.rows if local.gradient is None else local.gradient.cpu()
        return SplitUpdate(
            {key: value for key, value in local.weights().items() if settings.is_shared(key)},
            noised(gradient, settings.gradient_clip, settings.gradient_noise, self._noise),
            self.graph.num_nodes,
            len(local.train_nodes),
            loss,
            checked.right,
            checked.nodes,
        )

    def validate_split(self, received: GlobalRows) -> Validation:
        """How the received weights and rows do on the silo's validation nodes."""
        self._take(received)
        right, nodes = self.local.validate()
        if self.settings.aggregation == "fedper":
            if right >= self.best.right or not nodes:
                self.best_rows = self.local.rows
            self.best.offer(self.local.weights(), right, nodes)
        return Validation(right, nodes)

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

    def mended_embeddings(self) -> Tensor | None:
        return None if self.best_rows is None else self.best_rows.cpu()

    # New nodes

    def add_nodes(self, graph: Graph) -> None:
        """Local, before the steps below: the silo's graph as it is now, its old nodes first."""
        if graph.num_features != self.graph.num_features or graph.num_nodes < self.graph.num_nodes:
            raise DataError(
                f"{self.name} has {self.graph.num_nodes} nodes of {self.graph.num_features} "
                f"features; a graph of {graph.num_nodes} nodes of {graph.num_features} features "
                "cannot be the same with new nodes"
            )
        self.grown = graph

    def share_new_embeddings(self, _: Nothing) -> NodeEmbeddings:
        """The embeddings of the nodes that came after training."""
        new = self._grown()
        if self.autoencoder is None:
            raise FederationError(f"{self.name} has no autoencoder: it was lost while it trained")
        return NodeEmbeddings(self._protected(self.autoencoder.encode(new)[self._old :]), 0.0)

    def predict_new(self, received: GlobalRows) -> Nothing:
        """Class probabilities of the new nodes, kept here in `predicted`."""
        new = self._grown()
        own = self.own_weights()
        self.local.load(received.weights if own is None else own)
        old = self.best_rows
        if old is None:
            old = received.rows.new_zeros(self._old, received.rows.shape[1])
        rows = torch.cat([old.cpu(), received.rows]).to(self.local.device)
        hops = [whole_graph_hop(new).to(self.local.device)] * len(self.local.model.layers)
        self.local.model.eval()
        with torch.no_grad():
            scores = self.local.model(Features(new.x.to(self.local.device)), hops, None, rows)
        self.predicted = torch.softmax(scores[self._old :], dim=1).cpu()
        return Nothing()

    @property
    def _old(self) -> int:
        return self.graph.num_nodes

    def _grown(self) -> Graph:
        if self.grown is None:
            raise FederationError(f"{self.name} has no new nodes: give it some by add_nodes")
        return self.grown

    def remembered(self) -> dict[str, Tensor]:
        known = {} if self.best_rows is None else {"rows": self.best_rows}
        if self.autoencoder is not None and not self.settings.autoencoder_rounds:
            weights = self.autoencoder.weights()
            known.update({f"autoencoder/{key}": value for key, value in weights.items()})
        return known

    # Saving

    def state(self) -> dict[str, Tensor]:
        saved = {**super().state(), **self.best.state(), "noise": self._noise.stream.get_state()}
        if self.autoencoder is not None:
            saved.update(self.autoencoder.state())
        if self.best_rows is not None:
            saved["best rows"] = self.best_rows
        return saved

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self.best.restore(state)
        self._noise.stream.set_state(state["noise"])
        if any(key.startswith("autoencoder/") for key in state):
            self._autoencoder().restore(state)
        self.best_rows = state.get("best rows")


def noised(rows: Tensor, clip: float, noise: float, source: HidingNoise) -> Tensor:
    """Rows clipped to a norm, with Gaussian noise of `noise` times that norm; as is without."""
    if not noise:
        return rows
    norms = rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    drawn = source.normal(*rows.shape)
    clipped: Tensor = rows * (clip / norms).clamp(max=1.0)
    return clipped + noise * clip * drawn


# The server's side


@dataclass
class Memory(fedavg.Training):
    """The server's memory, the same for all phases; what is kept per silo goes by its name.

    module, optimizer: the learned graph's weights and its optimiser's moments.
    dropping: where the random stream of the server's dropout stands.
    neighbours: whom each node has chosen when they were last searched, silo after silo.
    best_rows, best_module, best_neighbours: Z_glob, module and neighbours of the best round.
    """

    autoencoder: dict[str, Tensor] = field(default_factory=dict)
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    module: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    dropping: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))
    neighbours: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    best_rows: dict[str, Tensor] = field(default_factory=dict)
    best_module: dict[str, Tensor] = field(default_factory=dict)
    best_neighbours: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))


class GlobalModule:
    """The learned graph of all silos that have sent embeddings, and how it learns."""

    def __init__(self, settings: FedGGRSettings, memory: Memory) -> None:
        self._settings, self._memory = settings, memory
        self.module = LearnedGraph(
            settings.embedding,
            settings.global_hidden,
            settings.global_width,
            None,
            background=settings.background,
        )
        copies = {key: value.clone() for key, value in memory.module.items()}
        self.module.load_state_dict(copies, assign=True)
        self._optimizer = Optimizer(
            settings.optimizer, self.module.parameters(), settings.lr, settings.weight_decay
        )
        if memory.optimizer:
            self._optimizer.restore(memory.optimizer)
        self._pairs: Pairs | None = None
        self._rows: Tensor | None = None
        self._dropout = torch.Generator()
        self._dropout.set_state(memory.dropping)

    @property
    def embeddings(self) -> Tensor:
        """E: all silos' embeddings, one below the other."""
        return torch.cat(list(self._memory.embeddings.values()))

    def search(self, due: bool) -> bool:
        """Choose every node's neighbours anew if that is due; whether it was done."""
        memory, embeddings = self._memory, self.embeddings
        if due or len(memory.neighbours) != len(embeddings):
            with torch.no_grad():
                points = self.module.points(embeddings)
            if not bool(torch.isfinite(points).all()):
                raise FederationError("the learned graph diverged; try a smaller lr")
            # What was found before is nearly what will be: a search that starts from it is short.
            memory.neighbours = chosen_neighbours(points, self._settings, memory.neighbours)
            self._pairs = None
            return True
        return False

    def rows(self) -> dict[str, Tensor]:
        """Z_glob (Eq. 8), by silo; what it took is kept for `learn`."""
        if self._pairs is None:
            self._pairs = Pairs(self._memory.neighbours)
        with torch.set_grad_enabled(not self._settings.global_dropout):
            self._rows = self.module(self.embeddings, self._pairs)
        return self._by_silo(self._rows.detach())

    def training_rows(self) -> dict[str, Tensor]:
        """The rows to learn from, where dropout makes them others than `rows`; else none."""
        rate = self._settings.global_dropout
        if not rate or self._pairs is None:
            return {}
        self._rows = self.module(self.embeddings, self._pairs, rate, self._dropout)
        return self._by_silo(self._rows.detach())

    def _by_silo(self, rows: Tensor) -> dict[str, Tensor]:
        counts = [len(each) for each in self._memory.embeddings.values()]
        # Clones: a view would keep, and save, all of the matrix for each silo.
        parts = [each.clone() for each in torch.split(rows, counts)]
        return dict(zip(self._memory.embeddings, parts, strict=True))

    def learn(self, gradients: Mapping[str, Tensor]) -> None:
        """One step down the silos' gradients, weighted |V_i| / |V|; a lost one's is zero."""
        if self._rows is None:
            raise FederationError("there are no rows to learn from")
        total = len(self._rows)
        parts = []
        for name, known in self._memory.embeddings.items():
            gradient = gradients.get(name)
            if gradient is None:
                parts.append(self._rows.new_zeros(len(known), self._rows.shape[1]))
                continue
            check_rows(name, "gradients", gradient, len(known), self._rows.shape[1])
            parts.append(gradient * (len(known) / total))
        self._optimizer.clear()
        self._rows.backward(torch.cat(parts))  # type: ignore[no-untyped-call]  # torch's
        self._optimizer.step()
        self._rows = None

    def save(self) -> None:
        """Put what changed into the server's memory."""
        self._memory.module = dict(self.module.named_parameters())
        self._memory.optimizer = self._optimizer.state()
        self._memory.dropping = self._dropout.get_state()

    def crossing(self) -> float:
        """The share of learned edges whose ends lie in different silos."""
        counts = [len(each) for each in self._memory.embeddings.values()]
        silo = torch.repeat_interleave(torch.tensor(counts))
        others = self._memory.neighbours[:, 1:]
        if not others.numel():
            return 0.0
        return float((silo[others] != silo[:, None]).float().mean())


def chosen_neighbours(points: Tensor, settings: FedGGRSettings, guess: Tensor) -> Tensor:
    """Each node and its k nearest others, by the search that the settings name."""
    if settings.search == "index":
        return indexed_neighbours(points, settings.neighbours)
    return nearest_neighbours(points, settings.neighbours, guess)


def check_rows(silo: str, what: str, rows: Tensor, count: int | None, width: int) -> None:
    """Refuse rows of another shape or type than agreed, or that are NaN or infinite."""
    fits = rows.dim() == 2 and rows.shape[1] == width and rows.dtype == torch.float32
    if not fits or len(rows) != (len(rows) if count is None else count):
        expected = (count if count is not None else "nodes", width)
        raise FederationError(
            f"{silo} sent {what} as {tuple(rows.shape)} of {rows.dtype}, expected {expected} of "
            "torch.float32"
        )
    if not bool(torch.isfinite(rows).all()):
        raise FederationError(f"{silo} sent {what} that are NaN or infinite")


def server(silos: Federation[Silo], settings: FedGGRSettings) -> dict[str, Tensor] | None:
    """Pre-training, split learning, and the best round's rows for everybody."""
    memory = learn(silos, settings)
    return None if settings.aggregation == "fedper" else memory.best


def learn(silos: Federation[Silo], settings: FedGGRSettings) -> Memory:
    """Algorithm 1; gives all that the server knows in the end."""
    weights = fedavg.initial_weights(silos, settings)
    memory = Memory({key: each for key, each in weights.items() if settings.is_shared(key)})
    if settings.global_width:
        memory.module = initial_module(silos, settings)
        memory.dropping = silos.stream("global dropout").get_state()
        pretrain(silos, settings, memory)
    train_rounds(silos, settings, memory)
    if settings.aggregation != "fedper":
        silos.note(memory.best_round, selected=1.0)
        if settings.global_width:
            messages = _rows_for(silos, settings, memory.best, memory.best_rows)
            silos.ask_each(Silo.keep, messages).enough(settings.min_silos)
    if settings.global_width:
        silos.remember(remembered(memory))
    return memory


def initial_module(silos: Federation[Silo], settings: FedGGRSettings) -> dict[str, Tensor]:
    """The first weights of the server's module."""
    module = LearnedGraph(
        settings.embedding,
        settings.global_hidden,
        settings.global_width,
        silos.stream("global module"),
    )
    return {key: value.detach() for key, value in module.named_parameters()}


def pretrain(silos: Federation[Silo], settings: FedGGRSettings, memory: Memory) -> None:
    """Section 4.2: autoencoders, averaged if wanted, and the embeddings they give."""
    if settings.autoencoder_rounds:
        fresh = GraphAutoencoder(
            silos.schema.num_features,
            settings.embedding,
            settings.autoencoder_layers,
            silos.stream("autoencoder weights"),
        )
        memory.autoencoder = {key: value.detach() for key, value in fresh.named_parameters()}
    for number in silos.rounds(settings.autoencoder_rounds, memory, "autoencoders"):
        message = AutoencoderWeights(memory.autoencoder)
        updates = silos.ask(Silo.train_autoencoder, message).enough(settings.min_silos)
        memory.autoencoder = weighted_mean(
            {name: update.weights for name, update in updates.items()},
            {name: float(update.nodes) for name, update in updates.items()},
            like=memory.autoencoder,
        )
        nodes = sum(update.nodes for update in updates.values())
        loss = sum(update.loss * update.nodes for update in updates.values()) / nodes
        silos.note(number, reconstruction_loss=loss)
    for number in silos.rounds(1, memory, "embeddings"):
        loss = collect_embeddings(silos, settings, memory, silos.names)
        silos.note(number, reconstruction_loss=loss)
        counts = torch.tensor([float(len(each)) for each in memory.embeddings.values()])
        by_chance = 1.0 - float(((counts / counts.sum()) ** 2).sum())
        silos.note(number, crossing_by_chance=by_chance)


def collect_embeddings(
    silos: Federation[Silo], settings: FedGGRSettings, memory: Memory, names: Sequence[str]
) -> float:
    """Ask these silos for their embeddings; gives their mean loss."""
    replies = silos.ask(Silo.share_embeddings, AutoencoderWeights(memory.autoencoder), names)
    arrived = replies.arrived if memory.embeddings else replies.enough(settings.min_silos)
    for name, reply in arrived.items():
        check_rows(name, "embeddings", reply.embeddings, None, settings.embedding)
    found = {name: reply.embeddings for name, reply in arrived.items()}
    memory.embeddings = dict(sorted({**memory.embeddings, **found}.items()))
    return sum(reply.loss for reply in arrived.values()) / max(1, len(arrived))


def train_rounds(silos: Federation[Silo], settings: FedGGRSettings, memory: Memory) -> None:
    """Rounds of split learning, each round's weights and rows offered to the selection."""
    module: GlobalModule | None = None
    rows: dict[str, Tensor] = {}
    dropped: dict[str, Tensor] = {}
    for number in silos.rounds(settings.rounds, memory):
        if settings.global_width:
            module = module or GlobalModule(settings, memory)
            missing = [name for name in silos.names if name not in memory.embeddings]
            if missing:
                collect_embeddings(silos, settings, memory, missing)
            rows = global_rows(silos, module, settings, number)
            dropped = module.training_rows()
        messages = _rows_for(silos, settings, memory.weights, rows, dropped)
        updates = silos.ask_each(Silo.train_split, messages).enough(settings.min_silos)
        accuracy = share_right(
            {name: (u.validation_right, u.validation_nodes) for name, u in updates.items()}
        )
        offer(memory, number - 1, rows, accuracy)
        silos.note(number - 1, validation_accuracy=accuracy)
        trained = sum(update.training_nodes for update in updates.values())
        loss = sum(update.loss * update.training_nodes for update in updates.values()) / trained
        silos.note(number, training_loss=loss)
        memory.weights = weighted_mean(
            {name: update.weights for name, update in updates.items()},
            {name: importance(update, settings) for name, update in updates.items()},
            like=memory.weights,
        )
        if module is not None:
            module.learn({name: update.gradient for name, update in updates.items()})
            module.save()
        memory.done = number
        if memory.waited(settings.patience):
            silos.finish()
    if settings.global_width:
        module = module or GlobalModule(settings, memory)
        rows = global_rows(silos, module, settings, memory.done + 1)
    messages = _rows_for(silos, settings, memory.weights, rows)
    finals = silos.ask_each(Silo.validate_split, messages).enough(settings.min_silos)
    accuracy = share_right({name: (v.right, v.nodes) for name, v in finals.items()})
    offer(memory, memory.done, rows, accuracy)
    silos.note(memory.done, validation_accuracy=accuracy)


def global_rows(
    silos: Federation[Silo], module: GlobalModule, settings: FedGGRSettings, number: int
) -> dict[str, Tensor]:
    """The rows of round `number`, on neighbours that are searched anew when it is due."""
    if module.search((number - 1) % settings.refresh == 0):
        silos.note(number - 1, crossing_edges=module.crossing())
    return module.rows()


def offer(memory: Memory, number: int, rows: Mapping[str, Tensor], accuracy: float) -> None:
    """Consider what stood after round `number`: the silos' side, and the rows that go with it."""
    memory.offer(number, memory.weights, accuracy)
    if memory.best_round == number:
        memory.best_rows, memory.best_neighbours = dict(rows), memory.neighbours
        memory.best_module = {key: value.detach().clone() for key, value in memory.module.items()}


def importance(update: SplitUpdate, settings: FedGGRSettings) -> float:
    """How much a silo counts in the average."""
    if settings.weighting == "equal":
        return 1.0
    return float(update.nodes if settings.weighting == "all" else update.training_nodes)


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


def predict_new(
    silos: Federation[Silo], settings: FedGGRSettings, memory: Memory, names: Sequence[str]
) -> None:
    """Let silos predict nodes that came after training (`Silo.add_nodes`).

    The new nodes are encoded and uploaded, choose their neighbours among all nodes, old and new,
    and get their rows from the best round's module; the old nodes' choices stay as they are.
    """
    replies = silos.ask(Silo.share_new_embeddings, Nothing(), names).enough(1)
    for name, reply in replies.items():
        check_rows(name, "embeddings", reply.embeddings, None, settings.embedding)
    new = torch.cat([reply.embeddings for reply in replies.values()])
    rows = new_rows(settings, remembered(memory), new)
    parts = torch.split(rows, [len(reply.embeddings) for reply in replies.values()])
    messages = {
        name: GlobalRows(memory.best, part.clone(), part[:0])
        for name, part in zip(replies, parts, strict=True)
    }
    silos.ask_each(Silo.predict_new, messages).enough(1)


def remembered(memory: Memory) -> dict[str, Tensor]:
    """What the server needs again for new nodes."""
    return {
        "embeddings": torch.cat(list(memory.embeddings.values())),
        "neighbours": memory.best_neighbours,
        **{f"module/{key}": value.detach() for key, value in memory.best_module.items()},
        **{f"autoencoder/{key}": value for key, value in memory.autoencoder.items()},
    }


def new_rows(settings: FedGGRSettings, known: Mapping[str, Tensor], new: Tensor) -> Tensor:
    """Rows of Z_glob of nodes that came after training, from their embeddings."""
    module = LearnedGraph(
        settings.embedding,
        settings.global_hidden,
        settings.global_width,
        None,
        background=settings.background,
    )
    module.load_state_dict(under("module/", known), assign=True)
    old = known["embeddings"]
    everyone = torch.cat([old, new])
    with torch.no_grad():
        points = module.points(everyone)
        chosen = inserted(points, known["neighbours"], settings.neighbours)
        rows: Tensor = module(everyone, Pairs(chosen))[len(old) :]
    return rows


def predict_silo(
    memory: NodeMemory,
    settings: FedGGRSettings,
    seed: int,
    model: Backbone,
    silo: str,
    graph: Graph,
) -> Tensor:
    """Class probabilities of a silo's nodes, on its graph as it is now, from a saved run.

    Nodes of before have their rows of the best round, new ones are inserted as by `predict_new`.
    """
    own, known = memory.silos[silo], memory.server
    try:
        place = torch.from_numpy(memory.places(silo, graph.node_ids))
        new = torch.nonzero(place < 0)[:, 0]
        rows = torch.zeros(graph.num_nodes, settings.global_width)
        if "rows" in own:
            rows[place >= 0] = own["rows"][place[place >= 0]]
        if len(new):
            encoder = AutoencoderTraining(silo, graph, settings, seed)
            encoder.load({**under("autoencoder/", known), **under("autoencoder/", own)})
            noise = HidingNoise(seed, silo, "privacy noise on new nodes")
            clip, sigma = settings.embedding_clip, settings.embedding_noise
            embeddings = noised(encoder.encode()[new], clip, sigma, noise)
            rows[new] = new_rows(settings, known, embeddings)
    except (LookupError, RuntimeError) as error:
        raise FileFormatError(
            f"what the run remembers of {silo}'s nodes does not fit its settings: {error}"
        ) from error
    return predict(model, graph, rows)


def inserted(points: Tensor, neighbours: Tensor, k: int) -> Tensor:
    """The first nodes' neighbours as they are, and below them those of the rest, among all.

    Where there were too few nodes for k neighbours each, the first ones name themselves once more.
    """
    old = len(neighbours)
    k = min(k, len(points) - 1)
    found = []
    for start in range(old, len(points), TILE):
        itself = torch.arange(start, min(start + TILE, len(points)))[:, None]
        similar = (points[start : start + TILE] @ points.T).scatter_(1, itself, -math.inf)
        found.append(torch.cat([itself, similar.topk(k, dim=1).indices], dim=1))
    room = k + 1 - neighbours.shape[1]
    again = torch.arange(old)[:, None].expand(-1, room)
    return torch.cat([torch.cat([neighbours, again], dim=1), *found])


# What it reveals

DELTA = 1e-5


def privacy_facts(settings: FedGGRSettings, graph: Graph) -> dict[str, float]:
    """What `privacy` has to know of a silo."""
    return {"nodes": float(graph.num_nodes)} if settings.global_width else {}


def privacy(settings: FedGGRSettings, facts: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """What the server was given, and what the noise on it is worth, if there is any."""
    if not settings.global_width:
        return {"sentence": "Without the global module nothing but FedAvg's messages is sent."}
    nodes = sum(int(each["nodes"]) for each in facts.values())
    # A row may be replaced by any other: twice the clipping norm apart.
    embeddings = gaussian_epsilon(settings.embedding_noise / 2.0, 1, DELTA)
    gradients = gaussian_epsilon(settings.gradient_noise / 2.0, settings.rounds, DELTA)
    both = math.inf
    if settings.embedding_noise and settings.gradient_noise:
        squares = 1 / settings.embedding_noise**2 + settings.rounds / settings.gradient_noise**2
        both = gaussian_epsilon(0.5 / math.sqrt(squares), 1, DELTA)
    figures = {"embeddings": embeddings, "gradients": gradients, "both": both}
    finite = {key: each if math.isfinite(each) else None for key, each in figures.items()}
    return {
        "row_epsilon": {**finite, "delta": DELTA, "rounds": settings.rounds},
        "sentence": (
            f"The server is given an embedding of each of the {nodes} nodes (width "
            f"{settings.embedding}) and, in every round, the gradient of every node's row, which "
            "reveals training labels unless it is noised. "
            + _worth("Embeddings", embeddings)
            + _worth("Gradients of all rounds", gradients)
            + "These hold for one node's own row: its neighbours' rows and the weights depend on "
            "it as well and are not counted."
        ),
    }


def _worth(what: str, epsilon: float) -> str:
    if not math.isfinite(epsilon):
        return f"{what}: no noise, no protection. "
    return f"{what}: epsilon {epsilon:.3g} at delta {DELTA:g}. "
