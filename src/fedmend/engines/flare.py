"""Silos in other processes, on other machines: the engine over NVIDIA FLARE, and a silo's desk.

FLARE carries nothing but our own wire bytes (`engines.wire`), so ledger, messages and weights are
those of the in-process engine. What FLARE itself is stays outside: the engine is given one `Line`
per silo (`deploy.job` makes them of FLARE's proxies), and the `Desk` at the other end is called by
whatever answers there.

No call ever waits for a silo's work. A line asks the desk to perform a step and waits a moment;
while the silo is still busy, short calls ask again. A silo that is dead or cut off therefore leaves
a single short call unanswered and is known to be lost within `answer_within` seconds, whatever the
step's own time limit is; and nothing is left hanging when a run ends.

What a deployment needs besides the method's own messages (handshake, saving a silo's state at the
silo, the final test) travels the same way and stands in the ledger under phases of its own
(`PLATFORM_PHASES`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedmend import __version__
from fedmend.config import make
from fedmend.engines import checkpoint, wire
from fedmend.engines.base import EngineBase, Watch
from fedmend.engines.inprocess import torch_threads
from fedmend.errors import (
    DataError,
    FederationError,
    FedmendError,
    RefusedError,
    StorageError,
    WireError,
)
from fedmend.evaluation.evaluate import Scores, mean_scores, score_silo
from fedmend.federation import (
    Nothing,
    Replies,
    Schema,
    SiloBase,
    SiloLost,
    field_rules,
    message,
    step_types,
    wire_name,
)
from fedmend.graph import Graph, is_sparse
from fedmend.methods import Method, find
from fedmend.privacy.ledger import Kind, Ledger
from fedmend.privacy.policy import Policy

S = TypeVar("S", bound=SiloBase)
R = TypeVar("R")
M = TypeVar("M")

PLATFORM_PHASES = ("handshake", "checkpoints", "evaluation")
"""Phases of the ledger that the in-process engine does not have."""

ANSWER_WITHIN = 8.0
"""Seconds a living silo may take to say at least that it is still busy."""

SLOWEST = 2.5e6
"""Bytes per second: large messages get that much longer, also on a machine that has much to do."""

_PATIENCE = 2.0
"""Seconds a call waits at the desk for a step to finish."""

_PROBE_EVERY = 5.0
"""Seconds between looking whether a silo that was cut off is back."""

_log = logging.getLogger("fedmend")


# What travels besides the method's own messages


@message
class Plan:
    """What is going to be run: all a silo needs to decide whether it takes part."""

    run: Annotated[str, Kind.CONTROL]
    method: Annotated[str, Kind.CONTROL]
    settings: Annotated[str, Kind.CONTROL]
    seed: Annotated[int, Kind.CONTROL]
    threads: Annotated[int, Kind.CONTROL]
    resumed: Annotated[bool, Kind.CONTROL]


@message
class Introduction:
    """A silo's side of the handshake: its schema and versions, and nothing about its nodes."""

    features: Annotated[int, Kind.CONTROL]
    feature_names: Annotated[str, Kind.CONTROL]
    label_names: Annotated[str, Kind.CONTROL]
    fedmend: Annotated[str, Kind.CONTROL]
    torch: Annotated[str, Kind.CONTROL]


@message
class Place:
    """Where a run stands."""

    phase: Annotated[str, Kind.CONTROL]
    round: Annotated[int, Kind.CONTROL]


@message
class FinalModel:
    """The shared model a run ended with; empty where every silo has its own."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    shared: Annotated[bool, Kind.CONTROL]


@message
class FinalFigures:
    """How the final model does on a silo's own test nodes."""

    accuracy: Annotated[float, Kind.METRICS]
    macro_f1: Annotated[float, Kind.METRICS]
    test_nodes: Annotated[int, Kind.COUNTS]
    own_model: Annotated[bool, Kind.CONTROL]


class Line(Protocol):
    """A way to reach one silo's desk."""

    def __call__(
        self, ticket: int, where: str, step: str, request: bytes, patience: float, timeout: float
    ) -> Mapping[str, Any]:
        """Have the desk perform a step (once per ticket); what it answers, within `timeout`.

        An empty `step` asks after a ticket. A silo that does not answer raises `TimeoutError`, one
        that cannot be reached `ConnectionError`.
        """


class Flare(EngineBase[S]):
    """The engine of a deployed run, at the server.

    Args:
        lines: how each silo is reached; a name without a line is lost from the start.
        names: all silos of the run.
        timeout: seconds a step may take before its silo is lost for it; None = any time.
        answer_within: seconds within which a living silo says at least that it is busy; longer
            for large messages, see `SLOWEST`.
        largest_message: bytes a silo's reply may have.
        others: see `EngineBase`.
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
        watch: Watch | None = None,
        checkpoint_file: Path | None = None,
        checkpoint_every: int = 10,
        fingerprint: str = "",
        resume: bool = False,
    ) -> None:
        super().__init__(
            names,
            Schema(0, ()),  # until the handshake
            seed,
            watch=watch,
            checkpoint_file=checkpoint_file,
            checkpoint_every=checkpoint_every,
            fingerprint=fingerprint,
            resume=resume,
        )
        self._lines = dict(lines)
        self._timeout = timeout
        self._answer_within = answer_within
        self._largest = largest_message
        self._ticket = 0
        self._unreached = {
            name: SiloLost(name, "it is not connected")
            for name in self._names
            if name not in self._lines
        }
        self._pool = ThreadPoolExecutor(max(1, len(self._lines)), thread_name_prefix="line")
        self._closed = threading.Event()
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
        with self._platform("handshake"):
            found = self._answered(Desk.introduce, plan)
            self._schema = agreed_schema(found)
            self._answered(Desk.prepare, Nothing())

    def evaluate(self, weights: Mapping[str, Tensor] | None) -> tuple[Scores | None, list[str]]:
        """Test the final model at each silo; the scores, and the silos with a model of their own.

        Like the in-process `own-subgraph`: each silo's test nodes on its own graph.
        """
        with self._platform("evaluation"):
            final = FinalModel(dict(weights or {}), weights is not None)
            found = self._ask_desks(Desk.score, final).arrived
        by_silo = {
            name: {"accuracy": each.accuracy, "macro_f1": each.macro_f1}
            for name, each in found.items()
            if each.test_nodes
        }
        own = [name for name, each in found.items() if each.own_model]
        tested = sum(each.test_nodes for each in found.values())
        return (mean_scores("own-subgraph", by_silo, tested) if by_silo else None), own

    def _ask_desks(self, step: Callable[[Desk, M], R], given: M) -> Replies[R]:
        """Have every silo's desk perform one of its own steps."""
        asked: Callable[[Any, M], R] = step  # whatever class of silos the method has
        return self.ask(asked, given)

    def _answered(self, step: Callable[[Desk, M], R], given: M) -> dict[str, R]:
        """The replies of all silos that the run was started with; an error if one is missing."""
        replies = self._ask_desks(step, given)
        missing = [each for each in replies.lost if each.silo in self._lines]
        if missing:
            reasons = "; ".join(f"{each.silo}: {each.why}" for each in missing)
            raise FederationError(f"the run cannot start: {reasons}")
        return replies.arrived

    @contextmanager
    def _platform(self, phase: str) -> Iterator[None]:
        before = self._phase, self._round
        self._phase, self._round = phase, 0
        try:
            yield
        finally:
            self._phase, self._round = before

    # Transport

    def _gone(self) -> Mapping[str, SiloLost]:
        return dict(self._unreached)

    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        self._ticket += 1
        ticket, where = self._ticket, f"{self._phase}/{self._round}"
        names = list(requests)
        if self._phase in PLATFORM_PHASES:
            step = _DESK + step

        def one(name: str) -> bytes | SiloLost:
            return self._perform(name, ticket, where, step, requests[name])

        return dict(zip(names, self._pool.map(one, names), strict=True))

    def _perform(
        self, name: str, ticket: int, where: str, step: str, request: bytes
    ) -> bytes | SiloLost:
        line, started, asked = self._lines[name], time.monotonic(), step
        within = self._answer_within + len(request) / SLOWEST  # a reply is often as large
        # The method's steps have a time limit; reading a graph or saving a state is none of them.
        timeout = None if self._phase in PLATFORM_PHASES else self._timeout
        while True:
            patience = _PATIENCE
            if timeout is not None:
                left = started + timeout - time.monotonic()
                if left <= 0:
                    return SiloLost(name, f"no answer within {timeout:g} s")
                patience = min(patience, left)
            try:
                answer = line(ticket, where, asked, request, patience, within)
            except (TimeoutError, ConnectionError) as error:
                lost = SiloLost(name, _why_unreached(error, within))
                self._unreached[name] = lost
                return lost
            if answer.get("state") != "busy":
                return self._opened(name, step, answer)
            asked, request = "", b""  # it has them already

    def _opened(self, name: str, step: str, answer: Mapping[str, Any]) -> bytes | SiloLost:
        """A desk's answer, which may be anything: a silo is hostile until checked."""
        state, data = answer.get("state"), answer.get("reply")
        if state == "done" and isinstance(data, bytes):
            if len(data) > self._largest:
                raise WireError(
                    f"{name} sent a message of {len(data)} bytes, above the limit of "
                    f"{self._largest}"
                )
            return data
        if state == "failed":
            kind, sentence = str(answer.get("error"))[:80], str(answer.get("sentence"))[:300]
            sentence = " ".join(sentence.split())
            if kind == RefusedError.__name__:
                raise RefusedError(f"{name} takes no part: {sentence}")
            if kind == StorageError.__name__:
                raise StorageError(f"{name} cannot save its state: {sentence}")
            return SiloLost(name, f"{kind} in step {step.removeprefix(_DESK)}: {sentence}")
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
        with self._platform("checkpoints"):
            self._ask_desks(Desk.keep, place)
        return {name: {} for name in self._names}

    def _restore_silos(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        del states  # the silos have them
        saved = self._saved
        if saved is None:
            return
        with self._platform("checkpoints"):
            replies = self._ask_desks(Desk.take_back, Place(saved.phase, saved.round))
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


def agreed_schema(found: Mapping[str, Introduction]) -> Schema:
    """What all silos have in common; an error that names two silos and how they differ."""
    first, one = next(iter(found.items()))
    for name, other in found.items():
        for what, mine, theirs in (
            ("versions of fedmend", one.fedmend, other.fedmend),
            ("versions of torch", one.torch, other.torch),
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
    return Schema(one.features, tuple(labels))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


# The silo's side


class Desk:
    """A silo in a deployed run: performs steps on bytes, and lets out what its policy allows.

    Args:
        name: the silo's name.
        graph: gives its graph; asked when a run starts, so that bad data is this silo's error.
        policy: what it agrees to.
        folder: gives the folder where it keeps what belongs to a run, by the run's name.
        tell: a status line for whoever looks after the silo.
    """

    def __init__(
        self,
        name: str,
        graph: Callable[[], Graph],
        policy: Policy,
        folder: Callable[[str], Path],
        tell: Callable[[str], None],
    ) -> None:
        self.name = name
        self.ledger = Ledger()
        self._graph_of, self._policy, self._folder_of, self._tell = graph, policy, folder, tell
        # One thread: steps of a silo never run side by side, and a late one comes first.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="silo")
        self._work: dict[int, Future[bytes]] = {}
        self._plan: Plan | None = None
        self._method: Method | None = None
        self._config: Any = None
        self._graph: Graph | None = None
        self._silo: SiloBase | None = None
        self._last_said = 0.0

    # Called by the line

    def perform(
        self, ticket: int, where: str, step: str, request: bytes, patience: float
    ) -> dict[str, Any]:
        """Perform a step unless its ticket is known; the reply, or that it is not ready yet."""
        if ticket == 0:
            return {"state": "idle"}
        if step and ticket not in self._work:
            self._work[ticket] = self._pool.submit(self._run, where, step, request)
        work = self._work.get(ticket)
        if work is None:
            return {"state": "failed", "error": "FederationError", "sentence": "unknown ticket"}
        try:
            reply = work.result(timeout=max(0.0, min(patience, 60.0)))
        except NotYet:
            if not work.done():
                return {"state": "busy"}
            reply = b""
        except BaseException as error:  # noqa: BLE001  # whatever it is, its text stays here
            return {
                "state": "failed",
                "error": type(error).__name__,
                "sentence": sentence_without_data(error),
            }
        # The answer may get lost on the way and be asked for again; older ones will not.
        for old in [each for each in self._work if each < ticket]:
            del self._work[old]
        return {"state": "done", "reply": reply}

    def close(self) -> None:
        """End the desk; a step that is running is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, where: str, step: str, request: bytes) -> bytes:
        try:
            phase, _, number = where.rpartition("/")
            round_number = int(number) if number.isdecimal() else 0
            self._policy.check_size(len(request), f"a request for {step}")
            perform = self._step(step)
            expected, promised = step_types(perform.__func__)  # type: ignore[attr-defined]  # bound
            given = wire.decode(request, allowed=(expected,), limit=self._policy.largest_message)
            self._count(phase, round_number, "down", given, len(request))
            if phase not in PLATFORM_PHASES:
                self._say_where(phase, round_number)
            with torch_threads(self._plan.threads if self._plan else 1):
                found = perform(given)
            if type(found) is not promised:
                raise WireError(f"{step} gave {type(found).__name__}, which it does not declare")
            reply = wire.encode(found)
            kinds = {kind.value for kind in reply.sizes if kind is not Kind.FRAMING}
            self._policy.check_kinds(kinds, f"which {step} would send")
            self._policy.check_size(len(reply.data), f"the reply of {step}")
            self._count(phase, round_number, "up", found, len(reply.data))
            return reply.data
        except BaseException as error:
            self._tell(f"{type(error).__name__} in step {step}: {error}")
            _log.exception("step %s failed", step)
            raise

    def _step(self, step: str) -> Callable[[Any], Any]:
        """The step of this name: one of the desk's own, or one that the method's silo declares."""
        if step.startswith(_DESK) and step.removeprefix(_DESK) in _DESK_STEPS:
            own: Callable[[Any], Any] = getattr(self, step.removeprefix(_DESK))
            return own
        if self._silo is None or step not in steps_of(type(self._silo)):
            raise WireError(f"there is no step {step!r}")
        found: Callable[[Any], Any] = getattr(self._silo, step)
        return found

    def _count(self, phase: str, number: int, direction: Any, given: Any, size: int) -> None:
        sizes = wire.sizes_by_kind(given, size)
        self.ledger.count(phase, number, self.name, direction, wire_name(type(given)), sizes)

    def _say_where(self, phase: str, number: int) -> None:
        if number == 1 or time.monotonic() - self._last_said > 10:
            self._last_said = time.monotonic()
            self._tell(f"{phase}, round {number}; {self.ledger.total('up')} bytes have left so far")

    # The desk's own steps

    def introduce(self, plan: Plan) -> Introduction:
        """Take part or refuse, before anything but a schema is said."""
        method = find(plan.method)
        self._policy.check_method(method.name)
        if method.not_deployable is not None:
            raise RefusedError(f"{method.name} cannot be deployed: {method.not_deployable}")
        for name, step in steps_of(method.silo_type).items():
            self._policy.check_kinds(kinds_of(step), f"which {method.name} sends in {name}")
        self._policy.check_kinds(kinds_of(Desk.score), "which the final test sends")
        self._config = make(method.settings_type, json.loads(plan.settings))
        self._plan, self._method = plan, method
        graph = self._graph = self._graph_of()
        going = "goes on with" if plan.resumed else "takes part in"
        self._tell(f"{going} {method.name} (run {plan.run}, seed {plan.seed})")
        return Introduction(
            features=graph.num_features,
            feature_names=hash_of_names(graph.feature_names),
            label_names=json.dumps(list(graph.label_names)),
            fedmend=__version__,
            torch=str(torch.__version__),
        )

    def prepare(self, _: Nothing) -> Nothing:
        """Build the method's silo: after the handshake, before the first step."""
        plan, method = self._known()
        self._silo = method.silo_type(self.name, self._data(), self._config, plan.seed)
        return Nothing()

    def keep(self, place: Place) -> Nothing:
        """Save the silo's state here, so that a run can be resumed; the last two are kept."""
        plan, _ = self._known()
        saved = self._checkpoints()
        number = int(saved[-1].stem.rpartition("-")[2]) + 1 if saved else 1
        checkpoint.write(
            self._folder_of(plan.run) / f"checkpoint-{number:09d}.safetensors",
            checkpoint.Checkpoint(
                fingerprint=self._fingerprint(),
                phase=place.phase,
                round=place.round,
                finished=(),
                server=({}, {}),
                silos={self.name: self._built().state()},
                ledger=self.ledger.to_csv(),
                history={},
                sentences=(),
            ),
        )
        for old in saved[:-1]:  # the server may have been stopped before it saved its own side
            old.unlink(missing_ok=True)
        return Nothing()

    def take_back(self, place: Place) -> Place:
        """Take back the state saved at this place, or the newest before it in the same phase."""
        for path in reversed(self._checkpoints()):
            saved = checkpoint.read(path, self._fingerprint())
            if saved.phase == place.phase and saved.round <= place.round:
                with checkpoint.damaged(path):
                    self._built().restore(saved.silos[self.name])
                    before = self.ledger
                    self.ledger = Ledger.from_csv(saved.ledger)
                    for entry in before.entries:
                        self.ledger.add(entry)
                return Place(saved.phase, saved.round)
            path.unlink(missing_ok=True)  # beyond where the run goes on
        raise FederationError("this silo has no saved state of the run")

    def score(self, final: FinalModel) -> FinalFigures:
        """Test the final model on this silo's test nodes, and keep it here."""
        from fedmend.reports.record import FORMAT, write_run

        plan, method = self._known()
        graph = self._data()
        shape = self._config.shape(Schema(graph.num_features, graph.label_names))
        weights = final.weights if final.shared else self._built().own_weights()
        if weights is None:
            raise FederationError("there is no model to test")
        tested = int(graph.test_mask.sum())
        figures = (
            score_silo(shape, weights, graph, self._built().mended_embeddings())
            if tested
            else {"accuracy": 0.0, "macro_f1": 0.0}
        )
        record = {
            "format": FORMAT,
            "method": method.name,
            "settings": dataclasses.asdict(self._config),
            "seed": plan.seed,
            "model": dataclasses.asdict(shape),
            "label_names": list(graph.label_names),
            "shared_model": final.shared,
            "silos_with_own_model": [] if final.shared else [self.name],
            "engine": {"name": "flare", "silo": self.name, "run": plan.run},
        }
        shared, own = (weights, {}) if final.shared else (None, {self.name: weights})
        folder = self._folder_of(plan.run)
        write_run(folder, record, shared, own, self.ledger)
        self._tell(f"finished; its model and ledger are in {folder}")
        return FinalFigures(figures["accuracy"], figures["macro_f1"], tested, not final.shared)

    def _known(self) -> tuple[Plan, Method]:
        if self._plan is None or self._method is None:
            raise FederationError("no run was introduced")
        return self._plan, self._method

    def _data(self) -> Graph:
        if self._graph is None:
            raise FederationError("no run was introduced")
        return self._graph

    def _built(self) -> SiloBase:
        if self._silo is None:
            raise FederationError("no run was prepared")
        return self._silo

    def _checkpoints(self) -> list[Path]:
        plan, _ = self._known()
        return sorted(self._folder_of(plan.run).glob("checkpoint-*.safetensors"))

    def _fingerprint(self) -> str:
        """Identifies this silo's part of a run: the run, its settings but rounds, and its data."""
        plan, method = self._known()
        settings = {k: v for k, v in dataclasses.asdict(self._config).items() if k != "rounds"}
        what = [plan.run, method.name, settings, plan.seed, plan.threads, str(torch.__version__)]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode())
        graph = self._data()
        digest.update(json.dumps([graph.label_names, graph.node_ids.astype(str).tolist()]).encode())
        x = graph.x
        features = (x.crow_indices(), x.col_indices(), x.values()) if is_sparse(x) else (x,)
        masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        for part in (*features, graph.rowptr, graph.col, graph.y, *masks):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


_DESK = "desk."
"""Before the names of a desk's own steps: a method's silo may well have steps of the same names."""

_DESK_STEPS = ("introduce", "prepare", "keep", "take_back", "score")


def steps_of(silo_type: type[Any]) -> dict[str, Callable[..., Any]]:
    """The steps a class of silos declares: public methods that take a message and give one."""
    found = {}
    for name in dir(silo_type):
        step = getattr(silo_type, name)
        if name.startswith("_") or not callable(step) or hasattr(SiloBase, name):
            continue
        try:
            step_types(step)
        except (TypeError, NameError):
            continue
        found[name] = step
    return found


def kinds_of(step: Callable[..., Any]) -> set[str]:
    """The kinds of content that a step's reply carries."""
    return {rule.kind.value for rule in field_rules(step_types(step)[1]).values()}


def hash_of_names(names: tuple[str, ...] | None) -> str:
    """A hash of the features' names, so that silos can compare without telling; "" for none."""
    return "" if names is None else hashlib.sha256(json.dumps(names).encode()).hexdigest()


def sentence_without_data(error: BaseException) -> str:
    """What the server may know of an error at a silo; its text may quote data and stays there."""
    if isinstance(error, RefusedError):
        return str(error)  # made of the policy's words, names of methods and sizes
    if isinstance(error, StorageError):
        return "its disk is full or its state folder cannot be written"
    if isinstance(error, DataError):
        return "its graph cannot be used"
    if isinstance(error, WireError):
        return "what it was sent, or was about to send, is no message of this step"
    if isinstance(error, FedmendError):
        return str(error) if type(error) is FederationError else "see its log"
    return "see its log"
