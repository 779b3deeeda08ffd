"""Deployment: the same methods between organisations, on NVIDIA FLARE (extra `fedmend[flare]`)."""

from __future__ import annotations

from importlib.util import find_spec

from fedmend.errors import SettingsError


def need_flare() -> None:
    """Raise, with what to do, where FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise SettingsError(
            "deployment runs on NVIDIA FLARE, which is not installed: pip install 'fedmend[flare]'"
        )
