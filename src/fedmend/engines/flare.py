"""Silos in other processes, on other machines: the engine over NVIDIA FLARE.

FLARE carries nothing but our own wire bytes (`engines.wire`), so ledger, messages and weights are
those of the in-process engine. What FLARE itself is stays outside: the engine is given one `Line`
per silo (`deploy.job` makes them of FLARE's proxies), and the `SiloEndpoint` at the other end
(`engines.endpoint`) is called by whatever answers there.

No call ever waits for a silo's work. A line asks the endpoint to perform a step and waits a moment;
while the silo is still busy, short calls ask again. A silo that is dead or cut off therefore leaves
a single short call unanswered and is known to be lost within `answer_within` seconds, whatever the
step's own time limit is; and nothing is left hanging when a run ends. A server that was itself held
up asks again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, Unpack

import torch
from torch import Tensor

from fedmend import __version__
from fedmend.engines import wire
from fedmend.engines.base import EngineBase, Final, Keeping
from fedmend.engines.endpoint import (
    ENDPOINT,
    FinalModel,
    Introduction,
    Place,
    Plan,
    PlatformPhase,
    SiloEndpoint,
)
from fedmend.engines.pauses import Pauses
from fedmend.engines.printable import printable
from fedmend.errors import FederationError, RefusedError, StorageError, WireError
from fedmend.evaluation.evaluate import scores
from fedmend.evaluation.metrics import checked
from fedmend.federation import Nothing, Replies, Schema, SiloBase, SiloLost

S = TypeVar("S", bound=SiloBase)
R = TypeVar("R")
M = TypeVar("M")

ANSWER_WITHIN = 8.0
"""Seconds a living silo may take to say at least that it is still busy."""

SLOWEST = 2.5e6
"""Bytes per second: large messages get that much longer, also on a machine that has much to do."""

PLATFORM_TIMES, PLATFORM_AT_LEAST = 10.0, 60.0
"""What is no step of the method (reading a graph, saving a state, testing) may take so many times
a step's time limit, and that many seconds in any case."""

_PATIENCE = 2.0
"""Seconds a call waits at the endpoint for a step to finish."""

_PROBE_EVERY = 5.0
"""Seconds between looking whether a silo that was cut off is back."""


class Line(Protocol):
    """A way to reach one silo's endpoint."""

    def __call__(
        self, ticket: int, where: str, step: str, request: bytes, patience: float, timeout: float
    ) -> Mapping[str, Any]:
        """Have the endpoint perform a step (once per ticket); what it answers, within `timeout`.

        An empty `step` asks after a ticket. A silo that does not answer raises `TimeoutError`, one
        that cannot be reached `ConnectionError`.
        """


class Flare(EngineBase[S]):
    """The engine of a deployed run, at the server.

    Args:
        lines: how each silo is reached; a name without a line is lost from the start.
        names: all silos of the run.
        timeout: seconds a step may take before its silo is lost for it, see `PLATFORM_TIMES` for
            what is none of the method's; None or 0 = any time.
        answer_within: seconds within which a living silo says at least that it is busy; longer
            for large messages, see `SLOWEST`.
        largest_message: bytes a silo's reply may have.
        others: see `Keeping`.
    """

    def __init__(
        self,
        lines: Mapping[str, Line],
        names: Iterable[str],
        seed: int,
        *,
        timeout: float | None = None,
        answer_within: float = ANSWER_WITHIN,
        largest_message: int = wire.MESSAGE_LIMIT,
        **others: Unpack[Keeping],
    ) -> None:
        nothing_agreed = Schema(0, ())  # until the handshake
        super().__init__(names, nothing_agreed, seed, **others)
        self._lines = dict(lines)
        self._timeout = timeout or None
        self._late: set[str] = set()  # silos that still work on something they are lost for
        self._answer_within = answer_within
        self._largest = largest_message
        self._ticket = 0
        self._to_endpoints = False  # whether what is asked now is none of the method's steps
        self._unreached = {
            name: SiloLost(name, "it is not connected")
            for name in self._names
            if name not in self._lines
        }
        self._pool = ThreadPoolExecutor(max(1, len(self._lines)), thread_name_prefix="line")
        self._closed = threading.Event()
        self._pauses = Pauses(self._closed)
        self._probes = threading.Thread(target=self._probe, name="probe", daemon=True)
        self._probes.start()

    def __enter__(self) -> Flare[S]:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)
        self._probes.join()

    # Before and after the method

    def introduce(self, plan: Plan) -> None:
        """The handshake: every silo agrees to the plan and has the same schema, or nothing runs."""
        for lost in self._unreached.values():
            self.say(f"{lost.silo} takes no part: {lost.why}")
        found = self._answered(SiloEndpoint.introduce, plan)
        check_versions(found)
        self._schema = agreed_schema(found)
        check_borders(found)
        self._answered(SiloEndpoint.prepare, Nothing())

    def evaluate(self, weights: Mapping[str, Tensor] | None, mode: str) -> Final:
        """Test the final model at each silo.

        Like the in-process modes: `own-subgraph`, each silo's test nodes on its own graph, or
        `cross-edges`, as one set, where the silos predicted together.
        """
        final = FinalModel(dict(weights or {}), weights is not None)
        found = self._ask_endpoints("evaluation", SiloEndpoint.score, final).arrived
        classes = self._schema.num_classes
        tested = {
            name: checked(name, each.statistics, classes, each.test_nodes)
            for name, each in found.items()
            if each.test_nodes
        }
        result = scores(mode, tested) if tested else None
        own = [name for name, each in found.items() if each.own_model]
        facts = {name: each.privacy_facts for name, each in found.items()}
        return Final(result, own, facts, self.ledger)

    def _ask_endpoints(
        self, phase: PlatformPhase, step: Callable[[SiloEndpoint, M], R], given: M
    ) -> Replies[R]:
        """Have every silo's endpoint perform one of its own steps, in a phase of the platform."""
        asked: Callable[[Any, M], R] = step  # whatever class of silos the method has
        before = self._phase, self._round
        self._phase, self._round, self._to_endpoints = phase, 0, True
        try:
            return self.ask(asked, given)
        finally:
            self._phase, self._round = before
            self._to_endpoints = False

    def _answered(self, step: Callable[[SiloEndpoint, M], R], given: M) -> dict[str, R]:
        """The replies of all silos that the run was started with; an error if one is missing."""
        replies = self._ask_endpoints("handshake", step, given)
        missing = [each for each in replies.lost if each.silo in self._lines]
        if missing:
            reasons = "; ".join(f"{each.silo}: {each.why}" for each in missing)
            raise FederationError(f"the run cannot start: {reasons}")
        return replies.arrived

    # Transport

    def _gone(self) -> Mapping[str, SiloLost]:
        return dict(self._unreached)

    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        self._ticket += 1
        ticket, where = self._ticket, f"{self._phase}/{self._round}"
        names = list(requests)
        if self._to_endpoints:
            step = ENDPOINT + step

        def one(name: str) -> bytes | SiloLost:
            return self._perform(name, ticket, where, step, requests[name])

        return dict(zip(names, self._pool.map(one, names), strict=True))

    def _perform(
        self, name: str, ticket: int, where: str, step: str, request: bytes
    ) -> bytes | SiloLost:
        line, started, asked = self._lines[name], time.monotonic(), step
        within = self._answer_within + len(request) / SLOWEST  # a reply is often as large
        limit = self._time_limit(name)
        paused, connecting = self._pauses.seconds(), 0.0
        while True:
            patience = _PATIENCE
            if (now_paused := self._pauses.seconds()) > paused:
                # It was us who did not listen: no silo's time, and connections may be gone.
                started += now_paused - paused
                paused, connecting = now_paused, time.monotonic() + within
            if limit is not None:
                left = started + limit - time.monotonic()
                if left <= 0:
                    self._late.add(name)
                    return SiloLost(name, f"no answer within {limit:g} s")
                patience = min(patience, left)
            try:
                answer = line(ticket, where, asked, request, patience, within)
            except (TimeoutError, ConnectionError) as error:
                if self._pauses.seconds() > paused or time.monotonic() < connecting:
                    self._closed.wait(0.2)
                    continue
                lost = SiloLost(name, _why_unreached(error, within))
                self._unreached[name] = lost
                return lost
            if answer.get("state") != "busy":
                self._late.discard(name)
                return self._opened(name, step, answer)
            asked, request = "", b""  # it has them already

    def _time_limit(self, name: str) -> float | None:
        """Seconds a silo has for what it is asked now; None = any time.

        One that has not finished what it was asked before gets no more than a step's time: its
        endpoint has not even begun, and the others are waiting.
        """
        generous = self._to_endpoints and name not in self._late
        if self._timeout is None or not generous:
            return self._timeout
        return max(PLATFORM_AT_LEAST, PLATFORM_TIMES * self._timeout)

    def _opened(self, name: str, step: str, answer: Mapping[str, Any]) -> bytes | SiloLost:
        """An endpoint's answer, which may be anything: a silo is hostile until checked."""
        state, data = answer.get("state"), answer.get("reply")
        if state == "done" and isinstance(data, bytes):
            if len(data) > self._largest:
                raise WireError(
                    f"{name} sent a message of {len(data)} bytes, above the limit of "
                    f"{self._largest}"
                )
            return data
        if state == "failed":
            kind = printable(answer.get("error"), 80)
            sentence = printable(answer.get("sentence"), 300)
            if kind == RefusedError.__name__:
                raise RefusedError(f"{name} takes no part: {sentence}")
            if kind == StorageError.__name__:
                raise StorageError(f"{name} cannot save its state: {sentence}")
            return SiloLost(name, f"{kind} in step {step.removeprefix(ENDPOINT)}: {sentence}")
        raise WireError(f"{name} answered with something that is no answer of ours")

    def _probe(self) -> None:
        """Every few seconds: is a silo back that was cut off for a while?"""
        while not self._closed.wait(_PROBE_EVERY):
            for name in [name for name in self._unreached if name in self._lines]:
                try:
                    self._lines[name](0, "", "", b"", 0.0, _PATIENCE)
                except (TimeoutError, ConnectionError):
                    continue
                self._unreached.pop(name, None)
                self.say(f"{name} is back {self._when()}")

    # Checkpoints: every silo keeps its own state, only places travel

    def _silo_states(self) -> dict[str, dict[str, torch.Tensor]]:
        place = Place(self._phase, self._round)
        self._ask_endpoints("checkpoints", SiloEndpoint.keep, place)
        return {name: {} for name in self._names}

    def _restore_silos(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        del states  # the silos have them
        saved = self._saved
        if saved is None:
            return
        place = Place(saved.phase, saved.round)
        replies = self._ask_endpoints("checkpoints", SiloEndpoint.take_back, place)
        for name, found in replies.arrived.items():
            if found.round != saved.round:
                self.say(f"{name} goes on from its state after round {found.round}")
        for lost in replies.lost:
            # Without its state a silo would quietly be another one.
            self._unreached[lost.silo] = lost
            self._lines.pop(lost.silo, None)

    def _first_round(self, phase: str, count: int, state: Any) -> int:
        ledger, sentences = self.ledger, self.sentences
        first = super()._first_round(phase, count, state)
        if self.ledger is not ledger:  # read from a checkpoint: this time's handshake counts too
            for entry in ledger.entries:
                self.ledger.add(entry)
            self.sentences += [each for each in sentences if each not in self.sentences]
        return first


def _why_unreached(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no sign of life for {seconds:.0f} s"
    return "it cannot be reached"


def check_versions(found: Mapping[str, Introduction]) -> None:
    """Refuse silos with another version than the server's, which makes weights and averages too."""
    for what, own, theirs in (
        ("fedmend", __version__, {name: each.fedmend for name, each in found.items()}),
        ("torch", str(torch.__version__), {name: each.torch for name, each in found.items()}),
    ):
        odd = [f"{name} has {_short(each)}" for name, each in theirs.items() if each != own]
        if odd:
            raise FederationError(
                f"all parties need the same version of {what}: the server has {own}, "
                f"{', '.join(odd)}"
            )


def agreed_schema(found: Mapping[str, Introduction]) -> Schema:
    """What all silos have in common; an error that names two silos and how they differ."""
    first, one = next(iter(found.items()))
    for name, other in found.items():
        for what, mine, theirs in (
            ("numbers of features", one.features, other.features),
            ("classes", one.label_names, other.label_names),
        ):
            if mine != theirs:
                raise FederationError(
                    f"silos {first} and {name} do not fit together: they have different {what}, "
                    f"{_short(mine)} and {_short(theirs)}"
                )
        if one.feature_names and other.feature_names and one.feature_names != other.feature_names:
            raise FederationError(
                f"silos {first} and {name} do not fit together: they name their "
                f"{one.features} features differently"
            )
        # A silo whose features have no names fits any that has as many; compare with one that has.
        if other.feature_names and not one.feature_names:
            first, one = name, other
    try:
        labels = json.loads(one.label_names)
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels):
        raise WireError(f"{first} sent something else than names of classes")
    return Schema(one.features, tuple(labels), one.feature_names)


def check_borders(found: Mapping[str, Introduction]) -> None:
    """Refuse silos that do not list the same edges between them; names the first two."""
    said: dict[str, dict[str, Any]] = {}
    for name, each in found.items():
        if not each.borders:
            continue
        try:
            digests = json.loads(each.borders)
        except (ValueError, RecursionError):
            digests = None
        if not isinstance(digests, dict):
            raise WireError(f"{name} sent something else than hashes of its border")
        said[name] = digests
    for one, digests in said.items():
        for other in said:
            if one < other and digests.get(other) != said[other].get(one):
                raise FederationError(
                    f"silos {one} and {other} list different edges between them: every edge has "
                    "to stand in the table border of both, with the ids that the nodes have"
                )


def _short(value: object) -> str:
    text = printable(value, 101)
    return text if len(text) <= 100 else f"{text[:97]}..."
