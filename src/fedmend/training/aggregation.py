"""Averaging what silos send."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedmend.errors import FederationError

Weights = dict[str, Tensor]


def weighted_mean(
    updates: Mapping[str, Weights], importance: Mapping[str, float], like: Weights | None = None
) -> Weights:
    """sum_i importance_i w_i / sum_i importance_i, in the order of the silos' names.

    The order is fixed because float addition is not associative: the same silos give the same
    bits, whoever answers first. Weights that are not finite, or unlike those the server knows
    (`like`; the first silo's if it has none), are refused with the name of the silo that sent them.
    """
    names = sorted(updates)
    for name in names:
        if not 0.0 <= importance[name] < math.inf:
            raise FederationError(f"{name} cannot count {importance[name]} in the average")
    total = float(sum(importance[name] for name in names))
    if total <= 0.0:
        raise FederationError("no silo has any weight in the average: all have 0 training nodes")
    like = updates[names[0]] if like is None else like
    return _summed(updates, {name: importance[name] / total for name in names}, like)


def added_up(updates: Mapping[str, Weights], like: Weights) -> Weights:
    """sum_i w_i, in the order of the silos' names, checked as in `weighted_mean`."""
    return _summed(updates, dict.fromkeys(updates, 1.0), like) if updates else {}


def _summed(updates: Mapping[str, Weights], shares: Mapping[str, float], like: Weights) -> Weights:
    total = {key: torch.zeros_like(value) for key, value in like.items()}
    for name in sorted(updates):
        _check_form(name, updates[name], like)
        for key, value in updates[name].items():
            total[key].add_(value, alpha=shares[name])
    # A number that is not finite makes its sum so, whatever its share: one look at the sum is
    # enough, unless there is somebody to be named.
    if not all(_is_finite(value) for value in total.values()):
        for name in sorted(updates):
            _check_numbers(name, updates[name])
    return total


def check_weights(silo: str, weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names, shapes or types than `like`, or that are NaN or infinite."""
    _check_form(silo, weights, like)
    _check_numbers(silo, weights)


def _check_form(silo: str, weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    if weights.keys() != like.keys():
        raise FederationError(f"{silo} sent the weights of another model")
    for key, value in weights.items():
        if value.shape != like[key].shape or value.dtype != like[key].dtype:
            raise FederationError(
                f"{silo} sent {key} as {tuple(value.shape)} of {value.dtype}, "
                f"expected {tuple(like[key].shape)} of {like[key].dtype}"
            )


def _check_numbers(silo: str, weights: Mapping[str, Tensor]) -> None:
    for key, value in weights.items():
        if not _is_finite(value):
            raise FederationError(
                f"{silo} sent weights that are NaN or infinite ({key}): "
                "its training diverged; try a smaller lr"
            )


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers are.

    Their sum is not finite if any of them is not, and much quicker; a sum of finite numbers may
    overflow, so only then is each one looked at.
    """
    return math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())
