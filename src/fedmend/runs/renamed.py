"""Settings as they are now: an older run's record has those of its day.

A rename is written down here and nowhere else, and so is a setting that methods took without using
it, so that runs and kept figures from before are still found to be the same runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

RENAMED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "hears_itself": ("self_loops", {"lonely": "isolated", "nobody": "none"}),
}
"""The name of its day: the name now, and its values that have other names now."""

WITHOUT_EFFECT = frozenset(
    {"batch_size", "device", "fan_out", "heads", "min_silos", "patience", "weighting"}
)
"""What some methods took and did not use: a method that has it no longer runs as it did before."""

SINCE: Mapping[str, Any] = {"metric": "accuracy"}
"""Settings that came later, with what was always done before."""

GONE: Mapping[str, Any] = {"encoder_layers": 2, "encoder_lr": 1e-3}
"""Settings that nobody used and that are gone, with what is always done now."""


def of_today(settings: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """A record's settings as they are today.

    known: the settings its method has today.
    """
    found = {name: value for name, value in SINCE.items() if name in known}
    for name, value in settings.items():
        now, values = RENAMED.get(name, (name, {}))
        if now in GONE and value == GONE[now] and now not in known:
            continue
        if now in known or now not in WITHOUT_EFFECT:
            found[now] = values.get(value, value) if isinstance(value, str) else value
    return found
