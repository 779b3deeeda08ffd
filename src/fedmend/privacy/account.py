"""What a mechanism's uses in a run are worth: one form for all, kept in the run's record."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from fedmend.errors import FileFormatError

_LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account of one mechanism in one run.

    mechanism: its name ("Gaussian noise on embeddings").
    per: whom the figure is about ("a node's own row", "a loss term").
    epsilon, delta: what holds; epsilon is None where nothing does or nobody could compute it, and
        the sentence says which. delta is 0 where epsilon holds without exception.
    uses: how often the mechanism was used on the one it was used on most.
    details: what else the accountant knows, as JSON has it.
    drawn: whether something was drawn to hide it. Silos of a deployment draw what nobody can draw
        again, so that no two of their runs end alike.
    """

    mechanism: str
    per: str
    epsilon: float | None
    delta: float
    uses: int
    sentence: str
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    drawn: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For a run's record; JSON knows no infinity, so that None stands for it."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["epsilon"] = finite(self.epsilon)
        return {**found, "details": dict(self.details)}

    @classmethod
    def from_dict(cls, given: Any) -> Account:
        """An account as a record has it, checked: records come from other machines."""
        if not isinstance(given, Mapping) or set(given) != {each.name for each in fields(cls)}:
            raise _malformed("other fields than an account has")
        for key in ("mechanism", "per", "sentence"):
            if not isinstance(given[key], str):
                raise _malformed(f"{key} is no text")
        epsilon, delta, uses = given["epsilon"], given["delta"], given["uses"]
        if epsilon is not None and not (_number(epsilon) and epsilon >= 0):
            raise _malformed("epsilon is no number from 0 up")
        if not (_number(delta) and 0 <= delta <= 1):
            raise _malformed("delta is no number from 0 to 1")
        if not isinstance(uses, int) or isinstance(uses, bool) or uses < 0:
            raise _malformed("uses is no whole number from 0 up")
        if not isinstance(given["drawn"], bool):
            raise _malformed("drawn is neither true nor false")
        details = given["details"]
        try:
            if not isinstance(details, Mapping):
                raise TypeError
            json.dumps(dict(details), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise _malformed("details is no object of JSON") from error
        return cls(**{**given, "details": dict(details)})


def no_account(why: str) -> Account:
    """In place of an account that could not be computed."""
    return Account(
        mechanism="unknown",
        per="unknown",
        epsilon=None,
        delta=1.0,
        uses=0,
        sentence=f"There is no account of this run: {why}.",
    )


def finite(epsilon: float | None) -> float | None:
    """An epsilon as an account has it: None stands for "none holds"."""
    return epsilon if epsilon is not None and math.isfinite(epsilon) else None


def _number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and -_LARGEST <= value <= _LARGEST  # what a NaN fails, too


def _malformed(why: str) -> FileFormatError:
    return FileFormatError(f"a privacy account is malformed: {why}")
