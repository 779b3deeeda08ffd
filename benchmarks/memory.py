"""The memory of a process that does nothing but a FedAvg run. Imports only what that needs."""

from __future__ import annotations

from typing import Any

import fedmend as fm
from benchmarks.common import Row, peak_memory_mb


def fedavg_memory(given: dict[str, Any]) -> Row:
    """Load, cut, train with two silos side by side, test; the peak of it all."""
    graph = fm.load(given["dataset"], data_root=given["root"], download=False)
    silos = fm.split(graph, given["silos"], "louvain")
    fm.train("fedavg", silos, workers=2, **given["settings"])
    return {"peak_mb": peak_memory_mb()}
