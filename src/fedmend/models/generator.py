"""Heads that invent missing neighbours from a node's embedding (NeighGen of FedSage+, DGen).

The number head says how many neighbours a node misses, the neighbour head what they are like. A
node can miss at most `slots` neighbours, and every slot has weights of its own. The last layer is
by far the largest (2048 x features per slot), so it is computed only for the slots that are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmend.models.kernels.dense import product
from fedmend.models.layers import glorot, zeros


class NumberHead(nn.Module):
    """dGen: one linear layer and ReLU, from an embedding to the number of missing neighbours."""

    def __init__(self, inputs: int, start: float, generator: torch.Generator | None) -> None:
        """`start`: what it says of a node it knows nothing about.

        Started at zero, ReLU could be silent for all nodes, and then it never learns.
        """
        super().__init__()
        self.weight = glorot(inputs, 1, generator)
        self.bias = nn.Parameter(torch.full((1,), start))

    def forward(self, z: Tensor) -> Tensor:
        return torch.relu(z @ self.weight + self.bias)[:, 0]


class NeighbourHead(nn.Module):
    """fGen: from (noisy) embeddings to the features of up to `slots` neighbours of each node.

    widths: of the hidden layers. bounded: tanh at the end, for targets between -1 and 1.
    """

    def __init__(
        self,
        inputs: int,
        widths: tuple[int, ...],
        slots: int,
        outputs: int,
        generator: torch.Generator | None,
        *,
        bounded: bool = True,
    ) -> None:
        super().__init__()
        self.slots, self.outputs, self.bounded = slots, outputs, bounded
        sizes = (inputs, *widths)
        self.hidden = nn.ParameterList(
            glorot(a, b, generator) for a, b in zip(sizes, widths, strict=False)
        )
        self.hidden_bias = nn.ParameterList(zeros(width, generator) for width in widths)
        self.last = nn.ParameterList(glorot(sizes[-1], outputs, generator) for _ in range(slots))
        self.last_bias = nn.ParameterList(zeros(outputs, generator) for _ in range(slots))

    def forward(self, z: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The first counts[v] neighbours of every row v of z, and the row each one belongs to.

        All first neighbours come first, then all second ones, and so on.
        """
        owners = owners_by_slot(counts, self.slots)
        if not len(owners[0]):
            return z.new_zeros(0, self.outputs), torch.zeros(0, dtype=torch.int64)
        asked = owners[0]  # whoever has a second neighbour has a first one
        h = z[asked]
        for weight, bias in zip(self.hidden, self.hidden_bias, strict=True):
            h = torch.relu(product(h, weight, bias))
        place = torch.empty(len(z), dtype=torch.int64)
        place[asked] = torch.arange(len(asked))
        made = [
            product(h if len(rows) == len(h) else h[place[rows]], weight, bias)
            for rows, weight, bias in zip(owners, self.last, self.last_bias, strict=True)
            if len(rows)
        ]
        out = torch.cat(made)
        return torch.tanh(out) if self.bounded else out, torch.cat(owners)

    @staticmethod
    def slot_of(row: Tensor) -> Tensor:
        """Which of its row's neighbours each generated one is, 0 for the first.

        A new slot begins where the rows, ascending within a slot, start over.
        """
        starts = torch.zeros(len(row), dtype=torch.int64)
        starts[1:] = (row[1:] <= row[:-1]).long()
        return torch.cumsum(starts, 0)

    def used(self, counts: Tensor) -> set[str]:
        """The names of the parameters that take part when `counts` neighbours are asked for."""
        most = min(int(counts.max()) if len(counts) else 0, self.slots)
        return {
            name
            for name, _ in self.named_parameters()
            if not name.startswith("last") or int(name.rpartition(".")[2]) < most
        }


def owners_by_slot(counts: Tensor, slots: int) -> list[Tensor]:
    """For every slot the rows that fill it: those with more neighbours than the slot's number."""
    return [torch.nonzero(counts > slot)[:, 0] for slot in range(slots)] or [
        torch.zeros(0, dtype=torch.int64)
    ]
