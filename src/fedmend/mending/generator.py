"""What FedSage+'s NeighGen and FedDEP's DGen have in common: how a silo's generator learns.

A generator is an encoder, a number head and a neighbour head. It learns on the silo's impaired
graph, where it is known who lost whom, together with a classifier that has to do well on what is
generated. What the generated neighbours are compared with, and how the classifier uses them, is
the method's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmend.graph import Graph
from fedmend.mending.hiding import Impaired, hide
from fedmend.mending.reconstruction import number_loss
from fedmend.models.backbones import Backbone
from fedmend.models.generator import NeighbourHead, NumberHead
from fedmend.training.optimizer import Optimizer
from fedmend.training.state import Composed, Part, Values
from fedmend.training.streams import stream


@dataclass(frozen=True)
class Generated:
    """What was generated, features or embeddings, and the node that each row belongs to."""

    rows: Tensor
    owner: Tensor

    def mean(self, nodes: int, kept: Tensor | None = None) -> Tensor:
        """For every node the mean of what was generated for it (and kept), zero if nothing was."""
        rows, owner = self.rows, self.owner
        if kept is not None:
            rows, owner = rows[kept], owner[kept]
        count = torch.bincount(owner, minlength=nodes).clamp(min=1)
        total = rows.new_zeros(nodes, rows.shape[1]).index_add(0, owner, rows)
        return total / count[:, None]

    def drawn_mean(self, nodes: int, rate: float, generator: torch.Generator) -> Tensor:
        """The mean over what a Bernoulli sampler of this rate keeps."""
        return self.mean(nodes, torch.rand(len(self.owner), generator=generator) < rate)


class NeighbourGenerator(Composed, ABC):
    """One silo's generator. Methods add the encoder, the head's widths and two loss terms."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        encoder: Backbone,
        classifier: Backbone,
        *,
        embedding: int,
        neighbours: int,
        least: int,
        least_degree: int = 0,
        widths: tuple[int, ...],
        outputs: int,
        bounded: bool,
        hidden_share: float,
        batch: int,
        lr: float,
        number_weight: float,
        noise: float = 1.0,
        seed: int,
    ) -> None:
        self.name, self.graph, self.encoder, self.classifier = name, graph, encoder, classifier
        self.neighbours, self.embedding = neighbours, embedding
        self._least, self._least_degree = least, least_degree
        self.trained = False
        self._batch, self._number_weight, self._noise_scale = batch, number_weight, noise
        self.noise = stream(seed, name, "generator noise")
        self._batches = stream(seed, name, "generator batches")
        weights = stream(seed, name, "generator weights")
        self.impaired: Impaired = hide(graph, hidden_share, stream(seed, name, "hidden nodes"))
        self.true = self.impaired.missing.clamp(max=neighbours)
        self.number = NumberHead(embedding, float(self.impaired.missing.float().mean()), weights)
        self.head = NeighbourHead(embedding, widths, neighbours, outputs, weights, bounded=bounded)
        self._modules: dict[str, nn.Module] = {
            "encoder": encoder,
            "number": self.number,
            "head": self.head,
            "classifier": classifier,
        }
        self.parameters = {
            f"{part}/{key}": value
            for part, module in self._modules.items()
            for key, value in module.named_parameters()
        }
        self._optimizer = Optimizer("adam", self.parameters.values(), lr, 0.0)

    # What a method adds

    @abstractmethod
    def embeddings(self) -> Tensor:
        """z_v of every node of the impaired graph, differentiable."""

    @abstractmethod
    def reconstruction_loss(
        self, made: Tensor, owner: Tensor, is_true: Tensor, batch: int
    ) -> Tensor:
        """How far generated neighbours are from true ones, as a mean over the batch.

        is_true: whether its node really lost that many; the others are predicted only.
        """

    @abstractmethod
    def classification_loss(
        self, batch: Tensor, made: Tensor, owner: Tensor, is_asked: Tensor
    ) -> Tensor:
        """L^c: cross-entropy of the batch's training nodes on the mended impaired graph.

        is_asked: whether a neighbour is among those predicted, which alone mend the graph.
        """

    # Learning

    @property
    def steps_per_epoch(self) -> int:
        """As many batches as it takes to see every node once on average."""
        return -(-self.impaired.graph.num_nodes // self._batch) if self._batch else 1

    def draw_batch(self) -> tuple[Tensor, Tensor]:
        """Nodes of the impaired graph for one step, and the noise added to their embeddings."""
        nodes = self.impaired.graph.num_nodes
        batch = torch.arange(nodes)
        if 0 < self._batch < nodes:
            batch = torch.randperm(nodes, generator=self._batches)[: self._batch]
        noise = torch.randn(len(batch), self.embedding, generator=self.noise)
        return batch, noise * self._noise_scale

    def predicted(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The batch's embeddings, and how many missing neighbours are predicted of each."""
        with torch.no_grad():
            z = self.embeddings()[batch]
            return z, self.rounded(self.number(z), self.impaired.graph.degree[batch])

    def rounded(self, predicted: Tensor, degree: Tensor) -> Tensor:
        """Predicted numbers of missing neighbours as whole numbers, from the least to k.

        degree: how many neighbours each node sees. The prediction is learned from hidden nodes and
        knows nothing of how many edges were cut, which may be many more. What is sure is that a
        node which sees nobody misses somebody: hence a least degree after mending, and a least
        number to generate, that the user can set.
        """
        least = (self._least_degree - degree).clamp(min=self._least)
        return torch.maximum(predicted.detach().round().long(), least).clamp(max=self.neighbours)

    def step(
        self, batch: Tensor, noise: Tensor, cross: Mapping[str, Tensor] | None = None
    ) -> float:
        """One step along all loss terms; `cross` is a gradient of the head that others computed."""
        z = self.embeddings()[batch]
        predicted = self.number(z)
        loss = self._number_weight * number_loss(predicted, self.impaired.missing[batch])
        asked = self.rounded(predicted, self.impaired.graph.degree[batch])
        true = self.true[batch]
        made, row = self.head(z + noise, torch.maximum(asked, true))
        slot = self.head.slot_of(row)
        owner = batch[row]
        loss = loss + self.reconstruction_loss(made, owner, slot < true[row], len(batch))
        loss = loss + self.classification_loss(batch, made, owner, slot < asked[row])
        self._optimizer.clear()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        for key, gradient in (cross or {}).items():
            own = self.parameters[f"head/{key}"]
            own.grad = gradient if own.grad is None else own.grad.add_(gradient)
        self._optimizer.step()
        self._optimizer.clear()  # a head of 60 MB has gradients of 60 MB
        self.trained = True
        return float(loss.detach())

    # Saving

    def parts(self) -> Mapping[str, Part]:
        return {
            **self._modules,
            "optimizer": self._optimizer,
            "trained": Values(self, trained=bool),
            **self.streams(),
        }

    def streams(self) -> dict[str, torch.Generator]:
        """The random streams that learning draws from."""
        return {"noise": self.noise, "batches": self._batches}
