"""The server's half of FedGGR: a graph over all nodes learned from their embeddings (section 4.4).

`models/learned_graph.py` has its equations; here is how it learns from the silos' gradients, what
is kept of it between rounds, and what nodes get that come after training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedmend.config import setting
from fedmend.errors import FederationError, FileFormatError
from fedmend.federation import Federation
from fedmend.graph import Graph
from fedmend.models.learned_graph import LearnedGraph, Pairs
from fedmend.models.neighbour_search import TILE, indexed_neighbours, nearest_neighbours
from fedmend.models.predictor import Insert, Predictor
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.mechanism import GaussianRows
from fedmend.privacy.noise import PublicNoise
from fedmend.training.autoencoder import AutoencoderSettings, AutoencoderTraining
from fedmend.training.optimizer import Optimizer
from fedmend.training.selection import Training
from fedmend.training.state import under


@dataclass(frozen=True, kw_only=True)
class LearnedGraphSettings(AutoencoderSettings):
    """How the server's graph is built and searched; embeddings come from autoencoders."""

    global_width: int = setting(
        64, "width of Z_glob (F_g); 0 = no global module, plain FedAvg", low=0, high=10**5
    )
    global_dropout: float = setting(
        0.0, "share of embeddings and hidden values the server drops", low=0.0, high=0.99
    )
    global_hidden: int = setting(64, "hidden width of the server's GCN", low=1, high=10**5)
    neighbours: int = setting(15, "neighbours of a node in the learned graph (k)", low=1, high=1000)
    background: bool = setting(True, "pairs that are no neighbours keep the weight e^-6")
    search: str = setting(
        "exact", "exact, or by an index (faiss, not exact)", choices=("exact", "index")
    )
    refresh: int = setting(1, "rounds between two searches for neighbours", low=1)


@dataclass
class GraphMemory(Training):
    """The server's memory between rounds; what is kept per silo goes by its name.

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

    def __init__(self, settings: LearnedGraphSettings, memory: GraphMemory) -> None:
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
        self._memory.module = dict(self.module.named_parameters())
        self._memory.optimizer = self._optimizer.state()
        self._memory.dropping = self._dropout.get_state()

    def weights(self) -> dict[str, Tensor]:
        """The module's weights as they are now."""
        return {key: value.detach().clone() for key, value in self.module.named_parameters()}

    def crossing(self) -> float:
        """The share of learned edges whose ends lie in different silos."""
        counts = [len(each) for each in self._memory.embeddings.values()]
        silo = torch.repeat_interleave(torch.tensor(counts))
        others = self._memory.neighbours[:, 1:]
        if not others.numel():
            return 0.0
        return float((silo[others] != silo[:, None]).float().mean())


def chosen_neighbours(points: Tensor, settings: LearnedGraphSettings, guess: Tensor) -> Tensor:
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


def new_rows(settings: LearnedGraphSettings, known: Mapping[str, Tensor], new: Tensor) -> Tensor:
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


def initial_module(silos: Federation[Any], settings: LearnedGraphSettings) -> dict[str, Tensor]:
    """The first weights of the server's module."""
    module = LearnedGraph(
        settings.embedding,
        settings.global_hidden,
        settings.global_width,
        silos.stream("global module"),
    )
    return {key: value.detach() for key, value in module.named_parameters()}


def remembered(memory: GraphMemory) -> dict[str, Tensor]:
    """What the server needs again for new nodes."""
    return {
        "embeddings": torch.cat(list(memory.embeddings.values())),
        "neighbours": memory.best_neighbours,
        **{f"module/{key}": value.detach() for key, value in memory.best_module.items()},
        **{f"autoencoder/{key}": value for key, value in memory.autoencoder.items()},
    }


def newcomers(settings: Any, seed: int, silo: str) -> Insert:
    """Gives rows to a silo's nodes that came after training, by the best round's module.

    They are encoded and choose their neighbours among all nodes, old and new; the old nodes'
    choices stay as they are.
    """

    def insert(predictor: Predictor, graph: Graph, new: Tensor) -> Tensor | None:
        known = under("server/", predictor.known)
        if not known:
            return None  # a deployed silo does not have what the server knows
        try:
            encoder = AutoencoderTraining(silo, graph, settings, seed)
            own = under("autoencoder/", predictor.known)
            encoder.load({**under("autoencoder/", known), **own})
            # As uploaded ones are; here nothing is uploaded, so that noise need hide nothing.
            embeddings = GaussianRows(
                settings.embedding_clip,
                settings.embedding_noise,
                GaussianAccountant(len(new)),
                PublicNoise(seed, silo, "privacy noise on new nodes"),
            ).release(encoder.encode()[new])
            return new_rows(settings, known, embeddings)
        except (LookupError, RuntimeError) as error:
            raise FileFormatError(
                f"what the run remembers of {silo}'s nodes does not fit its settings: {error}"
            ) from error

    return insert
