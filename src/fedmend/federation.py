"""The one interface between methods and engines: `ask` a step of the silos, get their replies.

A method is a server function over a `Federation` and a class of silos. It never sees an engine:
whether silos are objects in this process or programs in other organisations, the same code runs.

Messages are frozen dataclasses made with `@message`; each field says by its annotation which
*kind* of content it carries, so that the ledger can tell what left a silo:

    @message("federation.Update")
    class Update:
        weights: Annotated[dict[str, Tensor], Kind.WEIGHTS]
        training_nodes: Annotated[int, Kind.COUNTS]
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    TypedDict,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from fedmend.errors import TooFewSilosError
from fedmend.models.predictor import Predictor, predictor
from fedmend.privacy.ledger import Kind, Ledger
from fedmend.privacy.noise import NO_NOISE, NoiseSource
from fedmend.training.state import Composed

if TYPE_CHECKING:
    import torch

    from fedmend.graph import Graph

TENSORS, NUMBERS = dict[str, Tensor], dict[str, float]
FIELD_TYPES = (Tensor, TENSORS, bool, int, float, str, NUMBERS)
"""What a message's fields may hold."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What one field of a message type may hold, and which kind of content that is.

    type: the very object of `FIELD_TYPES`, so that `is` compares it.
    """

    type: Any
    kind: Kind


MESSAGES: dict[str, type[Any]] = {}
"""Every message type by its name on the wire."""

OUR_PREFIXES = frozenset(
    {
        *("endpoint", "fedavg", "feddep", "federation", "fedggr", "fedsage_plus", "head_exchange"),
        *("hifgl", "local", "oracle", "secret_message_passing"),
    }
)
"""What our messages' names begin with. Others take other prefixes: a plugin that is loaded before
one of our methods cannot have taken the method's names."""

_RULES: dict[type[Any], dict[str, FieldRule]] = {}
_NAMES: dict[type[Any], str] = {}

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def message(name: str) -> Callable[[type[T]], type[T]]:
    """Make a class a message: frozen, registered for the wire, every field of a declared kind.

    name: what it is called on the wire and in the ledger. It is written out, so that whoever moves
    a file or renames a class changes neither bytes nor ledgers. A prefix and a dot come first: in
    code from outside one that is none of `OUR_PREFIXES`.
    """

    def made_message(cls: type[T]) -> type[T]:
        return _message(name, cls)

    return made_message


def _message(name: str, cls: type[T]) -> type[T]:
    prefix, dot, _ = name.partition(".")
    if not dot or (prefix in OUR_PREFIXES and cls.__module__.partition(".")[0] != "fedmend"):
        raise TypeError(
            f"a message cannot be called {name!r}: give it a prefix of your own, as in "
            f"my_package.{name.rpartition('.')[2]}"
        )
    made = dataclass(frozen=True, slots=True)(cls)
    hints = get_type_hints(made, include_extras=True)
    rules = {}
    for field in dataclasses.fields(made):  # type: ignore[arg-type]  # made is a dataclass
        hint = hints[field.name]
        kinds = [extra for extra in get_args(hint)[1:] if isinstance(extra, Kind)]
        if get_origin(hint) is not Annotated or len(kinds) != 1:
            raise TypeError(
                f"{cls.__name__}.{field.name} must say what it carries: Annotated[type, Kind.X]"
            )
        held = get_args(hint)[0]
        if held not in FIELD_TYPES:
            raise TypeError(f"{cls.__name__}.{field.name}: a message cannot carry {held}")
        rules[field.name] = FieldRule(FIELD_TYPES[FIELD_TYPES.index(held)], kinds[0])
    if name in MESSAGES:
        raise TypeError(f"there is a message {name} already: rename one")
    _RULES[made], _NAMES[made], MESSAGES[name] = rules, name, made
    return made


def content_sizes(sent: Any) -> dict[Kind, int]:
    """The bytes of a message's content by kind, without the wire's framing."""
    sizes: dict[Kind, int] = {}
    for name, rule in field_rules(type(sent)).items():
        value = getattr(sent, name)
        if isinstance(value, Tensor):
            size = value.nbytes
        elif isinstance(value, dict) and all(isinstance(each, Tensor) for each in value.values()):
            size = sum(each.nbytes for each in value.values())
        elif rule.type in (bool, int, float):
            size = len(str(_as_sent(value, rule)))  # as long as in JSON
        else:
            size = len(json.dumps(_as_sent(value, rule)))
        sizes[rule.kind] = sizes.get(rule.kind, 0) + size
    return sizes


def _as_sent(value: Any, rule: FieldRule) -> Any:
    """A plain value as the other side reads it: a whole number in a float's place is a float."""
    if rule.type is float:
        return float(value)
    if rule.type is NUMBERS:
        return {key: float(each) for key, each in value.items()}
    return value


def wire_name(message_type: type[Any]) -> str:
    """The name of a message type on the wire and in the ledger; "" for anything else."""
    return _NAMES.get(message_type, "")


def field_rules(message_type: type[Any]) -> Mapping[str, FieldRule]:
    """The declared fields of a message type; empty for anything that is no message."""
    return _RULES.get(message_type, {})


@message("federation.Nothing")
class Nothing:
    """A message without content: the step itself says it all."""


@cache
def step_types(step: Callable[..., Any]) -> tuple[type[Any], type[Any]]:
    """The message a step takes and the one it gives, by its annotations."""
    hints = get_type_hints(step)
    reply = hints.pop("return", None)
    if len(hints) != 1 or reply not in _RULES or next(iter(hints.values())) not in _RULES:
        raise TypeError(f"{step.__qualname__} is no step: it must take a message and give one")
    return next(iter(hints.values())), reply


@dataclass(frozen=True, slots=True)
class SiloLost:
    """In place of a reply: this silo did not answer. `why` is a sentence without data."""

    silo: str
    why: str


R = TypeVar("R")


class Replies(Generic[R]):
    """What the silos answered, in the order of their names: a reply each, or a `SiloLost`."""

    def __init__(self, replies: Mapping[str, R | SiloLost]) -> None:
        self._replies = dict(sorted(replies.items()))

    @property
    def arrived(self) -> dict[str, R]:
        return {
            name: reply for name, reply in self._replies.items() if not isinstance(reply, SiloLost)
        }

    @property
    def lost(self) -> list[SiloLost]:
        return [reply for reply in self._replies.values() if isinstance(reply, SiloLost)]

    def enough(self, min_silos: int) -> dict[str, R]:
        """The replies that arrived; an error that names the lost ones if they are too few."""
        arrived = self.arrived
        if len(arrived) < min_silos:
            reasons = "; ".join(f"{lost.silo}: {lost.why}" for lost in self.lost)
            raise TooFewSilosError(
                f"{len(arrived)} of {len(self._replies)} silos answered, "
                f"min_silos={min_silos} ({reasons})"
            )
        return arrived


@dataclass(frozen=True, slots=True)
class Schema:
    """What all silos have agreed on before training; no data of any of them.

    feature_names_hash: of the names of the features and their order, "" where they have none.
    """

    num_features: int
    label_names: tuple[str, ...]
    feature_names_hash: str = ""

    @property
    def num_classes(self) -> int:
        return len(self.label_names)


class Handed(TypedDict, total=False):
    """What whoever builds a silo hands over, beside its data and the settings.

    noise: what hides something is drawn from it alone, never from the seed.
    """

    noise: NoiseSource


class SiloBase(Composed):
    """One silo of a method: its graph and its models, held for the whole run.

    A step is a method that takes one message and gives one. What must survive a restart is named
    in `parts`.
    """

    def __init__(
        self, name: str, graph: Graph, settings: Any, seed: int, *, noise: NoiseSource = NO_NOISE
    ) -> None:
        self.name = name
        self.graph = graph
        self.settings = settings
        self.seed = seed
        self.noise = noise

    def own_weights(self) -> dict[str, Tensor] | None:
        """This silo's own model where the method has one per silo; it never leaves by itself."""
        return None

    def predictor(self, shared: Mapping[str, Tensor] | None) -> Predictor | None:
        """What this silo predicts with: by the shared model or, where there is none, its own.

        None if it has no model, since it was lost before it had one. Methods that predict with more
        than a model add it here.
        """
        graph = self.graph
        shape = self.settings.shape(Schema(graph.num_features, graph.label_names))
        return predictor(shape, graph.node_ids, shared, self.own_weights())

    def generated_neighbours(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """For measuring how good they are: generated rows, their nodes, and all nodes' own rows."""
        return None

    def privacy_facts(self) -> dict[str, float]:
        """Counts of which the method's privacy accounts are made (`Method.privacy`)."""
        return {}

    def inside(self) -> Ledger | None:
        """What crossed between this silo and its devices, where the two are told apart."""
        return None


S = TypeVar("S", bound=SiloBase)
M = TypeVar("M")


class Federation(ABC, Generic[S]):
    """The silos as a method's server sees them."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """All silos, sorted."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """What the silos agreed on."""

    @abstractmethod
    def ask(
        self, step: Callable[[S, M], R], message: M, to: Iterable[str] | None = None
    ) -> Replies[R]:
        """Have silos (all, or those named) perform a step on the same message."""

    @abstractmethod
    def ask_each(self, step: Callable[[S, M], R], messages: Mapping[str, M]) -> Replies[R]:
        """Have each named silo perform a step on its own message."""

    @abstractmethod
    def rounds(self, count: int, state: Any, phase: str = "training") -> Iterator[int]:
        """Count a phase's rounds from 1; `state`, a dataclass, is all the server remembers.

        Between rounds engines may save `state` and the silos. On resuming, phases that were
        finished yield nothing, and the interrupted one goes on after its last saved round with
        `state` filled in: a method of several phases therefore has one `state` for all of them,
        and asks its silos inside of rounds only (a phase of one step is a loop of one round).
        """

    @abstractmethod
    def finish(self) -> None:
        """Let the current round be the last one of its phase: training has seen enough."""

    @abstractmethod
    def note(self, round: int, **metrics: float) -> None:
        """Remember figures of a round for the record and the progress display."""

    @abstractmethod
    def say(self, sentence: str) -> None:
        """Tell the user something that matters (a lost silo, a shrunken setting), once."""

    @abstractmethod
    def remember(self, known: Mapping[str, Tensor]) -> None:
        """What the server needs again to predict nodes that come later; saved with the run."""

    @abstractmethod
    def stream(self, purpose: str) -> torch.Generator:
        """The server's seeded random stream for this purpose."""
