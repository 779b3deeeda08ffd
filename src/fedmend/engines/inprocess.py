"""All silos in this process: for research, for tests, and to rehearse a deployment.

Silos of one step may run side by side in threads. Each step runs with a fixed number of torch
threads, so that the result does not depend on how many run at once. Messages still become bytes
on the way, in both directions: a silo cannot hand over a live object.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

import torch

from fedmend.engines import wire
from fedmend.engines.base import EngineBase, Keeping
from fedmend.engines.computing import computing_with
from fedmend.federation import Schema, SiloBase, SiloLost, step_types

S = TypeVar("S", bound=SiloBase)


@dataclass(frozen=True, slots=True)
class Fault:
    """A silo that fails on purpose, for tests and rehearsals.

    From round `first` to `last` of `phase` (any phase if None) the silo does not answer; or, with
    `delay`, answers that many seconds late, which is a loss if it exceeds the engine's `timeout`.
    """

    silo: str
    first: int = 1
    last: int = 2**31
    phase: str | None = None
    delay: float | None = None

    def hits(self, silo: str, phase: str, round: int) -> bool:
        return (
            silo == self.silo and self.first <= round <= self.last and self.phase in (None, phase)
        )


class InProcess(EngineBase[S]):
    """The in-process engine.

    Args:
        silos: the silos, already built.
        workers: how many silos of a step run side by side; 0 = one per processor core.
        threads: torch threads of each step.
        faults, timeout: losses and delays to inject.
        others: see `Keeping`.
    """

    def __init__(
        self,
        silos: Iterable[S],
        schema: Schema,
        seed: int,
        *,
        workers: int = 0,
        threads: int = 1,
        faults: Iterable[Fault] = (),
        timeout: float | None = None,
        **others: Unpack[Keeping],
    ) -> None:
        self._silos = {silo.name: silo for silo in silos}
        super().__init__(self._silos, schema, seed, **others)
        self._faults = tuple(faults)
        self._timeout = timeout
        self.workers = min(workers or os.cpu_count() or 1, len(self._silos))
        self.threads = threads
        self._fixed = ExitStack()
        self._pool = ThreadPoolExecutor(self.workers) if self.workers > 1 else None

    @property
    def silos(self) -> Mapping[str, S]:
        """The silos themselves: for evaluation, which no deployed server could do."""
        return self._silos

    def __enter__(self) -> InProcess[S]:
        self._fixed.enter_context(computing_with(self.threads))
        return self

    def __exit__(self, *_: object) -> None:
        self._fixed.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        def answer(name: str) -> bytes | SiloLost:
            lost = self._inject(name)
            if lost is not None:
                return lost
            perform: Callable[[Any], Any] = getattr(self._silos[name], step)
            expected, _ = step_types(perform.__func__)  # type: ignore[attr-defined]  # bound
            return wire.encode(perform(wire.decode(requests[name], allowed=(expected,)))).data

        names = list(requests)
        if self._pool is None or len(names) == 1:
            return {name: answer(name) for name in names}
        return dict(zip(names, self._pool.map(answer, names), strict=True))

    def _inject(self, silo: str) -> SiloLost | None:
        for fault in self._faults:
            if not fault.hits(silo, self._phase, self._round):
                continue
            if fault.delay is None:
                return SiloLost(silo, "it does not answer")
            if self._timeout is not None and fault.delay > self._timeout:
                return SiloLost(silo, f"no answer within {self._timeout:g} s")
            time.sleep(fault.delay)
        return None

    def _silo_states(self) -> dict[str, dict[str, torch.Tensor]]:
        return {name: silo.state() for name, silo in self._silos.items()}

    def _restore_silos(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        for name, silo in self._silos.items():
            silo.restore(states[name])
