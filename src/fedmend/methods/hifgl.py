"""HiFGL: no edge between silos is lost, and none is seen (Guo et al., KDD 2024).

"HiFGL: A Hierarchical Framework for Cross-silo Cross-device Federated Graph Learning". Every node
is a device that knows its own features, label and neighbours, in other silos too. A layer needs
sums over neighbours; those between silos (setting "silos"), or all of them (setting "devices"),
come by Secret Message Passing: `secret/session.py` has the protocol, this file the
network over it. docs/methods/hifgl.md says who learns what.

What is implemented: the hierarchy of section 4.1, neighbour-agnostic aggregation (4.2.1: the
source scales, then the target), Lagrange shares (4.2.2), GCN and GraphSAGE, FedAvg, FedProx and
FedPer on top (4.3), or one optimiser at the server that makes training equal to training on the
whole graph. One silo per device is the purely cross-device case, one device setting the other.

Deviations, and why:
- Masks are fresh for every message; fixed ones (the paper's z) cancel between two messages.
- Shares go to different relays which pass on sums (`routing="relay"`). In the paper all shares of a
  message go to one device, which knows the encoding points and can decode (`routing="paper"`).
- The field has 2^61 - 1 elements, not 11: numbers must fit into it.
- The backward pass, on which the paper is silent, is the transposed message passing through the
  same protocol.
- Sums of raw features are asked for once and kept; where a layer narrows, its weights are applied
  before messages are sent.
- A node that would hear fewer than `min_neighbours` hidden neighbours hears none of them, or with
  noise: their sum would give them away.
- GCN counts the node itself (degree + 1), as GCN does; the paper's Eq. (2) leaves it out.
- A device's gradient reaches its silo in the paper one by one; here only their sum is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fedmend import config
from fedmend.data.border import Border
from fedmend.errors import FederationError, SettingsError, TooFewSilosError
from fedmend.federation import (
    Federation,
    Nothing,
    Replies,
    Schema,
    SiloBase,
    content_sizes,
    message,
    wire_name,
)
from fedmend.graph import Graph, csr_tensor, is_sparse, scipy_csr
from fedmend.methods import fedper
from fedmend.methods.fedavg import share_right
from fedmend.models.backbones import build
from fedmend.models.features import DENSE_ENOUGH, Features
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.privacy.accountants.gaussian import gaussian_epsilon
from fedmend.privacy.ledger import Direction, Kind, Ledger
from fedmend.privacy.sealing import KEY_BYTES
from fedmend.secret.consent import BACKWARD, FORWARD, INPUT, LAST, Consent
from fedmend.secret.network import LayerByLayer
from fedmend.secret.session import (
    NO_NUMBERS,
    NOTHING_IN_CLEAR,
    ROUTINGS,
    Edges,
    Incoming,
    Keys,
    Letters,
    Noise,
    Outgoing,
    Router,
    Secrecy,
    SecretMessages,
    forwarded,
    nothing_incoming,
)
from fedmend.training.aggregation import check_weights, weighted_mean
from fedmend.training.optimizer import Optimizer
from fedmend.training.selection import OwnBest, Selection
from fedmend.training.state import under
from fedmend.training.streams import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

M = TypeVar("M")
R = TypeVar("R")

BLOCK = 2**21
"""Numbers of raw features that all silos send at a time: bounds the memory of the input pass."""

SETTINGS = {
    "silos": "a silo sees its own nodes' data; only messages between silos are secret",
    "devices": "a silo does not see its devices' data; every message is secret",
}
TRAININGS = {
    "gradients": "the server adds up gradients and holds the optimiser: equal to central training",
    "fedavg": "silos step by themselves, the server averages",
    "fedprox": "fedavg with a pull (mu) towards the shared weights",
    "fedper": "fedavg of all but the last personal_layers",
}


@dataclass(frozen=True, kw_only=True)
class HiFGLSettings(fedper.FedPerSettings):
    """How the network trains, and what is hidden from whom."""

    backbone: str = config.setting("gcn", "the network: gcn or sage", choices=("gcn", "sage"))
    hidden: int = config.setting(64, "width of the hidden layers", low=1, high=10**6)
    lr: float = config.setting(0.01, "step size", low=0.0)
    batch_size: int = config.setting(0, "without effect: every step takes all nodes", low=0)
    fan_out: int = config.setting(0, "without effect: every node hears all neighbours", low=0)
    device: str = config.setting("cpu", "only cpu: secrets are whole numbers", choices=("cpu",))
    training: str = config.setting(
        "gradients", "how weights are learnt: " + ", ".join(TRAININGS), choices=TRAININGS
    )
    mu: float = config.setting(0.01, "pull towards the shared weights (fedprox)", low=0.0)
    setting: str = config.setting(
        "silos", "whose messages are secret: " + " or ".join(SETTINGS), choices=SETTINGS
    )
    routing: str = config.setting(
        "relay", "the way of the shares: " + ", ".join(ROUTINGS), choices=ROUTINGS
    )
    privacy_threshold: int = config.setting(
        1, "relays that together learn nothing (T)", low=1, high=50
    )
    check_shares: int = config.setting(0, "extra shares that detect wrong ones", low=0, high=10)
    min_neighbours: int = config.setting(
        2, "hidden neighbours a node must have to hear their sum", low=1
    )
    input_min_neighbours: int = config.setting(
        3, "the same for sums of raw features, which are easier to take apart", low=1
    )
    below_minimum: str = config.setting(
        "leave-out",
        "such a node hears nothing (leave-out) or sums with noise (noise)",
        choices=("leave-out", "noise"),
    )
    clip: float = config.setting(1.0, "norm that messages with noise are clipped to", low=1e-9)
    noise_multiplier: float = config.setting(1.0, "their noise, in units of clip", low=0.0)
    delta: float = config.setting(1e-5, "delta of their epsilon", low=1e-300, high=0.5)
    fraction_bits: int = config.setting(28, "binary digits after the point", low=0, high=50)

    @property
    def secrecy(self) -> Secrecy:
        return Secrecy(self.routing, self.privacy_threshold, self.check_shares, self.fraction_bits)

    @property
    def hides_with_noise(self) -> bool:
        return self.noise is not None

    @property
    def noise(self) -> Noise | None:
        return Noise(self.clip, self.noise_multiplier) if self.below_minimum == "noise" else None


# Messages between server and silo; those of the protocol are in secret/session.py


@message("hifgl.Shared")
class Shared:
    """The shared weights (level: server to silo), and over how many training nodes they learn."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    training_nodes: Annotated[int, Kind.COUNTS]


@message("hifgl.Greeting")
class Greeting:
    """A silo says it is there (level: silo to server)."""

    public_key: Annotated[Tensor, Kind.CONTROL]
    training_nodes: Annotated[int, Kind.COUNTS]
    most_neighbours: Annotated[int, Kind.COUNTS]


@message("hifgl.Agreed")
class Agreed:
    """Who hears whom is settled (level: silo to server): how much is sent and left out."""

    messages: Annotated[int, Kind.COUNTS]
    below_minimum: Annotated[dict[str, float], Kind.COUNTS]
    most_noised: Annotated[dict[str, float], Kind.COUNTS]


@message("hifgl.Columns")
class Columns:
    """Which columns of the features the next input pass is about (level: server to silo)."""

    label: Annotated[str, Kind.CONTROL]
    first: Annotated[int, Kind.CONTROL]
    last: Annotated[int, Kind.CONTROL]


@message("hifgl.Gradients")
class Gradients:
    """A silo's gradients of the summed loss (level: silo to server), and how its nodes did."""

    gradients: Annotated[dict[str, Tensor], Kind.GRADIENTS]
    loss: Annotated[float, Kind.METRICS]
    training_nodes: Annotated[int, Kind.COUNTS]
    validation_right: Annotated[int, Kind.METRICS]
    validation_nodes: Annotated[int, Kind.COUNTS]


@message("hifgl.Update")
class Update:
    """A silo's weights after its own step (level: silo to server), and how its nodes did."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    loss: Annotated[float, Kind.METRICS]
    training_nodes: Annotated[int, Kind.COUNTS]
    validation_right: Annotated[int, Kind.METRICS]
    validation_nodes: Annotated[int, Kind.COUNTS]


@message("hifgl.Validation")
class Validation:
    """How a silo's validation nodes do (level: silo to server)."""

    right: Annotated[int, Kind.METRICS]
    nodes: Annotated[int, Kind.COUNTS]


# Messages between a silo and its devices, told apart under setting "devices"


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
    right: Annotated[int, Kind.METRICS]


# The devices


class Devices:
    """All devices of one silo, as rows of arrays: the only place where data is in clear."""

    def __init__(
        self, name: str, graph: Graph, border: Border, settings: HiFGLSettings, seed: int
    ) -> None:
        self._graph, self.settings = graph, settings
        self.count = graph.num_nodes
        number, hidden, seen = _edges(name, graph, border, settings.setting == "devices")
        self._seen_count = torch.from_numpy(np.bincount(seen[0], minlength=self.count))
        degree = self._seen_count + torch.from_numpy(np.bincount(hidden.rows, minlength=self.count))
        self.most_neighbours = int(degree.max())
        self.messages = SecretMessages(name, number, border.nodes, settings.secrecy, settings.noise)
        self.agreement = Consent(
            self.messages,
            hidden,
            {
                INPUT: settings.input_min_neighbours,
                **dict.fromkeys((FORWARD, BACKWARD, LAST), settings.min_neighbours),
            },
            with_noise=settings.noise is not None,
            together=settings.setting == "silos",
        )
        self._gcn = settings.backbone == "gcn"
        one = torch.ones(self.count, 1)
        self._source_scale = torch.rsqrt(degree[:, None] + 1.0) if self._gcn else one
        ones = np.ones(seen.shape[1], dtype=np.float32)
        matrix = sp.csr_matrix((ones, (seen[0], seen[1])), shape=(self.count, self.count))
        shape = settings.shape(Schema(graph.num_features, graph.label_names))
        self.network = LayerByLayer(
            build(shape, stream(seed, "server", "initial weights")),
            SparseMatrix(csr_tensor(matrix), reused=True),
            self._source_scale,
            stream(seed, name, "dropout"),
            lambda layer: settings.training == "fedper" and not is_shared(layer, settings),
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
            total = (total + self.input_sums) * self._input_scale
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
            self._input_scale = self._target_scale(INPUT)
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

    def judge(self) -> tuple[float, int]:
        """After the last layer: the summed loss of training nodes, validation nodes right."""
        labels, scores = self._graph.y, self.network.result.detach()
        right = int((scores[self.val_nodes].argmax(1) == labels[self.val_nodes]).sum())
        if self.network.training:
            return self.network.loss(self.train_nodes, labels), right
        self.probabilities = torch.softmax(scores, 1)
        return 0.0, right

    # Saving

    def state(self) -> dict[str, Tensor]:
        """Everything but keys and masks, which are new after a restart."""
        saved = {f"agreement/{key}": each for key, each in self.agreement.state().items()}
        saved["dropout"] = self.network.dropout.get_state()
        saved["input sums"], saved["input scale"] = self.input_sums, self._input_scale
        return saved

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        self.agreement.restore(under("agreement/", state))
        self.network.dropout.set_state(state["dropout"])
        self.input_sums, self._input_scale = state["input sums"], state["input scale"]
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


def is_shared(layer: int, settings: HiFGLSettings) -> bool:
    """Whether all silos have the same weights in this layer."""
    return fedper.is_shared(f"layers.{layer}.weight", settings)


# The silo


class Silo(SiloBase):
    """One silo: its model, its keys, and its devices, which alone hold data.

    Under setting "devices" everything that passes between the two is a message, counted in
    `inside`; under "silos" the silo owns its nodes' data and there is no such boundary.
    """

    def __init__(
        self, name: str, graph: Graph, settings: HiFGLSettings, seed: int, *, border: Border
    ) -> None:
        # No graph of its own: not calling SiloBase's, which would keep one.
        self.name, self.settings, self.seed = name, settings, seed
        self.devices = Devices(name, graph, border, settings, seed)
        self._messages = self.devices.messages
        self._agreement = self.devices.agreement
        self._network = self.devices.network
        self._ledger = Ledger() if settings.setting == "devices" else None
        self._label = ""
        self._optimizer = self._new_optimizer()
        self._shared: dict[str, Tensor] = {}
        self._all_training_nodes = 0
        self._silos = 1
        self._judged = (0.0, 0)
        self._to_itself = b""
        self.best = OwnBest()

    def _new_optimizer(self) -> Optimizer:
        s = self.settings
        return Optimizer(s.optimizer, self._network.model.parameters(), s.lr, s.weight_decay)

    # Greeting, agreement and the input layer

    def greet(self, shared: Shared) -> Greeting:
        """Take over the shared weights and say who takes part."""
        with torch.no_grad():
            for key, parameter in self._network.model.named_parameters():
                if key in shared.weights:
                    parameter.copy_(shared.weights[key])
        self._shared, self._all_training_nodes = shared.weights, shared.training_nodes
        if not self.settings.keep_optimizer:
            self._optimizer = self._new_optimizer()
        self._inside("down", Model(self._weights()))
        return Greeting(
            self._messages.public_key,
            len(self.devices.train_nodes),
            self.devices.most_neighbours if self._ledger is not None else 0,
        )

    def wish(self, keys: Keys) -> Letters:
        """Tell neighbours' silos which nodes want to hear raw features and hidden layers."""
        self._messages.meet(keys)
        self._agreement.begin()
        for stage in (INPUT, FORWARD):
            self._agreement.want(stage, self._agreement.here)
        return self._post((INPUT, FORWARD), f"{keys.label} wishes")

    def take_wishes(self, letters: Letters) -> Letters:
        """Learn who wants to hear; tell who wants to hear gradients on the way back."""
        self._take((INPUT, FORWARD), self._agreement.here, letters)
        self._agreement.want(BACKWARD, self._agreement.speaks[FORWARD])
        return self._post((BACKWARD,), f"{letters.label} back")

    def take_wishes_back(self, letters: Letters) -> Outgoing:
        """Learn who wants to hear gradients; help them count their neighbours with a loss."""
        self._take((BACKWARD,), self._agreement.hears[FORWARD], letters)
        return self._messages.speak(BACKWARD, self.devices.has_loss(), f"{letters.label} count")

    def count_losses(self, incoming: Incoming) -> Letters:
        """Tell who wants to hear the last layer's gradients: who has enough such neighbours."""
        counted = self._decoded(BACKWARD, incoming, 1)[:, 0].round().long().numpy()
        if self.settings.min_neighbours == 1:  # nothing to hide from: hear as in other layers
            counted = np.full(self.devices.count, np.iinfo(np.int64).max)
        self._agreement.want(LAST, self._agreement.hears[BACKWARD], counted)
        return self._post((LAST,), f"{incoming.label} last")

    def settle(self, letters: Letters) -> Agreed:
        """Learn who wants to hear the last layer's gradients; the agreement is complete."""
        self._take((LAST,), self._agreement.speaks[BACKWARD], letters)
        self.devices.settled()
        routes = self._messages.routes
        return Agreed(
            len(routes[INPUT].silos),
            {stage: float(few) for stage, few in self._agreement.few.items()},
            {stage: float(route.most_noised) for stage, route in routes.items()},
        )

    def _post(self, stages: Sequence[str], label: str) -> Letters:
        """Wishes to the other silos; those to itself stay here."""
        wishes = self._agreement.wishes(stages)
        self._to_itself = wishes.pop(self._messages.number)
        return self._messages.seal(wishes, label)

    def _take(self, stages: Sequence[str], candidates: Mask, letters: Letters) -> None:
        opened = self._messages.open(letters.sealed, letters.label)
        own = {self._messages.number: self._to_itself}
        self._agreement.grant(stages, candidates, {**opened, **own})
        self._agreement.compile(stages)

    def speak_features(self, columns: Columns) -> Outgoing:
        """Send raw features, some columns at a time, to those who want to hear them."""
        rows = self.devices.features(slice(columns.first, columns.last))
        return self._messages.speak(INPUT, rows, columns.label)

    def hear_features(self, incoming: Incoming) -> Nothing:
        """Keep the sums of raw features."""
        self.devices.keep_features(self._decoded(INPUT, incoming, self.devices.columns))
        return Nothing()

    # One pass over the network

    def relay(self, letters: Letters) -> Letters:
        """For others: add up shares that this silo can neither read nor use."""
        return self._messages.relay(letters)

    def speak(self, keys: Keys) -> Outgoing:
        """Begin a pass over the network: the first layer, and what the second one needs."""
        self._messages.meet(keys)
        self._label = keys.label
        self._silos = len(keys.members)
        self.devices.begin(keys.training)
        if self.settings.layers == 1:
            return Outgoing(
                keys.label, NO_NUMBERS[:, None], NO_NUMBERS, NO_NUMBERS, {}, NOTHING_IN_CLEAR
            )
        return self._messages.speak(FORWARD, self._network.say(), f"{self._label} 1")

    def hear(self, incoming: Incoming) -> Outgoing:
        """Compute one layer and send what the next one needs."""
        self.devices.hear(self._decoded(FORWARD, incoming, self._network.width))
        label = f"{self._label} {self._network.depth}"
        return self._messages.speak(FORWARD, self._network.say(), label)

    def turn(self, incoming: Incoming) -> Outgoing:
        """Compute the last layer and the loss, and send its gradients back."""
        self.devices.hear(self._decoded(FORWARD, incoming, self._network.width))
        self._judged = self.devices.judge()
        return self._messages.speak(LAST, self._network.say_gradients(), f"{self._label} back")

    def hear_back(self, incoming: Incoming) -> Outgoing:
        """One layer further back."""
        stage = LAST if self._network.depth == self.settings.layers else BACKWARD
        self._network.hear_gradients(self._decoded(stage, incoming, self._network.width))
        label = f"{self._label} back {self._network.depth}"
        return self._messages.speak(BACKWARD, self._network.say_gradients(), label)

    def give_gradients(self, incoming: Incoming) -> Gradients:
        """The end of a pass: this silo's gradients of the summed loss."""
        gradients, loss, right = self._gradients(incoming)
        training, validation = len(self.devices.train_nodes), len(self.devices.val_nodes)
        return Gradients(gradients, loss, training, right, validation)

    def take_step(self, incoming: Incoming) -> Update:
        """The end of a pass: a step of this silo's own optimiser."""
        gradients, loss, right = self._gradients(incoming)
        training, validation = len(self.devices.train_nodes), len(self.devices.val_nodes)
        s = self.settings
        # So that the server's average of plain steps is a step along the whole gradient.
        times = self._silos / self._all_training_nodes
        if s.weighting == "nodes":
            times = 1.0 / max(training, 1)
        for key, parameter in self._network.model.named_parameters():
            parameter.grad = gradients[key] * times
            if s.training == "fedprox":
                parameter.grad.add_(parameter.detach() - self._shared[key], alpha=s.mu)
        if s.training == "fedper":
            self.best.offer(self._weights(), right, validation)
        self._optimizer.step()
        weights = self._weights()
        if s.training == "fedper":
            weights = fedper.shared(weights, s)
        return Update(weights, loss, training, right, validation)

    def _gradients(self, incoming: Incoming) -> tuple[dict[str, Tensor], float, int]:
        if self.settings.layers > 1:
            stage = LAST if self._network.depth == self.settings.layers else BACKWARD
            self._network.hear_gradients(self._decoded(stage, incoming, self._network.width))
        else:
            self._judged = self.devices.judge()
        gradients = self._network.gradients()
        self._inside("up", DeviceGradients(gradients), self.devices.count)
        loss, right = self._judged
        self._inside("up", DeviceReport(loss, right), self.devices.count)
        if not math.isfinite(loss):
            raise FederationError(
                f"{self.name}: training diverged, the loss is {loss}; try a smaller lr"
            )
        return gradients, loss, right

    def validate(self, incoming: Incoming) -> Validation:
        """The end of a pass without learning: how validation nodes do."""
        if self.settings.layers > 1:
            self.devices.hear(self._decoded(FORWARD, incoming, self._network.width))
        _, right = self.devices.judge()
        nodes = len(self.devices.val_nodes)
        if self.settings.training == "fedper":
            self.best.offer(self._weights(), right, nodes)
        return Validation(right, nodes)

    def _decoded(self, stage: str, incoming: Incoming, width: int) -> Tensor:
        """What each node hears from hidden neighbours: devices collect, the silo decodes."""
        if self.settings.routing == "clear":
            return self._messages.heard_in_clear(stage, incoming, width)
        coded = self._messages.collect(stage, incoming)
        self._inside("up", CodedSums(torch.from_numpy(coded.view(np.int64))))
        decoded = self._messages.decode(coded)
        self._inside("down", DecodedSums(torch.from_numpy(decoded)))
        return self._messages.placed(stage, decoded, width)

    def recall(self, _: Nothing) -> Nothing:
        """Go back to the model that did best on this silo's own validation nodes."""
        with torch.no_grad():
            for key, parameter in self._network.model.named_parameters():
                parameter.copy_(self.best.weights[key])
        return Nothing()

    # What it keeps

    def _weights(self) -> dict[str, Tensor]:
        return {key: each.detach() for key, each in self._network.model.named_parameters()}

    def _inside(self, direction: Direction, sent: Any, devices: int = 1) -> None:
        """Count what passes between the silo and its devices."""
        if self._ledger is not None:
            sizes = {kind: size * devices for kind, size in content_sizes(sent).items()}
            name = wire_name(type(sent))
            self._ledger.count("inside", 0, self.name, direction, name, sizes)

    def inside(self) -> Ledger | None:
        return self._ledger

    def probabilities(self) -> Tensor | None:
        return self.devices.probabilities

    def own_weights(self) -> dict[str, Tensor] | None:
        return self.best.weights if self.settings.training == "fedper" else None

    def state(self) -> dict[str, Tensor]:
        saved = {f"devices/{key}": each for key, each in self.devices.state().items()}
        if self.settings.training != "gradients":
            saved |= {f"optimizer/{k}": each for k, each in self._optimizer.state().items()}
            saved |= {f"weights/{key}": each for key, each in self._weights().items()}
        if self.settings.training == "fedper":
            saved |= self.best.state()
        return saved

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.devices.restore(under("devices/", state))
        if self.settings.training != "gradients":
            self._optimizer.restore(under("optimizer/", state))
            weights = under("weights/", state)
            with torch.no_grad():
                for key, parameter in self._network.model.named_parameters():
                    parameter.copy_(weights[key])
        if self.settings.training == "fedper":
            self.best.restore(state)


# The server


@dataclass
class Training(Selection):
    """The server's memory between rounds.

    members: silos that take part; agreed: those among whom who hears whom is agreed on.
    messages: in an input pass; passes: how many were begun, of any kind.
    moments: the server's optimiser; noised: messages with noise that one node spoke in so far.
    """

    weights: dict[str, Tensor]
    members: list[str]
    agreed: list[str] = field(default_factory=list)
    messages: int = 0
    training_nodes: int = 0
    passes: int = 0
    moments: dict[str, Tensor] = field(default_factory=dict)
    below_minimum: dict[str, float] = field(default_factory=dict)
    most_noised: dict[str, float] = field(default_factory=dict)
    noised: float = 0.0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_round: int = 0
    best_accuracy: float = 0.0


class LostInRound(Exception):  # noqa: N818  # no error: the round is repeated without them
    """Silos that stopped answering in the middle of a round."""


def server(silos: Federation[Silo], settings: HiFGLSettings) -> dict[str, Tensor] | None:
    """HiFGL; gives the weights that did best in validation (none with a model per silo)."""
    _check(silos, settings)
    weights = initial_weights(silos, settings)
    state = Training(weights, list(silos.names))
    hub = Hub(silos, settings, state)
    for _ in silos.rounds(1, state, "preparation"):
        hub.repeat_until_complete(hub.prepare)
    for number in silos.rounds(settings.rounds, state):
        if number == 1:
            silos.note(0, **{f"below_minimum_{k}": v for k, v in state.below_minimum.items()})
        training = hub.train_by_gradients if settings.training == "gradients" else hub.average
        trained = hub.repeat_until_complete(training)
        accuracy = share_right(trained.validation)
        state.offer(number - 1, trained.before, accuracy)
        silos.note(number - 1, validation_accuracy=accuracy)
        silos.note(number, training_loss=trained.loss)
    accuracy = share_right(hub.repeat_until_complete(lambda: hub.validate(state.weights)))
    state.offer(settings.rounds, state.weights, accuracy)
    silos.note(settings.rounds, validation_accuracy=accuracy)
    if settings.training == "fedper":
        silos.ask(Silo.recall, Nothing(), to=state.agreed)
        hub.repeat_until_complete(lambda: hub.validate({}))
    elif state.best_round != settings.rounds:  # nodes' predictions are those of the kept weights
        hub.repeat_until_complete(lambda: hub.validate(state.best))
    _say_epsilon(silos, settings, state)  # of all passes: the last one spoke with noise too
    if settings.training == "fedper":
        return None
    silos.note(state.best_round, selected=1.0)
    return state.best


@dataclass(frozen=True)
class Trained:
    """What a round of training gave: how the weights `before` it did, and the loss."""

    before: dict[str, Tensor]
    validation: dict[str, tuple[int, int]]
    loss: float


class Hub:
    """The server in a round: who is there, what they agreed on, and passes over the network."""

    def __init__(self, silos: Federation[Silo], settings: HiFGLSettings, state: Training) -> None:
        self._silos, self._settings, self._state = silos, settings, state
        self._router = Router(settings.secrecy)
        self._number = {name: number for number, name in enumerate(silos.names)}
        self._absent: set[str] = set()
        self._present: list[str] = []
        self._keys = torch.empty(0, KEY_BYTES, dtype=torch.uint8)
        self._summands = 1

    def repeat_until_complete(self, action: Callable[[], R]) -> R:
        """A round, begun anew without the silos that were lost in the middle of it.

        Masks and messages are new, and so are the relays. What was heard before counts: see
        `secret/consent.py`.
        """
        self._absent = set()
        while True:
            try:
                return action()
            except LostInRound as lost:
                self._absent |= set(lost.args)

    # What a round consists of

    def prepare(self) -> None:
        """Agree on who hears whom, and sum up raw features; who is not there stays out."""
        state = self._state
        self._gather(state.weights)
        width = max(1, BLOCK // max(state.messages, 1))
        features = self._silos.schema.num_features
        for first in range(0, features if state.messages else 0, width):
            columns = Columns(self._label("input"), first, min(first + width, features))
            outgoing = self._ask(Silo.speak_features, dict.fromkeys(self._present, columns))
            self._ask(Silo.hear_features, self._carry(INPUT, outgoing))
            state.noised += state.most_noised[INPUT]
        state.members = list(self._present)

    def train_by_gradients(self) -> Trained:
        """One step of the server's optimiser along the gradient of the whole federation's loss."""
        state, s = self._state, self._settings
        before = state.weights
        self._gather(before)
        validation = self._validated() if s.dropout else {}
        replies = self._pass(Silo.give_gradients, training=True)
        nodes = sum(reply.training_nodes for reply in replies.values())
        if not nodes:
            raise FederationError("no silo that is there has training nodes")
        # Sorted: a checkpoint gives names back in another order than the model has.
        parameters = {key: nn.Parameter(before[key].clone()) for key in sorted(before)}
        for name, reply in replies.items():
            check_weights(name, reply.gradients, like=before)
        for key, parameter in parameters.items():
            total = torch.zeros_like(parameter)
            for reply in replies.values():  # sorted by name: sums of floats depend on the order
                total += reply.gradients[key]
            parameter.grad = total / nodes
        optimizer = Optimizer(s.optimizer, parameters.values(), s.lr, s.weight_decay)
        if state.moments:
            optimizer.restore(state.moments)
        optimizer.step()
        state.moments = optimizer.state()
        state.weights = {key: each.detach() for key, each in parameters.items()}
        judged = {n: (r.validation_right, r.validation_nodes) for n, r in replies.items()}
        loss = sum(reply.loss for reply in replies.values()) / nodes
        return Trained(before, validation or judged, loss)

    def average(self) -> Trained:
        """Every silo steps by itself, `local_epochs` times; the server averages."""
        state, s = self._state, self._settings
        before = state.weights
        self._gather(before)
        validation = self._validated() if s.dropout else {}
        first: Mapping[str, Update] | None = None
        for _ in range(s.local_epochs):
            replies = self._pass(Silo.take_step, training=True)
            first = first or replies
        importance = {
            name: 1.0 if s.weighting == "equal" else float(reply.training_nodes)
            for name, reply in replies.items()
        }
        received = {name: reply.weights for name, reply in replies.items()}
        state.weights = weighted_mean(received, importance, like=before)
        told = first or replies
        nodes = sum(reply.training_nodes for reply in told.values())
        judged = {n: (r.validation_right, r.validation_nodes) for n, r in told.items()}
        return Trained(before, validation or judged, sum(r.loss for r in told.values()) / nodes)

    def validate(self, weights: dict[str, Tensor]) -> dict[str, tuple[int, int]]:
        """Validation nodes classified right with these weights, and how many there are."""
        self._gather(weights)
        return self._validated()

    def _validated(self) -> dict[str, tuple[int, int]]:
        replies = self._pass(Silo.validate, training=False)
        return {name: (reply.right, reply.nodes) for name, reply in replies.items()}

    # Who is there

    def _gather(self, weights: dict[str, Tensor]) -> None:
        """Greet the silos, and have those who answer agree anew if they are not the same."""
        state, s = self._state, self._settings
        asked = [name for name in state.members if name not in self._absent]
        greeting = Shared(weights, state.training_nodes)
        greeted = self._silos.ask(Silo.greet, greeting, to=asked).enough(s.min_silos)
        self._present = list(greeted)
        _check_relays(len(greeted), s, lost=len(self._silos.names) - len(greeted))
        self._keys = torch.stack([reply.public_key for reply in greeted.values()])
        most = max(reply.most_neighbours for reply in greeted.values())
        self._summands = max(most, len(greeted))
        if self._present == state.agreed:
            return
        agreed = self._agree()
        state.agreed = list(self._present)
        state.messages = sum(each.messages for each in agreed.values())
        state.training_nodes = sum(reply.training_nodes for reply in greeted.values())
        if not state.training_nodes:
            raise FederationError("no silo has training nodes: give some nodes the role 'train'")
        for each in agreed.values():
            state.most_noised = {
                stage: max(count, state.most_noised.get(stage, 0.0))
                for stage, count in each.most_noised.items()
            }
        # Neighbours with a loss were counted by a pass of its own, along the ways back.
        state.noised += state.most_noised[BACKWARD]
        if not state.below_minimum:
            stages = next(iter(agreed.values())).below_minimum
            state.below_minimum = {
                stage: sum(each.below_minimum[stage] for each in agreed.values())
                for stage in stages
            }

    def _agree(self) -> Mapping[str, Agreed]:
        """The phases of `secret/consent.py`."""
        wishes = self._ask(Silo.wish, dict.fromkeys(self._present, self._round_keys(False)))
        wishes = self._ask(Silo.take_wishes, self._deliver(wishes))
        counting = self._ask(Silo.take_wishes_back, self._deliver(wishes))
        wishes = self._ask(Silo.count_losses, self._carry(BACKWARD, counting))
        return self._ask(Silo.settle, self._deliver(wishes))

    # Carrying

    def _pass(self, end: Callable[[Silo, Incoming], R], *, training: bool) -> Mapping[str, R]:
        """One pass over the network, layer by layer and back; `end` is each silo's last step."""
        state, layers = self._state, self._settings.layers
        outgoing = self._ask(Silo.speak, dict.fromkeys(self._present, self._round_keys(training)))
        incoming = {name: nothing_incoming(each.label) for name, each in outgoing.items()}
        for layer in range(1, layers):
            incoming = self._carry(FORWARD, outgoing)
            state.noised += state.most_noised[FORWARD]
            if layer < layers - 1:
                outgoing = self._ask(Silo.hear, incoming)
        if training and layers > 1:
            outgoing = self._ask(Silo.turn, incoming)
            incoming = self._carry(LAST, outgoing)
            state.noised += state.most_noised[LAST]
            for _ in range(layers - 2):
                outgoing = self._ask(Silo.hear_back, incoming)
                incoming = self._carry(BACKWARD, outgoing)
                state.noised += state.most_noised[BACKWARD]
        return self._ask(end, incoming)

    def _round_keys(self, training: bool) -> Keys:
        members = torch.tensor([self._number[name] for name in self._present])
        label = self._label("pass")
        turn = self._state.passes % len(members)
        return Keys(label, training, members, self._keys, self._summands, turn)

    def _label(self, what: str) -> str:
        """A name that no other pass has; always as long, so that the same run sends as much."""
        self._state.passes += 1
        return f"{what} {self._state.passes:09d}"

    def _ask(self, step: Callable[[Silo, M], R], messages: Mapping[str, M]) -> dict[str, R]:
        replies: Replies[R] = self._silos.ask_each(step, messages)
        if replies.lost:
            raise LostInRound(*(lost.silo for lost in replies.lost))
        return replies.arrived

    def _carry(self, stage: str, outgoing: Mapping[str, Outgoing]) -> dict[str, Incoming]:
        name_of = self._silos.names

        def relay(letters: Mapping[int, Letters]) -> dict[int, Letters]:
            passed = self._ask(Silo.relay, {name_of[to]: each for to, each in letters.items()})
            return {self._number[name]: each for name, each in passed.items()}

        by_number = {self._number[name]: each for name, each in outgoing.items()}
        incoming = self._router.carry(stage, by_number, relay)
        return {name_of[number]: each for number, each in incoming.items()}

    def _deliver(self, letters: Mapping[str, Letters]) -> dict[str, Letters]:
        """Sealed letters from silo to silo."""
        label = next(iter(letters.values())).label
        sealed = forwarded({self._number[name]: each.sealed for name, each in letters.items()})
        return {name: Letters(label, sealed.get(self._number[name], {})) for name in letters}


def initial_weights(silos: Federation[Silo], settings: HiFGLSettings) -> dict[str, Tensor]:
    """The weights training starts from: those of every method with the same backbone."""
    model = build(settings.shape(silos.schema), silos.stream("initial weights"))
    weights = {key: value.detach() for key, value in model.named_parameters()}
    return fedper.shared(weights, settings) if settings.training == "fedper" else weights


def _check(silos: Federation[Silo], settings: HiFGLSettings) -> None:
    """Refuse what cannot work, before anything is sent."""
    _check_relays(len(silos.names), settings, lost=0)
    if settings.training == "fedper" and settings.personal_layers >= settings.layers:
        raise SettingsError(
            f"personal_layers={settings.personal_layers} leaves nothing to share of "
            f"layers={settings.layers}"
        )
    if settings.noise is not None:
        gaussian_epsilon(1.0, 1, settings.delta)  # its package must be there, now and not later


def _check_relays(members: int, settings: HiFGLSettings, lost: int) -> None:
    try:
        settings.secrecy.check(members, settings.setting == "devices")
    except SettingsError as error:
        if not lost:
            raise
        raise TooFewSilosError(f"{lost} silos were lost, and now {error}") from error


def _say_epsilon(silos: Federation[Silo], settings: HiFGLSettings, state: Training) -> None:
    """Account for messages with noise."""
    if settings.noise is None:
        return
    steps = int(state.noised)
    epsilon = gaussian_epsilon(settings.noise_multiplier, steps, settings.delta)
    silos.say(
        f"messages to nodes below the minimum had noise: a node's own messages, at most {steps} "
        f"of them, are ({epsilon:.4g}, {settings.delta:g})-differentially private"
    )
