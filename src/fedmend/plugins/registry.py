"""What names stand for: methods, backbones, partitioners, datasets, metrics, ours and others'.

A `Registry` holds what fedmend has of one kind, and takes more in three ways: from a program that
calls `fedmend.register`, from the entry points of installed packages (`fedmend.methods`, ...), and
from files that the user names (`--plugin FILE`, or the variable FEDMEND_PLUGINS).

Whoever starts a process decides what code it loads, by installing a package there or by naming a
file. Messages, plans and runs' folders bring names alone, and a name not known here is refused.

Entry points are read only where a name is not known, or a list is asked for. A broken one costs its
own name and no other: a sentence says which plugin it is and what to do.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fedmend.errors import FedmendError, SettingsError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

E = TypeVar("E")

FILES = "FEDMEND_PLUGINS"
"""In the environment: files to load, as in PATH; it reaches the processes that this one starts."""

KINDS = {
    "method": "fedmend.methods:METHODS",
    "backbone": "fedmend.models.backbones:BACKBONES",
    "partitioner": "fedmend.data.partitioners:PARTITIONERS",
    "dataset": "fedmend.data.datasets:DATASETS",
    "metric": "fedmend.evaluation.metrics:METRICS",
}
"""Where the registry of each kind stands; its group of entry points is `fedmend.KINDs`."""

_NAME = re.compile(r"[a-z][a-z0-9_+-]{0,62}")
# Loading runs other people's code, which may register in turn.
_LOADING = threading.RLock()


@dataclass(frozen=True)
class Plugin:
    """Where an entry comes from: a package and its version, or a file and a hash of its content."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


PROGRAM = Plugin("a program", "")
"""What `register` was called by, where that was no plugin."""

_modules: dict[str, Plugin] = {}  # top-level modules of the plugins that were loaded
_files: dict[Path, FedmendError | None] = {}  # loaded, and what was wrong with each
_current = [PROGRAM]  # whose code is being loaded, the last one


class Registry(Mapping[str, E], Generic[E]):
    """Entries of one kind by name. Reading the names of all loads nothing; reading one may.

    Args:
        kind: one of `KINDS`.
        built_in: what fedmend has.
        accept: makes an entry of what somebody gave under a name; an error says what is allowed.
    """

    def __init__(
        self, kind: str, built_in: Mapping[str, E], accept: Callable[[str, Any], E]
    ) -> None:
        self.kind = kind
        self.built_in = tuple(built_in)
        self._accept = accept
        self._entries = dict(built_in)
        self._plugins: dict[str, Plugin] = {}
        self._offers: dict[str, list[EntryPoint]] | None = None
        self._refused: dict[str, SettingsError] = {}

    def find(self, name: str) -> E:
        """The entry of this name; an error with the nearest one if there is none."""
        try:
            return self[name]
        except KeyError:
            raise UnknownNameError(self.kind, name, self) from None

    def __getitem__(self, name: str) -> E:
        if name not in self._entries and name in self:
            with _LOADING:
                self._load(name)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name in self._entries:
            return True
        # No other text can be a name: no need to look at what is installed.
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return False
        return name in self._outside() or name in self._entries  # files may have added it

    def __iter__(self) -> Iterator[str]:
        outside = self._outside()  # may add entries
        yield from (*self._entries, *sorted(set(outside) - set(self._entries)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, name: str, given: Any, plugin: Plugin) -> None:
        """Take an entry from outside."""
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"a {self.kind} cannot be called {name!r}: a name has at most 63 small letters, "
                "digits, - _ and +, a letter first"
            )
        with _LOADING:
            if name in self._entries:
                owner = self._plugins.get(name, "fedmend itself")
                raise SettingsError(
                    f"there is a {self.kind} {name!r} already, of {owner}: choose another name "
                    f"for that of {plugin}"
                )
            self._entries[name] = self._accept(name, given)
            self._plugins[name] = plugin

    def in_use(self) -> dict[str, E]:
        """Our own, and those from outside that were asked for or registered in this process."""
        return dict(self._entries)

    def plugin_of(self, name: str) -> Plugin | None:
        """Where the entry of this name comes from; None if it is our own."""
        return self._plugins.get(name)

    def running(self, name: str) -> AbstractContextManager[None]:
        """For calling an entry's code: what goes wrong in a plugin is one line, naming it."""
        plugin = self._plugins.get(name)
        if plugin is None or plugin is PROGRAM:  # whoever writes it wants to see where
            return nullcontext()
        return _running(plugin, f"the {self.kind} {name!r} of {plugin}")

    def listed(self) -> tuple[dict[str, E], list[str]]:
        """All that can be used, and a sentence on each that cannot."""
        usable, remarks = {}, []
        for name in self:
            try:
                usable[name] = self[name]
            except SettingsError as error:
                remarks.append(str(error))
        for name, offers in self._outside().items():
            taken = self._plugins.get(name, "fedmend itself")
            remarks += [
                f"the {self.kind} {name!r} of {each} is not used: the name is that of {taken}"
                for each in map(_plugin_of, offers)
                if name in usable and each != taken
            ]
        return usable, [*remarks, *self._nameless]

    @property
    def _nameless(self) -> list[str]:
        return [str(each) for name, each in self._refused.items() if not _NAME.fullmatch(name)]

    def _outside(self) -> Mapping[str, list[EntryPoint]]:
        """What installed packages offer, by name; loads the files that the user named."""
        with _LOADING:
            load_files()
            if self._offers is None:
                from importlib.metadata import entry_points

                self._offers = {}
                for point in entry_points(group=f"fedmend.{self.kind}s"):
                    if _NAME.fullmatch(point.name):
                        self._offers.setdefault(point.name, []).append(point)
                    else:
                        self._refused[point.name] = SettingsError(
                            f"{_plugin_of(point)} cannot call a {self.kind} {point.name!r}: a name "
                            "has at most 63 small letters, digits, - _ and +, a letter first"
                        )
            return self._offers

    def _load(self, name: str) -> None:
        """Load the entry point of this name; what failed once is not tried again."""
        if name in self._entries:  # another thread was quicker
            return
        if name not in self._refused:
            offers = self._outside()[name]
            what = f"the {self.kind} {name!r} of {_plugin_of(offers[0])}"
            try:
                if len(offers) > 1:
                    owners = " and ".join(str(_plugin_of(each)) for each in offers)
                    raise SettingsError(
                        f"the {self.kind} {name!r} is offered by {owners}: uninstall one of them"
                    )
                plugin = _plugin_of(offers[0])
                top = offers[0].value.partition(":")[0].partition(".")[0]
                _modules[top] = plugin
                with _running(plugin, what):
                    given = offers[0].load()
                    if name not in self._entries:  # its module may have registered it by itself
                        self.add(name, given, plugin)
                return
            except SettingsError as error:
                self._refused[name] = error
        raise self._refused[name]


def register(kind: str, name: str, entry: Any) -> None:
    """Make a method, backbone, partitioner, dataset or metric known (see docs/extend.md).

    Args:
        kind: `method`, `backbone`, `partitioner`, `dataset` or `metric`.
        name: what it is called in settings, on the command line and in records.
        entry: a `fedmend.methods.Method`; a function from a `ModelShape` to a `torch.nn.Module`;
            a function (graph, silos, rng, **options) to silo numbers; a function (**options) to
            a `Graph`; a `fedmend.evaluation.metrics.Metric`.
    """
    registry(kind).add(name, entry, _current[-1])


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind."""
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    module, _, attribute = KINDS[kind].partition(":")
    found: Registry[Any] = getattr(import_module(module), attribute)
    return found


def first_line(function: Callable[..., Any]) -> str:
    """What a function or a class from outside says of itself, for the lists."""
    return (inspect.getdoc(function) or "from outside").partition("\n")[0].rstrip(".")


def origins(**names: str) -> dict[str, str]:
    """Of the named entries (`method="x"`, ...) those from outside, and the plugin of each."""
    found = {kind: registry(kind).plugin_of(name) for kind, name in names.items()}
    return {kind: str(plugin) for kind, plugin in found.items() if plugin is not None}


def allow(files: Iterable[Path]) -> None:
    """Load these files now, here and in every process that is started from here."""
    known = os.environ.get(FILES)
    given = [str(path.resolve()) for path in files]
    if given:
        os.environ[FILES] = os.pathsep.join([*given, *([known] if known else [])])
        load_files()


def load_files() -> None:
    """Load the files that the user named, each once."""
    for text in filter(None, os.environ.get(FILES, "").split(os.pathsep)):
        path = Path(text)
        with _LOADING:
            if path not in _files:
                _files[path] = None  # it registers while it is loaded, which leads back here
                try:
                    _load_file(path)
                except FedmendError as error:
                    _files[path] = error
        known = _files[path]
        if known is not None:
            raise known


def _load_file(path: Path) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read the plugin {path}: {error.strerror}") from error
    place = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = re.sub(r"\W", "_", f"fedmend_plugin_{place}_{path.stem}")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path} cannot be a plugin: name a file of Python code (.py)")
    module = module_from_spec(spec)
    sys.modules[name] = module  # messages look up their annotations there
    plugin = Plugin(path.name, hashlib.sha256(content).hexdigest()[:12])
    _modules[name] = plugin
    with _running(plugin, f"the plugin {path}"):
        spec.loader.exec_module(module)


@contextmanager
def _running(plugin: Plugin, what: str) -> Iterator[None]:
    """While a plugin's code runs: what it registers is its own, what goes wrong is one line."""
    _current.append(plugin)
    try:
        yield
    except FedmendError as error:
        if str(error).startswith(what):  # it has been said
            raise
        raise SettingsError(f"{what} cannot be used: {error}") from error
    # Other people's code may raise anything, and must not end a list of what there is.
    except (Exception, SystemExit) as error:
        told = _told(error, plugin)
        raise SettingsError(f"{what} fails ({told}): correct it, or do without it") from error
    finally:
        _current.pop()


def blame(error: BaseException) -> str | None:
    """One line on an error that came out of a plugin's code; None if none was involved."""
    plugin = next(filter(None, map(_owner, _frames(error))), None)
    if plugin is None:
        return None
    return f"the plugin {plugin} fails ({_told(error, plugin)}): correct it, or do without it"


def _told(error: BaseException, plugin: Plugin) -> str:
    """What an error says, and the last line of a plugin's code that it came through."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    for frame in _frames(error):
        if _owner(frame) == plugin:
            return f"{text}, in {Path(frame[0].f_code.co_filename).name} line {frame[1]}"
    return text


_Frame: TypeAlias = tuple[FrameType, int]


def _frames(error: BaseException) -> list[_Frame]:
    """Where an error came through, the innermost first."""
    return list(traceback.walk_tb(error.__traceback__))[::-1]


def _owner(frame: _Frame) -> Plugin | None:
    return _modules.get(str(frame[0].f_globals.get("__name__", "")).partition(".")[0])


def _plugin_of(point: EntryPoint) -> Plugin:
    return Plugin(point.dist.name, point.dist.version) if point.dist else Plugin(point.value, "")
