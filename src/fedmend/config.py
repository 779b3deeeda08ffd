"""Settings: frozen dataclasses, filled from TOML files and key=value pairs.

A setting states its default, its meaning and what is allowed in one place:

    rounds: int = setting(50, "rounds of training", low=1)

An unknown key is an error that lists the known ones; a value that is not allowed is an error that
says what is.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedmend.errors import SettingsError, UnknownNameError

MOST_THREADS = 1024
"""Torch threads of a silo's step; asked for some thousands, torch ends the process."""

T = TypeVar("T")


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] | None = None,
    only: Mapping[str, tuple[Any, ...]] | None = None,
    paper: Any = None,
) -> Any:
    """A dataclass field with its meaning and its limits (both included).

    only: values of other settings that it has an effect with; with others it cannot be given.
    paper: what the method's paper has, as a value or in words; None where it does not say.
    """
    if choices is not None and not isinstance(choices, Mapping):  # a registry may grow
        choices = tuple(choices)
    known = {"help": help, "paper": paper, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata={**known, "only": dict(only or {})})


def make(cls: type[T], values: Mapping[str, Any]) -> T:
    """Settings of this class from values by name; text is read as the setting's type."""
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types = get_type_hints(cls)
    given = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise UnknownNameError("setting", key, known)
        given[name] = _checked(known[name], types[name], value)
    made = cls(**given)
    for name, value in given.items():
        _check_effect(known[name], value, made)
    return made


def _check_effect(field: dataclasses.Field[Any], value: Any, made: Any) -> None:
    """Refuse a setting that would do nothing; its default may be said all the same."""
    for other, wanted in field.metadata.get("only", {}).items():
        if value != field.default and getattr(made, other) not in wanted:
            raise SettingsError(
                f"{field.name}={value} has no effect with {other}={getattr(made, other)}: leave it "
                f"out, or set {other}={' or '.join(map(str, wanted))}"
            )


def _checked(field: dataclasses.Field[Any], wanted: Any, value: Any) -> Any:
    limits = field.metadata
    read = _read(field.name, wanted, value)
    choices = limits.get("choices")
    if choices is not None and read not in choices:
        raise UnknownNameError(f"value of {field.name}", str(read), choices)
    low, high = limits.get("low"), limits.get("high")
    if (low is not None and read < low) or (high is not None and read > high):
        span = f"{low if low is not None else ''} to {high if high is not None else ''}".strip()
        allowed = f"at least {low}" if high is None else span
        raise SettingsError(f"{field.name}={read} is not allowed: it must be {allowed}")
    return read


def _read(name: str, wanted: Any, value: Any) -> Any:
    if isinstance(value, wanted) and not (isinstance(value, bool) and wanted is not bool):
        if wanted is float and not math.isfinite(value):
            raise SettingsError(f"{name}={value} is not allowed: it must be a finite number")
        return value
    if wanted is float and type(value) is int:
        return _read(name, float, str(value))  # a whole number may be too large for a float
    if isinstance(value, str):
        try:
            if wanted is bool:
                return {
                    "true": True,
                    "yes": True,
                    "1": True,
                    "false": False,
                    "no": False,
                    "0": False,
                }[value.lower()]
            return _read(name, wanted, wanted(value))
        except (ValueError, KeyError):
            pass
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    raise SettingsError(f"{name}={value!r} is not allowed: it must be {words[wanted]}")


def from_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`["lr=0.01", "hidden=64"]` as a mapping."""
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"--set {pair!r} is not of the form key=value")
        values[key.strip()] = value.strip()
    return values


def from_toml(path: Path) -> dict[str, Any]:
    """A flat TOML file of settings."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    for key, value in values.items():
        if isinstance(value, dict | list):
            raise SettingsError(f"{path}: {key} must be a single value, settings are flat")
    return values


@dataclass(frozen=True)
class Described:
    """A setting in words: what is allowed, and what the paper has where the default differs.

    paper: "as here", the paper's own value, or "" where it says nothing of it.
    """

    name: str
    default: str
    allowed: str
    paper: str
    help: str


def describe(cls: type[Any], papers: Mapping[str, Any] | None = None) -> list[Described]:
    """Every setting of a class; `papers`: what a paper has for some, which goes first."""
    types, papers = get_type_hints(cls), papers or {}
    return [
        Described(
            each.name,
            _plain(each.default),
            _allowed(types[each.name], each.metadata) + _with(each.metadata.get("only") or {}),
            _of_paper(each, papers.get(each.name, each.metadata.get("paper"))),
            each.metadata.get("help", ""),
        )
        for each in dataclasses.fields(cls)
    ]


def _plain(value: Any) -> str:
    return str(value).lower() if type(value) is bool else str(value)


def _allowed(wanted: Any, limits: Mapping[str, Any]) -> str:
    low, high, choices = (limits.get(key) for key in ("low", "high", "choices"))
    if choices is not None:
        return ", ".join(choices)
    if wanted is bool:
        return "true, false"
    if low is None and high is None:
        return {int: "any whole number", float: "any number"}.get(wanted, "")
    if high is None:
        return f"{low} or more"
    return f"up to {high}" if low is None else f"{low} to {high}"


def _with(only: Mapping[str, tuple[Any, ...]]) -> str:
    """What else must be set for a setting to have an effect."""
    return "".join(f" (with {key}={' or '.join(map(_plain, few))})" for key, few in only.items())


def _of_paper(each: dataclasses.Field[Any], paper: Any) -> str:
    if paper is None:
        return ""
    return "as here" if paper == each.default else _plain(paper)
