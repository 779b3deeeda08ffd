"""Saved state: tensors by name, the names of a part beginning with the part's own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
