"""A silo's own training of a backbone: mini-batches, neighbour sampling, optimiser, validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.sampling import (
    ALL_NEIGHBOURS,
    Edges,
    Hop,
    all_rows_hops,
    covers_most,
    drawing,
    gathered_hops,
    hop_to,
    hops_from_everybody,
    needs_many,
    whole_graph_hop,
)
from fedmend.errors import DataError, FederationError, SettingsError
from fedmend.evaluation.metrics import metric
from fedmend.graph import Graph, select_rows
from fedmend.models.backbones import Backbone, ModelShape, build
from fedmend.models.features import Features, in_quicker_form
from fedmend.models.kernels.by_hand import FullBatch
from fedmend.models.kernels.loss import Targets
from fedmend.training.optimizer import Optimizer
from fedmend.training.settings import TrainingSettings
from fedmend.training.state import Composed, Part
from fedmend.training.streams import stream

ADDS_UP_FIRST = ("sage", "fused-sage", "gcn")
"""Backbones whose first layer multiplies what a node hears, and not everybody, by its weights."""

AdjustGradients = Callable[[nn.Module], None]
"""Called between backward pass and step; a method may change the gradients (FedProx does)."""


class LocalTraining(Composed):
    """One silo's model, its optimiser and its random streams, kept for the whole run."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        shape: ModelShape,
        settings: TrainingSettings,
        seed: int,
        purpose: str = "",
    ) -> None:
        """`purpose`: where a silo trains two models, what tells this one's random streams apart."""
        self.name = name
        self.graph = graph
        self.heard: Edges = graph  # in training; whoever invents neighbours changes it
        self.settings = settings
        self.device = _device(settings.device)
        self.train_nodes = torch.nonzero(graph.train_mask)[:, 0]
        if not len(self.train_nodes):
            raise DataError(
                f"{name} has no training nodes: give some nodes the role 'train', use fewer silos "
                "or another split"
            )
        self.model = self._build(shape, seed).to(self.device)
        self._parameters = dict(self.model.named_parameters())
        self._features = Features(graph.x.to(self.device), reused=True)
        # What batches pick their rows from; made dense once, where each batch would be.
        self._pickable = graph.x if self._static else in_quicker_form(graph.x)
        self._rows = Features(self._pickable)
        self._whole = whole_graph_hop(graph).to(self.device)
        self._labels = graph.y.to(self.device)
        self._targets = Targets(self._labels[self.train_nodes.to(self.device)], shape.outputs)
        self._batches = stream(seed, name, purpose + "batches")
        self._neighbours = stream(seed, name, purpose + "neighbours")
        self._dropout = stream(seed, name, purpose + "dropout")
        self._draw = drawing(graph, settings.fan_out, self._neighbours)
        self._full_batch = self._hops_for(self.train_nodes) if self._static else None
        self._metric = metric(settings.metric)
        self._val_nodes = torch.nonzero(graph.val_mask)[:, 0]
        self._val_labels = self._labels[self._val_nodes.to(self.device)]
        self._val_hops = self._validation_hops() if len(self._val_nodes) else None
        self._by_hand: FullBatch | None = None
        if self._static and FullBatch.fits(self.model, self._features):
            self._by_hand = FullBatch(self.model, self._features, self._whole)
        self._optimizer = self._new_optimizer()
        self._kept: tuple[list[int], Tensor | Features] | None = None

    def _build(self, shape: ModelShape, seed: int) -> Backbone:
        """The model; its first weights are replaced by those that `load` gets."""
        return build(shape, stream(seed, self.name, "unused initial weights"))

    @property
    def _static(self) -> bool:
        """Whether every step sees the same: all training nodes, all neighbours."""
        return self.settings.batch_size == 0 and self.settings.fan_out == ALL_NEIGHBOURS

    def _hops_for(self, nodes: Tensor) -> Sequence[Hop]:
        """The hops that compute `nodes` from everybody, kept because they serve again."""
        last = hop_to(self.graph, nodes)
        return [self._whole] * (self.settings.layers - 1) + [last.to(self.device)]

    def _hear(self, edges: Edges) -> None:
        """From now on train on these edges between the graph's nodes; validation stays.

        Only for training that `_mends`: others share what they compute with validation.
        """
        self.heard = edges
        self._draw = drawing(edges, self.settings.fan_out, self._neighbours)
        if self._static:
            everyone = whole_graph_hop(edges).to(self.device)
            last = hop_to(edges, self.train_nodes).to(self.device)
            self._full_batch = [everyone] * (self.settings.layers - 1) + [last]

    def _validation_hops(self) -> Sequence[Hop]:
        """The hops that compute the validation nodes from all their neighbours.

        Where features are dense, rows that no validation node hears of are left out: a mended
        graph has three times a silo's nodes, and dense products with all of them took a third of
        the training's time.
        """
        if self._static or self._features.sparse or not self._adds_up_first:
            return self._hops_for(self._val_nodes)
        everybody = drawing(self.graph, ALL_NEIGHBOURS, self._neighbours)
        hops = hops_from_everybody(self.graph, self._val_nodes, self.settings.layers, everybody)
        return [replace(hop, reused=True) for hop in hops]

    def _new_optimizer(self) -> Optimizer:
        s = self.settings
        return Optimizer(s.optimizer, self.model.parameters(), s.lr, s.weight_decay)

    # Weights

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights, all or some of them."""
        with torch.no_grad():
            for key, parameter in self._parameters.items():
                if key in weights:
                    parameter.copy_(weights[key])

    def weights(self) -> dict[str, Tensor]:
        """The model's weights: a view, not a copy."""
        return {key: value.detach() for key, value in self._parameters.items()}

    # Training

    def train(self, adjust: AdjustGradients | None = None) -> float:
        """The settings' local epochs; gives the mean loss over all nodes visited."""
        if not self.settings.keep_optimizer:
            self._optimizer = self._new_optimizer()
        self.model.train()
        loss_sum, visited = 0.0, 0
        for _ in range(self.settings.local_epochs):
            for batch in self._epoch():
                loss = self._step(batch, adjust)
                loss_sum += float(loss) * len(batch)
                visited += len(batch)
        if not math.isfinite(loss_sum):
            raise FederationError(
                f"{self.name}: training diverged, the loss is {loss_sum}; try a smaller lr"
            )
        return loss_sum / visited

    def _epoch(self) -> Sequence[Tensor]:
        size = self.settings.batch_size
        if size == 0 or size >= len(self.train_nodes):
            return [self.train_nodes]
        order = torch.randperm(len(self.train_nodes), generator=self._batches)
        return torch.split(self.train_nodes[order], size)

    def _step(self, batch: Tensor, adjust: AdjustGradients | None) -> Tensor:
        if self._by_hand is not None and self._full_batch is not None and not self._mends:
            loss = self._by_hand.loss_and_gradients(self._full_batch[-1], self._targets)
        else:
            everyone = batch is self.train_nodes
            labels = self._targets.labels if everyone else self._labels[batch.to(self.device)]
            loss = F.cross_entropy(self.scores(batch), labels)
            self._optimizer.clear()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
        if adjust is not None:
            adjust(self.model)
        self._optimizer.step()
        return loss.detach()

    def scores(self, batch: Tensor) -> Tensor:
        """Class scores of a batch in training, on freshly drawn neighbourhoods."""
        s = self.settings
        if self._full_batch is not None:
            if self._mends:
                return self._forward(self._features, self._full_batch, None)
            return self.model.scores(self._hidden(), self._full_batch[-1])
        if not self.model.uses_edges:
            alone = _nobody(batch, self.graph)
            features = Features(select_rows(self._pickable, batch)).to(self.device)
            return self._forward(features, [alone.to(self.device)] * s.layers, batch)
        if covers_most(self.heard, len(batch), s.layers, s.fan_out):
            hops = all_rows_hops(self.heard, batch, s.layers, self._draw)
            return self._forward(self._features, [hop.to(self.device) for hop in hops], None)
        if self._adds_up_first:
            hops = hops_from_everybody(self.heard, batch, s.layers, self._draw)
            return self._forward(self._rows, hops, None)
        if self._features.sparse and needs_many(self.heard, len(batch), s.layers, s.fan_out):
            hops = hops_from_everybody(self.heard, batch, s.layers, self._draw)
            return self._forward(self._features, [hop.to(self.device) for hop in hops], None)
        hops, nodes = gathered_hops(self.heard, batch, s.layers, self._draw)
        features = Features(select_rows(self._pickable, nodes)).to(self.device)
        return self._forward(features, [hop.to(self.device) for hop in hops], nodes)

    @property
    def _adds_up_first(self) -> bool:
        """Whether the first layer picks and adds up dense rows before they meet its weights.

        Then it can pick them from everybody's; to gather what a batch needs is a copy too many.
        """
        cpu = self.device.type == "cpu"
        return cpu and not self._rows.sparse and self.model.shape.backbone in ADDS_UP_FIRST

    @property
    def _mends(self) -> bool:
        """Whether nodes bring more than their features along; for methods to say."""
        return False

    def _hidden(self, *, keep: bool = False) -> Tensor | Features:
        """What goes into the last layer of the whole graph, for a step that sees all of it.

        Computed once where a silo validates the weights it received and then trains from them:
        `keep` leaves it for the next call, which takes it unless a weight has changed since.
        """
        weights = [parameter._version for parameter in self._parameters.values()]
        if self._kept is not None and self._kept[0] == weights:
            hidden = self._kept[1]
        else:
            hops = [self._whole] * (self.settings.layers - 1)
            hidden = self.model.hidden(self._features, hops, self._dropout)
        self._kept = (weights, hidden) if keep and torch.is_grad_enabled() else None
        return hidden

    def _forward(
        self,
        features: Features,
        hops: Sequence[Hop],
        nodes: Tensor | None,  # noqa: ARG002  # for methods that know more of the nodes
    ) -> Tensor:
        """Scores in training; `nodes`: whose features the rows are, None = everybody's."""
        scores: Tensor = self.model(features, hops, self._dropout)
        return scores

    # Validation

    def validate(self) -> Tensor:
        """The statistic of the silo's validation nodes, on its own graph (`evaluation.metrics`)."""
        if self._val_hops is None:
            nobody = torch.empty(0, self.model.shape.outputs)
            return self._metric.statistic(nobody, self._val_labels)
        if self._by_hand is not None and not self._mends:
            scores = self._by_hand.scores(self._val_hops[-1])
        elif self._static and self.model.shape.dropout == 0.0 and not self._mends:
            hidden = self._hidden(keep=True)
            with torch.no_grad():
                scores = self.model.scores(hidden, self._val_hops[-1])
        else:
            self.model.eval()
            with torch.no_grad():
                scores = self._predict(self._val_hops)
        return self._metric.statistic(scores, self._val_labels)

    def _predict(self, hops: Sequence[Hop]) -> Tensor:
        """Scores in validation, from everybody's features."""
        scores: Tensor = self.model(self._features, hops)
        return scores

    # Saving

    def parts(self) -> Mapping[str, Part]:
        return {"weights": self.model, "optimizer": self._optimizer, **self._streams()}

    def _streams(self) -> dict[str, torch.Generator]:
        return {
            "batches": self._batches,
            "neighbours": self._neighbours,
            "dropout": self._dropout,
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._optimizer = self._new_optimizer()  # in place of one that has been dropped
        super().restore(state)


def _nobody(batch: Tensor, graph: Graph) -> Hop:
    """A hop in which nobody hears anybody: all an MLP needs."""
    rowptr = torch.zeros(len(batch) + 1, dtype=torch.int64)
    degree = graph.degree[batch]
    return Hop(rowptr, torch.zeros(0, dtype=torch.int64), len(batch), degree, degree)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add(1).cpu()  # some can be named but compute nothing
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device {name!r} cannot be used here: {reason}") from error
    return device
