"""A graph convolutional network in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmend.models.backbones import ModelShape


class PlainGcn(nn.Module):
    """GCN in plain torch: each node adds up itself and its neighbours, divided by degrees."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        widths = [shape.num_features, *[shape.hidden] * (shape.layers - 1), shape.outputs]
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, edge_index: Tensor, degree: Tensor) -> Tensor:
        source, target = edge_index
        scale = 1.0 / torch.sqrt(degree + 1.0)  # itself included
        along = (scale[source] * scale[target])[:, None]
        for number, layer in enumerate(self.layers):
            if number:
                x = self.dropout(torch.relu(x))
            heard = torch.zeros_like(x).index_add(0, target, x[source] * along)
            x = layer(heard + x * (scale * scale)[:, None])
        return x
