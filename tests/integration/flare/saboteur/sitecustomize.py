"""Makes a party's process misbehave on order; Python imports it at every start.

A silo runs its own code on its own machine, so a broken or hostile one is a process whose code does
other things than ours. Orders are JSON files in FEDMEND_SABOTAGE, named after the party and read
anew at every step: {"kind": ..., "step": ..., "round": first, "last": last}.

A process can also be made to ask others for what it should not, over the connections it has: see
`asking`.
"""

from __future__ import annotations

import base64
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ORDERS = os.environ.get("FEDMEND_SABOTAGE")


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


def asking(module: ModuleType) -> None:
    """Has a cell (a party's address in FLARE) send what ask-CELL.json says; answer-CELL.json is
    what came back. Such a process ignores whatever doors the product has put into it."""
    start, untouched = module.CoreCell.start, module.CoreCell.process_message

    def start_asking(self: Any) -> None:
        start(self)
        threading.Thread(target=ask_as_ordered, args=(self, untouched), daemon=True).start()

    module.CoreCell.start = start_asking


def ask_as_ordered(cell: Any, untouched: Any) -> None:
    from nvflare.fuel.f3.message import Message
    from nvflare.private.admin_defs import Message as AdminMessage

    name = cell.my_info.fqcn
    folder = Path(ORDERS or "")
    order, answer = folder / f"ask-{name}.json", folder / f"answer-{name}.json"
    while True:
        time.sleep(0.1)
        if not order.exists():
            continue
        asked = json.loads(order.read_text())
        order.unlink()
        cell.process_message = functools.partial(untouched, cell)
        payload: Any = asked.get("payload")
        if "request" in asked:
            payload = AdminMessage(topic=asked["request"], body=asked["body"])
            if "packed" in asked:
                payload.body = base64.b64decode(asked["packed"])
            for key, value in asked.get("about", {}).items():
                payload.set_header(key, value)
        if "pretend" in asked:
            cell._send_to_endpoint = functools.partial(pretend, cell, asked["pretend"])
        message = Message(asked.get("headers", {}), payload)
        found = cell.send_request(
            asked["channel"], asked["topic"], asked["target"], message, timeout=asked["seconds"]
        )
        for changed in ("_send_to_endpoint", "process_message"):
            vars(cell).pop(changed, None)
        said = found.payload
        said = said.body if isinstance(said, AdminMessage) else said
        said = {"code": found.get_header("cn__return_code"), "said": str(said)}
        part = folder / f"part-of-{name}"
        part.write_text(json.dumps(said))
        part.rename(answer)


def pretend(cell: Any, name: str, to_endpoint: Any, message: Any) -> Any:
    """Send a message in another's name."""
    message.set_header("cn__origin", name)
    return type(cell)._send_to_endpoint(cell, to_endpoint, message)


CHANGES = {"fedmend.engines.endpoint": sabotage, "nvflare.fuel.f3.cellnet.core_cell": asking}


class Finder(importlib.abc.MetaPathFinder):
    """Lets the modules be imported as ever, and then changes them."""

    def __init__(self) -> None:
        self._left = dict(CHANGES)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = self._left.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_sabotage(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = then_sabotage  # type: ignore[method-assign]  # that is the point
        return spec


if ORDERS:
    sys.meta_path.insert(0, Finder())
