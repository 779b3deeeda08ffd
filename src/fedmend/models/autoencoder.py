"""A graph autoencoder: compresses features to embeddings by convolutions, and back again."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedmend.data.sampling import Hop
from fedmend.models.features import Features
from fedmend.models.layers import GcnLayer
from fedmend.models.propagation import operator


class GraphAutoencoder(nn.Module):
    """GCN layers from the features to an embedding, and as many back (FedGGR, Eq. 1)."""

    def __init__(
        self, features: int, embedding: int, layers: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        down = [features] + [embedding] * layers
        pairs = list(pairwise(down))
        self.encoder = nn.ModuleList(GcnLayer(*pair, generator) for pair in pairs)
        self.decoder = nn.ModuleList(GcnLayer(b, a, generator) for a, b in reversed(pairs))

    def encode(self, x: Features, hop: Hop) -> Tensor:
        """The embedding of every node; ReLU between layers."""
        first, *deeper = self.encoder
        h: Tensor = first(x, hop)
        for layer in deeper:
            h = layer(torch.relu(h), hop)
        return h

    def loss(self, x: Features, hop: Hop, squared_norm: float) -> Tensor:
        """Mean squared error of the features (Eq. 2); `squared_norm` is |X|^2.

        The reconstruction R = Q W has as many numbers as the features, nearly all of them dense
        where those are sparse. It is never made: |X - QW|^2 = |X|^2 - 2 <Q, X W^T> + <Q^T Q W, W>
        takes products with X, which may stay sparse, and matrices as small as the embedding.
        """
        *inner, last = self.decoder
        h = self.encode(x, hop)
        for layer in inner:
            h = torch.relu(layer(h, hop))
        heard = operator(hop, "gcn") @ h
        # The bias as one more row of W, heard as ones.
        heard = torch.cat([heard, heard.new_ones(len(heard), 1)], dim=1)
        weight = torch.cat([last.get_parameter("weight"), last.get_parameter("bias")[None]])
        shared = (heard * (x @ weight.T)).sum()
        made = ((heard.T @ heard) @ weight * weight).sum()
        return (squared_norm - 2.0 * shared + made) / (len(heard) * x.num_features)
