"""Somebody's own `torch.nn.Module` as a backbone.

What it has to be is what PyG's examples are:

    class Net(torch.nn.Module):
        def __init__(self, shape: ModelShape) -> None: ...

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor: ...

x: a row of features per node, dense. edge_index: 2 x edges, from (row 0) and to (row 1), each edge
in both directions, without self-loops. It gives `shape.outputs` numbers per node, class scores as a
rule. Training on all nodes and predicting, it sees a silo's whole graph. A mini-batch is the batch
and what was drawn around it, `layers` hops deep; where every neighbour is drawn (`fan_out=0`), only
nodes at the rim lack some of theirs. A forward that also takes `degree` gets every node's true
number of neighbours, at the rim too, so that it can divide by what it would by in the whole graph.

Layers that stand in its `self.layers`, a `torch.nn.ModuleList`, can be personal ones (FedPer).

All it learns are parameters: there is nothing else that is averaged, sent or saved. Its first
weights and what `torch.nn.Dropout` drops are drawn from the run's own streams. All of this is
tried out on six nodes before anything is trained.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.errors import SettingsError
from fedmend.models.backbones import BACKBONES, Backbone, ModelShape
from fedmend.models.features import Features

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_LAYERS = 100

# Modules draw their first weights from torch's one generator for everybody.
_EVERYBODYS = threading.Lock()


class PlainBackbone(Backbone):
    """Runs a plain module on what the hops reach, all its layers at once."""

    def _make_layers(self, generator: torch.Generator | None) -> nn.ModuleList:
        shape = self.shape
        if shape.embedding and not shape.joined:
            raise SettingsError(
                f"backbone {shape.backbone!r} comes from outside and has no place for mended "
                "embeddings: use fused-sage or fused-paper"
            )
        if shape.layers > MOST_LAYERS:  # in a record that anybody may have written
            raise SettingsError(f"layers={shape.layers} is not allowed: at most {MOST_LAYERS}")
        if generator is not None:
            _try_out(replace(shape, num_features=min(shape.num_features, 4), embedding=0))
        self.module = _made(shape, generator)
        self._drops = [each for each in self.module.modules() if isinstance(each, _Drop)]
        self._takes_degree = _takes_degree(self.module)
        return nn.ModuleList()

    def hidden(
        self, x: Features, hops: Sequence[Hop], generator: torch.Generator | None = None
    ) -> Features:
        """All that comes before the last layer; it is computed with the last layer."""
        return _NotYet(x, hops, generator)

    def scores(self, hidden: Tensor | Features, hop: Hop) -> Tensor:
        waiting = cast(_NotYet, hidden)  # as `hidden` gave it
        hops = [*waiting.hops, hop]
        edges, computed = _edges(hops)
        for drop in self._drops:
            drop.generator = waiting.generator
        more = {"degree": hops[0].source_degree} if self._takes_degree else {}
        found: Tensor = self.module(waiting.features.dense, edges, **more)
        return found if computed is None else found.index_select(0, computed)


class _NotYet(Features):
    """What a plain module starts from."""

    def __init__(self, x: Features, hops: Sequence[Hop], generator: torch.Generator | None) -> None:
        self.matrix = None
        self.features, self.hops, self.generator = x, hops, generator


class _Drop(nn.Module):
    """Dropout that draws from the stream of whoever trains."""

    generator: torch.Generator | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, h: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return h
        keep = torch.rand(h.shape, generator=self.generator, dtype=h.dtype) >= self.rate
        return h * (keep.to(h.device) / (1.0 - self.rate))


def _edges(hops: Sequence[Hop]) -> tuple[Tensor, Tensor | None]:
    """The edges that hops hear through, each once, between rows of the first one's input.

    And which of these rows the last hop computes; None for all, in order.
    """
    first, last = hops[0], hops[-1]
    everybody = first.reused and first.own == first.sources
    if everybody and "edges" in first.cache:
        edges: Tensor = first.cache["edges"]
    else:
        edges = _distinct(hops[:1] if everybody else hops)  # all others' are among its own
        if everybody:
            first.cache["edges"] = edges
    if last is first and everybody:
        return edges, None
    place = torch.arange(first.sources, device=first.col.device)
    for hop in hops:
        place = hop.own_rows(place)
    return edges, place


def _distinct(hops: Sequence[Hop]) -> Tensor:
    nodes = hops[0].sources
    place = torch.arange(nodes, device=hops[0].col.device)
    found = []
    for hop in hops:
        target = hop.own_rows(place)
        found.append(place[hop.col] * nodes + torch.repeat_interleave(target, hop.heard))
        place = target
    pairs = torch.unique(torch.cat(found))
    return torch.stack([pairs // nodes, pairs % nodes])


def _made(shape: ModelShape, generator: torch.Generator | None) -> nn.Module:
    """A new module of this shape, whose dropout is ours; without a generator, of no values."""
    make = BACKBONES[shape.backbone].make
    if make is None:
        raise SettingsError(f"backbone {shape.backbone!r} is no module from outside")
    with (
        BACKBONES.running(shape.backbone),
        _EVERYBODYS,
        torch.random.fork_rng(devices=[]),
    ):
        if generator is None:
            with torch.device("meta"):
                module = make(shape)
        else:
            drawn = torch.randint(2**62, (1,), generator=generator)
            torch.default_generator.manual_seed(int(drawn))
            module = make(shape)
    if not isinstance(module, nn.Module):
        raise SettingsError(
            f"backbone {shape.backbone!r} must give a torch.nn.Module, got {module!r:.80}"
        )
    for each in list(module.modules()):
        for name, child in each.named_children():
            if type(child) is nn.Dropout:
                setattr(each, name, _Drop(child.p))
    return module


def _takes_degree(module: nn.Module) -> bool:
    return "degree" in inspect.signature(module.forward).parameters


# What it must keep


@cache
def _try_out(shape: ModelShape) -> None:
    """Refuse a module that would not do what training, averaging and predicting rely on."""
    name = shape.backbone
    with BACKBONES.running(name):
        wrong = _wrong(shape)
    if wrong is not None:
        raise SettingsError(f"the backbone {name!r} of {BACKBONES.plugin_of(name)} {wrong}")


def _wrong(shape: ModelShape) -> str | None:
    module, other = (_made(shape, torch.Generator().manual_seed(0)) for _ in range(2))
    parameters = dict(module.named_parameters())
    if {id(each) for each in parameters.values()} & {id(each) for each in other.parameters()}:
        return "gives the same module twice: it must make a new one at every call"
    if not parameters or any(each.dtype != torch.float32 for each in parameters.values()):
        return "must have parameters, all of them float32"
    if kept := [name for name, _ in module.named_buffers()]:
        return (
            f"keeps buffers ({kept[0]}), and only parameters are averaged, sent and saved: use "
            "LayerNorm in place of BatchNorm, or make them parameters"
        )
    with torch.no_grad():
        found = _run(module.eval(), shape)
        if not isinstance(found, Tensor) or found.shape != (6, shape.outputs):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            return f"must give {shape.outputs} numbers for each of 6 nodes, it gave {got}"
        if not _same_from_weights(shape, parameters, found):
            return "holds more than its parameters: make its constants in forward"
        with _EVERYBODYS, torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            trained = _run(module.train(), shape)
            if not torch.equal(torch.get_rng_state(), before):
                return "draws from torch's generator for everybody: use torch.nn.Dropout"
    if shape.dropout == 0.0 and not torch.equal(trained, found):
        return "differs between training and predicting: drop the share that dropout says"
    return None


def _run(module: nn.Module, shape: ModelShape) -> Any:
    """What a module says of six nodes, two of which have no neighbours."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 0, 2], [1, 0, 2, 1, 3, 2, 0, 3, 2, 0]])
    x = torch.linspace(-1.0, 1.0, 6 * shape.num_features).view(6, -1)
    for each in module.modules():
        if isinstance(each, _Drop):
            each.generator = torch.Generator().manual_seed(0)
    if _takes_degree(module):
        return module(x, edges, degree=torch.tensor([3, 2, 3, 2, 0, 0]))
    return module(x, edges)


def _same_from_weights(shape: ModelShape, weights: Mapping[str, Tensor], found: Tensor) -> bool:
    """Whether a module that is made without values, as a saved one is, says the same."""
    module = _made(shape, None)
    copies = {key: value.detach().clone() for key, value in weights.items()}
    try:
        module.load_state_dict(copies, assign=True)
        return torch.equal(_run(module.eval(), shape), found)
    except RuntimeError:  # something in it is without values still
        return False
