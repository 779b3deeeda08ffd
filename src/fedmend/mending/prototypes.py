"""Prototypes: a silo's embeddings summed up as the means of their clusters (FedDEP's Proto)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from fedmend.errors import FederationError
from fedmend.federation import Federation
from fedmend.mending.nearest import nearest_rows

_alone = Lock()
"""Limits of threads and warning filters are the process's: one silo after another changes them."""


@dataclass(frozen=True)
class Prototypes:
    """Cluster means, and the cluster of every node."""

    centres: Tensor
    cluster: Tensor

    @property
    def of_nodes(self) -> Tensor:
        """Every node's prototype: a row per node."""
        return self.centres[self.cluster]


def prototypes(embeddings: Tensor, clusters: int, min_size: int, seed: int) -> Prototypes:
    """k-means of the embeddings; clusters below `min_size` are merged into their nearest.

    A prototype of one node is that node's embedding. With fewer than clusters x min_size nodes
    there are fewer clusters, at least one, which is all nodes' mean.
    """
    # Imported here: scikit-learn takes longer to load than most commands to run.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    possible = max(1, min(clusters, len(embeddings) // max(1, min_size)))
    # One thread: another number of them would add up in another order.
    with _alone, threadpool_limits(1), warnings.catch_warnings():
        # Fewer different embeddings than clusters: the server says it when C shrinks.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(possible, n_init=4, random_state=seed % 2**32).fit(embeddings.numpy())
    cluster = torch.from_numpy(fitted.labels_).long()
    return _merged(embeddings, cluster, min_size)


def _merged(embeddings: Tensor, cluster: Tensor, min_size: int) -> Prototypes:
    """Merge the smallest cluster into its nearest until none is too small."""
    while True:
        names, cluster, sizes = torch.unique(cluster, return_inverse=True, return_counts=True)
        sums = embeddings.new_zeros(len(names), embeddings.shape[1])
        centres = sums.index_add_(0, cluster, embeddings) / sizes[:, None]
        smallest = int(sizes.argmin())
        if len(names) == 1 or int(sizes[smallest]) >= min_size:
            return Prototypes(centres, cluster)
        others = torch.arange(len(names)) != smallest
        nearest = int(nearest_rows(centres[smallest : smallest + 1], centres[others]))
        cluster[cluster == smallest] = torch.nonzero(others)[:, 0][nearest]


def check_shared(silos: Federation[Any], shared: Mapping[str, Tensor], settings: Any) -> None:
    """Refuse prototypes that cannot be what they should be: they go to every silo."""
    most = settings.clusters or silos.schema.num_classes
    for name, centres in shared.items():
        fits = centres.dim() == 2 and centres.shape[1] == settings.embedding
        if not fits or len(centres) > most or centres.dtype != torch.float32:
            raise FederationError(
                f"{name} shared prototypes as {tuple(centres.shape)} of {centres.dtype}, expected "
                f"at most ({most}, {settings.embedding}) of torch.float32"
            )
        if not bool((centres.abs() <= 1).all()):  # what a NaN fails, too
            raise FederationError(
                f"{name} shared prototypes that are no means of values in [-1, 1]"
            )


def say_if_shrunk(silos: Federation[Any], shared: Mapping[str, Tensor], settings: Any) -> None:
    """Say which silos have fewer prototypes than asked for."""
    wanted = settings.clusters or silos.schema.num_classes
    for name, centres in shared.items():
        if not len(centres):
            silos.say(
                f"{name} shares no prototypes: it has fewer than min_cluster="
                f"{settings.min_cluster} nodes, and their mean would be about single ones"
            )
        elif len(centres) < wanted:
            silos.say(
                f"{name} shares {len(centres)} prototypes instead of {wanted}: more would have "
                f"fewer than min_cluster={settings.min_cluster} nodes each, or be the same"
            )
