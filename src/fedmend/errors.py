"""Every error fedmend raises on purpose.

FedmendError                 something the user can act on: one line, exit code 2
├── SettingsError            a setting, name or option that is not allowed
│   └── UnknownNameError     a method, dataset, split or key nobody knows; offers the nearest
├── DataError                a graph, file or dataset that cannot be used
│   ├── GraphError           a graph that breaks a rule; says which row
│   ├── FileFormatError      a file that is malformed, or hostile
│   └── DatasetMissingError  a dataset that is neither here nor downloadable
├── FederationError          the federation cannot go on
│   ├── TooFewSilosError     fewer silos answered than the run asks for
│   └── RefusedError         a silo's policy, or a role, does not allow it
├── WireError                bytes that are no message of ours, or a message that may not be sent
└── StorageError             a disk that is full, a folder that cannot be written

An error message says what was given, what is allowed, and what to do next.
Anything else that escapes (TypeError, ...) is a bug in fedmend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedmendError(Exception):
    """Base of all errors that are the input's fault, not the program's."""


class SettingsError(FedmendError):
    """A setting, name or option that is not allowed."""


class UnknownNameError(SettingsError):
    """A name that is not in a list of known ones."""

    def __init__(self, what: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {what} {given!r}{hint} (known: {', '.join(names)})")


class DataError(FedmendError):
    """A graph, file or dataset that cannot be used."""


class GraphError(DataError):
    """A graph that breaks a rule."""


class FileFormatError(DataError):
    """A file that is malformed or hostile."""


class DatasetMissingError(DataError):
    """A dataset that is neither on this machine nor downloadable."""


class FederationError(FedmendError):
    """The federation cannot go on."""


class TooFewSilosError(FederationError):
    """Fewer silos answered than the run asks for."""


class RefusedError(FederationError):
    """A silo's policy, or a role, does not allow it."""


class WireError(FedmendError):
    """Bytes that are no message of ours, or a message that may not be sent."""


class StorageError(FedmendError):
    """A disk that is full or a folder that cannot be written."""
