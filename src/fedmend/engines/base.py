"""What every engine shares: messages become bytes and are counted, rounds are saved and resumed.

An engine adds how bytes reach a silo and come back (`_exchange`), and how silos keep their state.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import torch

from fedmend.engines import checkpoint, wire
from fedmend.errors import SettingsError, WireError
from fedmend.evaluation.evaluate import Scores
from fedmend.federation import (
    Federation,
    Replies,
    Schema,
    SiloBase,
    SiloLost,
    step_types,
    wire_name,
)
from fedmend.privacy.ledger import Ledger
from fedmend.training.streams import stream

S = TypeVar("S", bound=SiloBase)
M = TypeVar("M")
R = TypeVar("R")


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; the run was saved after its last complete round."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a run stands: what a progress display shows.

    noted: the newest figures by the round they belong to; `metrics` has them without it.
    """

    phase: str
    round: int
    rounds: int
    metrics: Mapping[str, float]
    bytes_up: int
    bytes_down: int
    seconds: float
    noted: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def validation(self) -> float | None:
        """The newest figure of validation nodes, by whatever metric chooses the round."""
        found = (each for name, each in self.metrics.items() if name.startswith("validation_"))
        return next(found, None)


@dataclass
class Watch:
    """What an engine tells while it runs, and what may be asked of it."""

    on_round: Callable[[Moment], None] | None = None
    on_sentence: Callable[[str], None] | None = None
    stop_requested: bool = False


@dataclass
class Timings:
    """Seconds per phase, and per step within it."""

    phases: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)

    def add(self, to: dict[str, float], name: str, since: float) -> None:
        to[name] = to.get(name, 0.0) + time.perf_counter() - since


@dataclass(frozen=True)
class Final:
    """What is known of the silos when a run has ended.

    own: silos with a model of their own; privacy_facts: what the method's privacy account is made
    of, of every silo that answered; ledger: what left them; inside: bytes between a silo and its
    devices, where the two are told apart.
    """

    scores: Scores | None
    own: list[str]
    privacy_facts: Mapping[str, Mapping[str, float]]
    ledger: Ledger
    inside: Mapping[str, Mapping[str, int]] | None = None


class Keeping(TypedDict, total=False):
    """What every engine takes besides its own.

    watch: progress; checkpoint_file, checkpoint_every: where a run is saved, and after how many
    rounds; fingerprint: what the run is; resume: go on from the checkpoint, if there is one.
    """

    watch: Watch | None
    checkpoint_file: Path | None
    checkpoint_every: int
    fingerprint: str
    resume: bool


class EngineBase(Federation[S]):
    """Counting, rounds, checkpoints and progress; engines add the transport."""

    def __init__(
        self,
        names: Iterable[str],
        schema: Schema,
        seed: int,
        *,
        watch: Watch | None = None,
        checkpoint_file: Path | None = None,
        checkpoint_every: int = 10,
        fingerprint: str = "",
        resume: bool = False,
    ) -> None:
        self._names = tuple(sorted(names))
        self._schema = schema
        self._seed = seed
        self.watch = watch or Watch()
        self._file = checkpoint_file
        self._every = checkpoint_every
        self._fingerprint = fingerprint
        self.ledger = Ledger()
        self.history: dict[str, dict[int, dict[str, float]]] = {}
        self.sentences: list[str] = []
        self.remembered: dict[str, torch.Tensor] = {}
        self.timings = Timings()
        self._phase, self._round, self._of = "set-up", 0, 0
        self._finished: list[str] = []
        self._enough = False
        self._started = time.perf_counter()
        self._saved: checkpoint.Checkpoint | None = None
        if resume and checkpoint_file is not None and checkpoint_file.exists():
            self._saved = checkpoint.read(checkpoint_file, fingerprint)

    # What methods see

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def schema(self) -> Schema:
        return self._schema

    def stream(self, purpose: str) -> torch.Generator:
        return stream(self._seed, "server", purpose)

    def ask(
        self, step: Callable[[S, M], R], message: M, to: Iterable[str] | None = None
    ) -> Replies[R]:
        encoded = wire.encode(message)
        targets = self._names if to is None else tuple(to)
        return self._ask(step, dict.fromkeys(targets, encoded))

    def ask_each(self, step: Callable[[S, M], R], messages: Mapping[str, M]) -> Replies[R]:
        return self._ask(step, {name: wire.encode(each) for name, each in messages.items()})

    def rounds(self, count: int, state: Any, phase: str = "training") -> Iterator[int]:
        count = self._last_round(phase, count)
        first = self._first_round(phase, count, state)
        if self.watch.stop_requested and self._finished and self._saved is None and first <= count:
            raise Interrupted  # saved after the last round of the phase before
        started = time.perf_counter()
        for number in range(first, count + 1):
            self._phase, self._round, self._of = phase, number, count
            self._enough = False
            yield number
            self.timings.add(self.timings.phases, phase, started)
            started = time.perf_counter()
            if self._enough:
                self._finished.append(phase)  # saved with the round: resuming must not go on
                self._after_round(number, number, state)
                count = number
                break
            self._after_round(number, count, state)
        if phase not in self._finished:
            self._finished.append(phase)
        # What follows the last round (a final validation, say) is counted apart from it; a silo
        # that was lost for good by then is still lost, so the round stays.
        self._phase, self._round = f"after {phase}", count

    def finish(self) -> None:
        self._enough = True

    def note(self, round: int, **metrics: float) -> None:
        rounds = self.history.setdefault(self._phase.removeprefix("after "), {})
        rounds.setdefault(round, {}).update(metrics)

    def say(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)
            if self.watch.on_sentence:
                self.watch.on_sentence(sentence)

    def remember(self, known: Mapping[str, torch.Tensor]) -> None:
        self.remembered = {key: value.detach() for key, value in known.items()}

    # Transport

    @abstractmethod
    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        """Carry bytes to each silo's step and bring the replies' bytes back."""

    def _gone(self) -> Mapping[str, SiloLost]:
        """Silos that are known to be lost, so that nothing is sent to them."""
        return {}

    def _ask(self, step: Callable[[S, M], R], requests: Mapping[str, wire.Encoded]) -> Replies[R]:
        started = time.perf_counter()
        _, reply_type = step_types(step)
        gone = {name: lost for name, lost in self._gone().items() if name in requests}
        present = {name: each for name, each in requests.items() if name not in gone}
        for name, request in present.items():
            self._count(name, "down", request)
        data = {name: request.data for name, request in present.items()}
        answers = self._exchange(step.__name__, data)
        replies: dict[str, R | SiloLost] = dict(gone)
        for name in sorted(answers):
            answer = answers[name]
            if isinstance(answer, SiloLost):
                replies[name] = answer
                self.say(f"{name} was lost {self._when()}: {answer.why}")
                continue
            try:
                reply = replies[name] = wire.decode(answer, allowed=(reply_type,))
            except WireError as error:
                raise WireError(f"{name} sent something else than a reply: {error}") from error
            sizes = wire.sizes_by_kind(reply, len(answer))
            self._count(name, "up", wire.Encoded(answer, wire_name(reply_type), sizes))
        self.timings.add(self.timings.steps, step.__name__, started)
        return Replies(replies)

    def _when(self) -> str:
        """Where the run stands, in words."""
        if self._phase.startswith("after "):
            return self._phase
        if not self._round:
            return f"in {self._phase}"
        return f"in round {self._round} of {self._phase}"

    def _count(self, silo: str, direction: Any, message: wire.Encoded) -> None:
        where = (self._phase, self._round, silo, direction, message.name)
        self.ledger.count(*where, message.sizes)

    # Rounds, saving and resuming

    @abstractmethod
    def _silo_states(self) -> dict[str, dict[str, torch.Tensor]]:
        """Each silo's state, to be kept in a checkpoint."""

    @abstractmethod
    def _restore_silos(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Give each silo its state back."""

    def _last_round(self, phase: str, count: int) -> int:
        """The round a phase ends with: `count`, unless it had ended earlier when it was saved."""
        saved = self._saved
        if saved is None or phase != saved.phase or phase not in saved.finished:
            return count
        return min(count, saved.round)

    def _first_round(self, phase: str, count: int, state: Any) -> int:
        saved = self._saved
        if saved is None or self._file is None:
            return 1
        if phase != saved.phase:
            return count + 1 if phase in saved.finished else 1
        if saved.round > count:
            raise SettingsError(
                f"the checkpoint stands after round {saved.round} of {phase}, beyond the "
                f"{count} rounds asked for; resume with at least rounds={saved.round}"
            )
        with checkpoint.damaged(self._file):
            saved.fill(state)
            self._restore_silos(saved.silos)
            self.ledger = Ledger.from_csv(saved.ledger)
        self.history = saved.history
        self.sentences = list(saved.sentences)
        self._finished = list(saved.finished)
        self._saved = None
        return count + 1 if phase in saved.finished else saved.round + 1

    def _after_round(self, number: int, count: int, state: Any) -> None:
        self._tell(number, count)
        stopping = self.watch.stop_requested and number < count
        if self._file is not None and (number % self._every == 0 or number == count or stopping):
            checkpoint.write(
                self._file,
                checkpoint.Checkpoint(
                    fingerprint=self._fingerprint,
                    phase=self._phase,
                    round=number,
                    finished=tuple(self._finished),
                    server=checkpoint.packed(state),
                    silos=self._silo_states(),
                    ledger=self.ledger.to_csv(),
                    history=self.history,
                    sentences=tuple(self.sentences),
                ),
            )
        if stopping:
            raise Interrupted

    def _tell(self, number: int, count: int) -> None:
        if self.watch.on_round:
            known: dict[str, float] = {}  # the newest of each figure: some come a round later
            noted = {n: dict(m) for n, m in sorted(self.history.get(self._phase, {}).items())[-2:]}
            for metrics in noted.values():
                known.update(metrics)
            up, down = self.ledger.total("up"), self.ledger.total("down")
            seconds = time.perf_counter() - self._started
            self.watch.on_round(Moment(self._phase, number, count, known, up, down, seconds, noted))
