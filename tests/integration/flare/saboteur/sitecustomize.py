"""Makes a party's process misbehave on order; Python imports it at every start.

A silo runs its own code on its own machine, so a broken or hostile one is a process whose code does
other things than ours. Orders are JSON files in FEDMEND_SABOTAGE, named after the party and read
anew at every step: {"kind": ..., "step": ..., "round": first, "last": last}.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ORDERS = os.environ.get("FEDMEND_SABOTAGE")
TARGET = "fedmend.engines.endpoint"


def order_for(party: str, step: str, number: int) -> dict[str, Any]:
    path = Path(ORDERS or "") / f"{party}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for order in found:
        first, last = order.get("round", 0), order.get("last", 10**9)
        if order.get("step", step) == step and first <= number <= last:
            return order
    return {}


def sabotage(module: ModuleType) -> None:
    endpoint = module.SiloEndpoint
    run = endpoint._run

    def broken_run(self: Any, where: str, step: str, request: bytes) -> bytes:
        order = order_for(self.name, step, int(where.rpartition("/")[2] or 0))
        match order.get("kind"):
            case "exception":
                return raising(self, step, order["text"], lambda: run(self, where, step, request))
            case "slow":
                time.sleep(order["seconds"])
            case "undeclared":
                import torch

                from fedmend.methods.fedavg import Validation

                data: bytes = module.wire.encode(Validation(torch.tensor([1, 2]))).data
                return data
        done: bytes = run(self, where, step, request)
        return done

    endpoint._run = broken_run


def raising(endpoint: Any, step: str, text: str, run: Callable[[], bytes]) -> bytes:
    """Run with a step that raises, as a bug in it would."""
    silo_type = type(endpoint._silo)
    whole = getattr(silo_type, step)

    @functools.wraps(whole)
    def broken(*_: Any) -> Any:
        raise ValueError(text)

    setattr(silo_type, step, broken)
    try:
        return run()
    finally:
        setattr(silo_type, step, whole)


class Finder(importlib.abc.MetaPathFinder):
    """Lets the module be imported as ever, and then changes it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_sabotage(module: ModuleType) -> None:
            execute(module)
            sabotage(module)

        spec.loader.exec_module = then_sabotage  # type: ignore[method-assign]  # that is the point
        return spec


if ORDERS:
    sys.meta_path.insert(0, Finder())
