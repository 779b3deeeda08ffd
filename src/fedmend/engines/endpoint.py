"""A silo's endpoint: its side of a deployed run, and the messages that are the deployment's own.

The engine (`engines.flare`) asks an endpoint for steps over a line; the endpoint performs them on
bytes, and lets out what the silo's policy allows. Beside the method's steps it has a few of its
own: the handshake, saving the silo's state at the silo, the final test. They travel the same way
and stand in the ledger under phases of their own (`PlatformPhase`). A method may call a phase the
same: who is asked is said by the step's name (`ENDPOINT`), never by the phase's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from fedmend import __version__
from fedmend.config import make
from fedmend.data.border import Border, edge_digests
from fedmend.data.partition import silo_statistics
from fedmend.engines import checkpoint, wire
from fedmend.engines.computing import computing_with
from fedmend.engines.printable import printable
from fedmend.errors import (
    DataError,
    FederationError,
    FedmendError,
    RefusedError,
    SettingsError,
    StorageError,
    WireError,
)
from fedmend.evaluation.evaluate import Scores, scores
from fedmend.evaluation.evaluate import tested as statistics_of
from fedmend.federation import (
    Nothing,
    SiloBase,
    field_rules,
    message,
    step_types,
    wire_name,
)
from fedmend.graph import Graph, feature_arrays, hash_of_names
from fedmend.methods import Method, find
from fedmend.models.predictor import Predictor
from fedmend.privacy.account import no_account
from fedmend.privacy.ledger import Entry, Kind, Ledger
from fedmend.privacy.noise import NoiseSource, SecretNoise
from fedmend.privacy.policy import Policy
from fedmend.runs import node_memory
from fedmend.runs import record as records
from fedmend.runs.record import Data, Engine, Record, Split

PlatformPhase = Literal["handshake", "checkpoints", "evaluation"]
"""Phases of the ledger that the in-process engine does not have; they have no rounds."""

_LONGEST_PHASE, _LONGEST_SENTENCE = 80, 1000
"""Characters; phases, and some of what an endpoint tells, are the server's words."""

_log = logging.getLogger("fedmend")

# What travels besides the method's own messages


@message("endpoint.Plan")
class Plan:
    """What is going to be run: all a silo needs to decide whether it takes part.

    settings: as JSON; silos: the names of all that take part, as JSON.
    """

    run: Annotated[str, Kind.CONTROL]
    method: Annotated[str, Kind.CONTROL]
    settings: Annotated[str, Kind.CONTROL]
    seed: Annotated[int, Kind.CONTROL]
    threads: Annotated[int, Kind.CONTROL]
    resumed: Annotated[bool, Kind.CONTROL]
    silos: Annotated[str, Kind.CONTROL]


@message("endpoint.Introduction")
class Introduction:
    """A silo's side of the handshake: its schema and versions, and nothing about its nodes.

    borders: where the method needs edges between silos, a hash of those to each other silo, as
    JSON: two silos list the same edges, or nothing runs. Empty for all other methods.
    """

    features: Annotated[int, Kind.CONTROL]
    feature_names: Annotated[str, Kind.CONTROL]
    label_names: Annotated[str, Kind.CONTROL]
    fedmend: Annotated[str, Kind.CONTROL]
    torch: Annotated[str, Kind.CONTROL]
    borders: Annotated[str, Kind.CONTROL]


@message("endpoint.Place")
class Place:
    """Where a run stands."""

    phase: Annotated[str, Kind.CONTROL]
    round: Annotated[int, Kind.CONTROL]


@message("endpoint.FinalModel")
class FinalModel:
    """The shared model a run ended with; empty where every silo has its own."""

    weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    shared: Annotated[bool, Kind.CONTROL]


@message("endpoint.FinalFigures")
class FinalFigures:
    """How the final model does on a silo's own test nodes.

    statistics: of its test nodes, by metric (`evaluation.metrics`); they add up over silos.
    privacy_facts: what the method's privacy account has to know of this silo.
    """

    statistics: Annotated[dict[str, Tensor], Kind.METRICS]
    test_nodes: Annotated[int, Kind.COUNTS]
    own_model: Annotated[bool, Kind.CONTROL]
    privacy_facts: Annotated[dict[str, float], Kind.COUNTS]


class SiloEndpoint:
    """A silo in a deployed run: performs steps on bytes, and lets out what its policy allows.

    Args:
        name: the silo's name.
        graph: gives its graph; asked when a run starts, so that bad data is this silo's error.
        border: gives its edges to the silos of these names, None if it has no table of them; asked
            only for methods that need them.
        policy: what it agrees to.
        folder: gives the folder where it keeps what belongs to a run, by the run's name.
        tell: a status line for whoever looks after the silo.
    """

    def __init__(
        self,
        name: str,
        graph: Callable[[], Graph],
        border: Callable[[tuple[str, ...]], Border | None],
        policy: Policy,
        folder: Callable[[str], Path],
        tell: Callable[[str], None],
    ) -> None:
        self.name = name
        self.ledger = Ledger()
        self._graph_of, self._border_of = graph, border
        self._policy, self._folder_of = policy, folder
        self._status_line = tell
        # One thread: steps of a silo never run side by side, and a late one comes first.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="silo")
        self._work: dict[int, Future[bytes]] = {}
        self._plan: Plan | None = None
        self._method: Method | None = None
        self._config: Any = None
        self._graph: Graph | None = None
        self._border: Border | None = None
        self._silo: SiloBase | None = None
        self._last_said, self._last_phase = 0.0, ""
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}  # by phase, of its own steps

    # Called by the line

    def perform(
        self, ticket: int, where: str, step: str, request: bytes, patience: float
    ) -> dict[str, Any]:
        """Perform a step unless its ticket is known; the reply, or that it is not ready yet."""
        if ticket == 0:
            return {"state": "idle"}
        if step and ticket not in self._work:
            self._drop_before(ticket)
            self._work[ticket] = self._pool.submit(self._run, where, step, request)
        work = self._work.get(ticket)
        if work is None:
            return {"state": "failed", "error": "FederationError", "sentence": "unknown ticket"}
        futures.wait([work], timeout=max(0.0, min(patience, 60.0)))
        if not work.done():
            return {"state": "busy"}
        try:
            reply = work.result()
        except BaseException as error:  # noqa: BLE001  # whatever it is, its text stays here
            return {
                "state": "failed",
                "error": type(error).__name__,
                "sentence": sentence_without_data(error),
            }
        # The answer may get lost on the way and be asked for again; older ones will not.
        for old in [each for each in list(self._work) if each < ticket]:
            self._work.pop(old, None)
        return {"state": "done", "reply": reply}

    def _drop_before(self, ticket: int) -> None:
        """Forget what waits for its turn and is not asked for any more; what runs goes on."""
        for old, work in list(self._work.items()):
            if old < ticket and work.cancel():
                self._work.pop(old, None)

    def close(self) -> None:
        """End the endpoint; a step that is running is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, where: str, step: str, request: bytes) -> bytes:
        try:
            phase, _, number = where.rpartition("/")
            phase = printable(phase, _LONGEST_PHASE)
            round_number = int(number) if number.isdecimal() else 0
            self._policy.check_size(len(request), f"a request for {step}")
            perform = self._step(step)
            expected, promised = step_types(perform.__func__)  # type: ignore[attr-defined]  # bound
            given = wire.decode(request, allowed=(expected,), limit=self._policy.largest_message)
            self._count(phase, round_number, "down", given, len(request))
            if not step.startswith(ENDPOINT):
                self._say_where(phase, round_number)
            started = time.perf_counter()
            with computing_with(self._plan.threads if self._plan else 1):
                found = perform(given)
            took = time.perf_counter() - started
            self._seconds[phase] = self._seconds.get(phase, 0.0) + took
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
            _log.exception("step %.80r failed", step)
            raise

    def _step(self, step: str) -> Callable[[Any], Any]:
        """The step of this name: one of the endpoint's own, or one the method's silo declares."""
        if step.startswith(ENDPOINT) and step.removeprefix(ENDPOINT) in _STEPS:
            own: Callable[[Any], Any] = getattr(self, step.removeprefix(ENDPOINT))
            return own
        if self._silo is None or step not in steps_of(type(self._silo)):
            raise WireError(f"there is no step {step!r}")
        found: Callable[[Any], Any] = getattr(self._silo, step)
        return found

    def _count(self, phase: str, number: int, direction: Any, given: Any, size: int) -> None:
        sizes = wire.sizes_by_kind(given, size)
        self.ledger.count(phase, number, self.name, direction, wire_name(type(given)), sizes)

    def _say_where(self, phase: str, number: int) -> None:
        begins = number == 1 and phase != self._last_phase
        if begins or time.monotonic() - self._last_said > 10:
            self._last_said, self._last_phase = time.monotonic(), phase
            self._tell(f"{phase}, round {number}; {self.ledger.total('up')} bytes have left so far")

    def _tell(self, sentence: str) -> None:
        self._status_line(printable(sentence, _LONGEST_SENTENCE))

    # The endpoint's own steps

    def introduce(self, plan: Plan) -> Introduction:
        """Take part or refuse, before anything but a schema is said."""
        self._policy.check_method(plan.method)  # before anything of it is loaded
        method = self._installed(plan.method)
        if method.not_deployable is not None:
            raise RefusedError(f"{method.name} cannot be deployed: {method.not_deployable}")
        for name, step in steps_of(method.silo_type).items():
            self._policy.check_kinds(kinds_of(step), f"which {method.name} sends in {name}")
        self._policy.check_kinds(kinds_of(SiloEndpoint.score), "which the final test sends")
        self._config = make(method.settings_type, json.loads(plan.settings))
        self._plan, self._method = plan, method
        graph = self._graph = self._graph_of()
        border = self._border = self._known_border(method, plan) if method.needs_border else None
        going = "goes on with" if plan.resumed else "takes part in"
        self._tell(f"{going} {method.name} (run {plan.run}, seed {plan.seed})")
        return Introduction(
            features=graph.num_features,
            feature_names=hash_of_names(graph.feature_names),
            label_names=json.dumps(list(graph.label_names)),
            fedmend=__version__,
            torch=str(torch.__version__),
            borders=json.dumps(edge_digests(border, self.name, plan.run)) if border else "",
        )

    def _installed(self, name: str) -> Method:
        """A method that this silo has: what a plan names is never loaded from the plan."""
        try:
            return find(name)
        except SettingsError as error:
            self._tell(str(error))  # what else is installed here stays here
            raise RefusedError(
                f"it has no method {printable(name, 80)!r}: install it at the silo, or start the "
                "silo with --plugin FILE"
            ) from error

    def _known_border(self, method: Method, plan: Plan) -> Border:
        """This silo's edges to the others of the run; why not, without data, if there are none."""
        names = json.loads(plan.silos)
        try:
            border = self._border_of(tuple(names))
        except DataError as error:
            self._tell(str(error))  # which row it is stays here
            raise FederationError(
                "its table border names a node that it does not have or a silo that takes no part "
                "(its own log says which row): correct the table, or have all its silos take part"
            ) from error
        if border is None:
            raise FederationError(
                f"{method.name} needs its edges to other silos: give the folder of its graph a "
                "table border (src, remote_silo, remote_id), if only with no rows"
            )
        return border

    def prepare(self, _: Nothing) -> Nothing:
        """Build the method's silo: after the handshake, before the first step."""
        plan, method = self._known()
        extra = {} if self._border is None else {"border": self._border}
        self._silo = method.silo_type(
            self.name, self._data(), self._config, plan.seed, noise=self._noise(), **extra
        )
        return Nothing()

    def _noise(self) -> NoiseSource:
        """All parties know the seed of the run; what hides something nobody else may draw."""
        return SecretNoise()

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
        plan, method = self._known()
        graph = self._data()
        predictor = self._built().predictor(final.weights if final.shared else None)
        if predictor is None:
            raise FederationError("there is no model to test")
        mode = method.deployed_evaluation
        given = predictor.heard if mode == "cross-edges" else predictor.on(mode).predict(graph)
        tested = 0 if given is None else int(graph.test_mask.sum())
        found = statistics_of(given, graph) if given is not None and tested else {}
        facts = self._built().privacy_facts()
        record = self._record(predictor, scores(mode, {self.name: found}) if found else None, facts)
        folder = self._folder_of(plan.run)
        weights = dict(predictor.weights)
        shared, own = (weights, {}) if predictor.shared else (None, {self.name: weights})
        memory = node_memory.of({self.name: predictor}, {}, mode)
        records.write_run(folder, record, shared, own, memory, self.ledger)
        self._tell(f"finished; its model and ledger are in {folder}")
        return FinalFigures(
            statistics=found,
            test_nodes=tested,
            own_model=not final.shared,
            privacy_facts=facts,
        )

    def _record(
        self,
        predictor: Predictor,
        result: Scores | None,
        facts: Mapping[str, float],
    ) -> Record:
        """This silo's side of the run: of the others it knows the names."""
        plan, method = self._known()
        graph, mode = self._data(), method.deployed_evaluation
        try:
            accounts = method.privacy(self._config, {self.name: facts})
        except SettingsError as error:  # the package that computes it is not there
            accounts = [no_account(str(error))]
        silos = tuple(json.loads(plan.silos))
        return Record(
            method=method.name,
            settings=dataclasses.asdict(self._config),
            seed=plan.seed,
            evaluation=mode,
            split=Split(how="deployed", seed=None, hash=None),
            content_hash=None,
            dataset=None,
            data=Data(
                silos=len(silos),
                missing_share=None,
                per_silo=(silo_statistics(self.name, graph),),
            ),
            pooled=False,
            result=result,
            bytes=records.sent(self.ledger),
            measured=records.measured_now(
                seconds=time.perf_counter() - self._started, phases=self._seconds
            ),
            versions=records.versions(),
            engine=Engine(
                name="flare", threads=plan.threads, run=plan.run, silos=silos, silo=self.name
            ),
            model=predictor.shape,
            label_names=graph.label_names,
            feature_names_hash=hash_of_names(graph.feature_names),
            shared_model=predictor.shared,
            silos_with_own_model=() if predictor.shared else (self.name,),
            privacy=tuple(accounts),
        )

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
        for values in feature_arrays(graph.x):
            digest.update(values.data)
        masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        for part in (graph.rowptr, graph.col, graph.y, *masks):
            digest.update(part.contiguous().numpy().data)
        if self._border is not None:
            digest.update(json.dumps(edge_digests(self._border, self.name, plan.run)).encode())
        return digest.hexdigest()


ENDPOINT = "endpoint."
"""Before the names of an endpoint's own steps: a method's silo may have steps of the same names."""

_STEPS = ("introduce", "prepare", "keep", "take_back", "score")


def of_the_platform(entry: Entry) -> bool:
    """Whether a row of a ledger is the deployment's own; a method's phases begin with round 1."""
    return entry.round == 0 and entry.phase in get_args(PlatformPhase)


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
