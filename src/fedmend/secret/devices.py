"""The devices of one silo: the only place where data is in clear, and what they tell their silo.

Every node is a device. Under setting "devices" what passes between them and their silo is a
message; under "silos" the silo owns its nodes' data and there is no such boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedmend.data.border import Border
from fedmend.evaluation.metrics import metric
from fedmend.federation import message
from fedmend.graph import Graph, csr_tensor, is_sparse, scipy_csr
from fedmend.models.backbones import ModelShape, build
from fedmend.models.features import DENSE_ENOUGH, Features
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.privacy.accountants.gaussian import GaussianAccountant
from fedmend.privacy.ledger import Kind
from fedmend.privacy.mechanism import GaussianMessages
from fedmend.privacy.noise import NoiseSource
from fedmend.secret.consent import BACKWARD, FORWARD, INPUT, LAST, Consent
from fedmend.secret.network import LayerByLayer
from fedmend.secret.session import Edges, SecretMessages
from fedmend.secret.settings import SecretSettings
from fedmend.training.personal import Shared
from fedmend.training.state import Composed, Part, Values
from fedmend.training.streams import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Messages between a silo and its devices


@message("hifgl.Model")
class Model:
    """The model, for the devices to compute with (level: silo to device)."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]


@message("hifgl.CodedSums")
class CodedSums:
    """Sums of shares that a device got for its node (level: device to silo)."""

    sums: Annotated[Tensor, Kind.SHARES]


@message("hifgl.DecodedSums")
class DecodedSums:
    """The sums over each device's neighbours (level: silo to device; the silo sees them)."""

    sums: Annotated[Tensor, Kind.EMBEDDINGS]


@message("hifgl.DeviceGradients")
class DeviceGradients:
    """A device's gradients, which its silo adds up (level: device to silo)."""

    gradients: Annotated[dict[str, Tensor], Kind.GRADIENTS]


@message("hifgl.DeviceReport")
class DeviceReport:
    """Loss and validation of a device (level: device to silo)."""

    loss: Annotated[float, Kind.METRICS]
    validation: Annotated[Tensor, Kind.METRICS]


# The devices


class Devices(Composed):
    """All devices of one silo, as rows of arrays: the only place where data is in clear."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        border: Border,
        shape: ModelShape,
        settings: SecretSettings,
        shared: Shared,
        seed: int,
        noise: NoiseSource,
    ) -> None:
        """`shared`: which weights all silos share; the others, no source may apply."""
        self._graph, self._metric = graph, metric(settings.metric)
        self.count = graph.num_nodes
        number, hidden, seen = _edges(name, graph, border, settings.setting == "devices")
        self._seen_count = torch.from_numpy(np.bincount(seen[0], minlength=self.count))
        degree = self._seen_count + torch.from_numpy(np.bincount(hidden.rows, minlength=self.count))
        self.most_neighbours = int(degree.max())
        self.mechanism = GaussianMessages(
            settings.clip,
            settings.noise_multiplier,
            GaussianAccountant(self.count),
            noise.under("privacy noise"),
        )
        mechanism = self.mechanism if settings.with_noise else None
        self.messages = SecretMessages(name, number, border.nodes, settings.secrecy, mechanism)
        self.agreement = Consent(
            self.messages,
            hidden,
            {
                INPUT: settings.input_min_neighbours,
                **dict.fromkeys((FORWARD, BACKWARD, LAST), settings.min_neighbours),
            },
            with_noise=settings.with_noise,
            together=settings.setting == "silos",
        )
        self._gcn = shape.backbone == "gcn"
        one = torch.ones(self.count, 1)
        self._source_scale = torch.rsqrt(degree[:, None] + 1.0) if self._gcn else one
        ones = np.ones(seen.shape[1], dtype=np.float32)
        matrix = sp.csr_matrix((ones, (seen[0], seen[1])), shape=(self.count, self.count))
        self.network = LayerByLayer(
            build(shape, stream(seed, "server", "initial weights")),
            SparseMatrix(csr_tensor(matrix), reused=True),
            self._source_scale,
            stream(seed, name, "dropout"),
            lambda layer: not shared(f"layers.{layer}.weight"),
        )
        self.train_nodes = torch.nonzero(graph.train_mask)[:, 0]
        self.val_nodes = torch.nonzero(graph.val_mask)[:, 0]
        self.input_sums = torch.zeros(self.count, graph.num_features)
        self._own = Features(graph.x, reused=True)
        self._kept: dict[str, Any] = {}
        self._columns = slice(0, 0)
        self._trained = False
        self.probabilities: Tensor | None = None

    # Before training: sums of raw features

    def has_loss(self) -> Tensor:
        """1 for every device whose node has a loss: what the secret count adds up."""
        return self._graph.train_mask.float()[:, None]

    def features(self, columns: slice) -> Tensor:
        """Source side of the input layer: some columns of the features, scaled."""
        self._columns = columns
        x = self._graph.x
        if is_sparse(x):
            return torch.from_numpy(scipy_csr(x)[:, columns].toarray()) * self._source_scale
        return x[:, columns] * self._source_scale

    @property
    def columns(self) -> int:
        """How many columns of the features are on the way."""
        return self._columns.stop - self._columns.start

    def keep_features(self, sums: Tensor) -> None:
        """Target side of the input layer: sums over hidden neighbours, kept for the whole run."""
        self.input_sums[:, self._columns] = sums

    def _summed_features(self) -> Features:
        """What the first layer hears: the same in every step, so it is worked out once."""
        if "input" not in self._kept:
            x: Any = self._graph.x  # scipy's products of two sparse matrices are the quicker ones
            x = scipy_csr(x) if is_sparse(x) else x.numpy()
            scale = self._source_scale.numpy()
            scaled = x.multiply(scale).tocsr() if sp.issparse(x) else x * scale
            summed = scipy_csr(self.network.seen.csr) @ scaled
            summed = summed + scaled if self._gcn else summed
            total = torch.from_numpy(summed.toarray() if sp.issparse(summed) else summed).float()
            total = (total + self.input_sums) * self.input_scale
            if int(torch.count_nonzero(total)) < DENSE_ENOUGH * total.numel():
                total = csr_tensor(sp.csr_matrix(total.numpy()))
            self._kept["input"] = Features(total, reused=True)
        found: Features = self._kept["input"]
        return found

    def settled(self) -> None:
        """Who hears whom is agreed on: work out what nodes divide by.

        Raw features are passed once: a later agreement, without silos that were lost since, does
        not change what was heard of them.
        """
        if not self._trained:
            self.input_scale = self._target_scale(INPUT)
            self.input_sums.zero_()
        self._scale = self._target_scale(FORWARD)

    def _target_scale(self, stage: str) -> Tensor:
        heard = self._seen_count + self.agreement.heard(stage)
        if self._gcn:
            return torch.rsqrt(heard[:, None] + 1.0)
        return torch.where(heard > 0, 1.0 / heard.clamp_min(1), 0.0)[:, None]

    # Training

    def begin(self, training: bool) -> None:
        """The first layer, which waits for nobody."""
        self._trained = True
        self.network.begin(self._summed_features(), self._own, training)

    def hear(self, heard: Tensor) -> None:
        """Target side of a layer."""
        self.network.hear(heard, self._scale)

    def judge(self) -> tuple[float, Tensor]:
        """After the last layer: training nodes' summed loss, validation nodes' statistic."""
        labels, scores = self._graph.y, self.network.result.detach()
        found = self._metric.statistic(scores[self.val_nodes], labels[self.val_nodes])
        if self.network.training:
            return self.network.loss(self.train_nodes, labels), found
        self.probabilities = torch.softmax(scores, 1)
        return 0.0, found

    # Saving: everything but keys and masks, which are new after a restart

    def parts(self) -> Mapping[str, Part]:
        return {
            "agreement": self.agreement,
            "dropout": self.network.dropout,
            "input": Values(self, input_sums=Tensor, input_scale=Tensor),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self._kept = {}
        self._trained = True
        self.settled()


def _edges(
    name: str, graph: Graph, border: Border, within: bool
) -> tuple[int, Edges, NDArray[np.int64]]:
    """A silo's number among all; the edges whose other end is hidden; the edges in plain sight."""
    names = sorted(border.names)
    number = names.index(name)
    places = np.array([names.index(each) for each in border.names], dtype=np.int64)
    hidden = Edges(border.rows, places[border.silos], border.remote)
    own = graph.edge_index.numpy()
    if not within:
        return number, hidden, own
    # Neighbours in the same silo are as hidden as all others.
    everyone = Edges(
        np.concatenate([hidden.rows, own[0]]),
        np.concatenate([hidden.silos, np.full(own.shape[1], number)]),
        np.concatenate([hidden.remote, border.nodes[own[1]]]),
    )
    return number, everyone, own[:, :0]
