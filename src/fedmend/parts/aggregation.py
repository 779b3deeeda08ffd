"""Averaging what silos send."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmend.errors import FederationError

Weights = dict[str, Tensor]


def weighted_mean(updates: Mapping[str, Weights], importance: Mapping[str, float]) -> Weights:
    """sum_i importance_i w_i / sum_i importance_i, in the order of the silos' names.

    The order is fixed because float addition is not associative: the same silos give the same
    bits, whoever answers first. Weights that do not fit together or are not finite are refused
    with the name of the silo that sent them.
    """
    names = sorted(updates)
    total = float(sum(importance[name] for name in names))
    if total <= 0.0:
        raise FederationError("no silo has any weight in the average: all have 0 training nodes")
    first = updates[names[0]]
    mean = {key: torch.zeros_like(value) for key, value in first.items()}
    for name in names:
        check_weights(name, updates[name], like=first)
        share = importance[name] / total
        for key, value in updates[name].items():
            mean[key].add_(value, alpha=share)
    return mean


def check_weights(silo: str, weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names, shapes or types than `like`, or that are NaN or infinite."""
    if weights.keys() != like.keys():
        raise FederationError(f"{silo} sent weights of another model than the other silos")
    for key, value in weights.items():
        if value.shape != like[key].shape or value.dtype != like[key].dtype:
            raise FederationError(
                f"{silo} sent {key} as {tuple(value.shape)} of {value.dtype}, "
                f"expected {tuple(like[key].shape)} of {like[key].dtype}"
            )
        # The sum is not finite if any term is not, and much quicker; a sum of finite numbers may
        # overflow, so only then is each one looked at.
        if not bool(torch.isfinite(value.sum())) and not bool(torch.isfinite(value).all()):
            raise FederationError(
                f"{silo} sent weights that are NaN or infinite ({key}): "
                "its training diverged; try a smaller lr"
            )
