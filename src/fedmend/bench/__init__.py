"""Suites: tables of methods x datasets x splits x silos x seeds, beside the published figures.

A suite is a TOML file; those of `suites/` come with the package, and a path names one's own:

    about = "what it shows"
    paper = "fedsage"               # whose figures stand beside ours (published.json); optional
    datasets = ["cora"]
    splits = ["louvain"]
    silos = [3, 5]
    seeds = 5
    ratio = "60/20/20"              # optional
    evaluation = "global-graph"     # optional
    base = "fedsage"                # the row that differences are to; the first if left out
    between = ["fedsage", "oracle"] # how far rows go from one row to another; optional

    [settings]                      # of all rows, where a method knows them
    rounds = 50

    [dataset-settings.cora]         # the same for one dataset
    lr = 0.01

    [[rows]]
    method = "fedsage"
    label = "fedsage"               # the method's name if left out
    published = "fedsage"           # its name in published.json; the label if left out
    settings = { hidden = 64 }      # the method must know these
    dataset-settings.cora = { }     # the same for one dataset
    between = ["local", "global"]   # other rows for this one, [] for none; optional

This module imports no torch, so that listing suites is instant.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedmend.errors import SettingsError, UnknownNameError
from fedmend.methods import METHODS

_MOST = 1000
"""A list in a suite is never longer: a table is to be read."""


@dataclass(frozen=True)
class Row:
    """One line of a suite's tables: a method and what it is set to."""

    label: str
    method: str
    published: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluation: str | None = None
    between: tuple[str, str] | None = None
    dataset_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A suite; what may be left out in the file has its default here."""

    name: str
    about: str
    datasets: tuple[str, ...]
    splits: tuple[str, ...]
    silos: tuple[int, ...]
    seeds: int
    rows: tuple[Row, ...]
    base: str
    paper: str | None = None
    ratio: str = "60/20/20"
    evaluation: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dataset_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first_seed: int = 0
    methods: frozenset[str] = frozenset()
    """Those of all rows of the file, also of rows that a part of it leaves out."""

    @property
    def seed_numbers(self) -> range:
        """The seeds that are run."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def unknown_methods(self) -> list[str]:
        """Methods it names that fedmend does not have."""
        return sorted({row.method for row in self.rows} - set(METHODS))

    def only(
        self,
        *,
        datasets: list[str] | None = None,
        splits: list[str] | None = None,
        silos: list[int] | None = None,
        rows: list[str] | None = None,
        seeds: int | None = None,
        first_seed: int | None = None,
    ) -> Suite:
        """A part of the suite; a name it does not have is an error."""
        chosen = self
        if datasets is not None:
            self._check_choice("dataset", datasets, self.datasets)
            chosen = replace(chosen, datasets=tuple(datasets))
        if splits is not None:
            self._check_choice("split", splits, self.splits)
            chosen = replace(chosen, splits=tuple(splits))
        if silos is not None:
            self._check_choice("number of silos", map(str, silos), map(str, self.silos))
            chosen = replace(chosen, silos=tuple(silos))
        if rows is not None:
            by_label = {row.label: row for row in self.rows}
            self._check_choice("row", rows, by_label)
            base = self.base if self.base in rows else rows[0]
            kept = tuple(_within(by_label[label], rows) for label in rows)
            chosen = replace(chosen, rows=kept, base=base)
        if seeds is not None:
            chosen = replace(chosen, seeds=seeds)
        return chosen if first_seed is None else replace(chosen, first_seed=first_seed)

    def _check_choice(self, what: str, given: Iterable[str], known: Iterable[str]) -> None:
        """Refuse a choice of nothing, of the same twice, or of what the suite does not have."""
        names, all_names = list(given), list(known)
        if not names:
            raise SettingsError(
                f"no {what} of suite {self.name} is named: leave the option out to have all"
            )
        for name in names:
            if name not in all_names:
                raise UnknownNameError(f"{what} of suite {self.name}", name, all_names)
        if len(set(names)) < len(names):
            raise SettingsError(f"a {what} of suite {self.name} is named twice")


def shipped() -> dict[str, Suite]:
    """The suites of the package by name."""
    found = sorted(
        (each for each in files(__name__).joinpath("suites").iterdir() if _is_toml(each.name)),
        key=lambda each: each.name,
    )
    return {
        (name := each.name.removesuffix(".toml")): parse(name, each.read_text(encoding="utf-8"))
        for each in found
    }


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def find(name: str) -> Suite:
    """A shipped suite, or one's own by the path of its file."""
    if _is_toml(name):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot read {name}: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"{name} is not a text file: {error}") from error
        return parse(Path(name).stem, text)
    known = shipped()
    if name not in known:
        raise UnknownNameError("suite", name, known)
    return known[name]


def parse(name: str, text: str) -> Suite:
    """A suite from the text of its file; every mistake is an error that says where."""
    where = f"suite {name}"
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where} is not valid TOML: {error}") from error
    known = {
        *("about", "paper", "datasets", "splits", "silos", "seeds", "ratio", "evaluation", "base"),
        *("between", "settings", "dataset-settings", "rows"),
    }
    for key in values:
        if key not in known:
            raise UnknownNameError(f"key of {where}", key, known)
    datasets = _list(where, values, "datasets", str)
    between = _between(where, values)
    rows = tuple(_row(where, each, between) for each in _list(where, values, "rows", dict))
    labels = [row.label for row in rows]
    for end in (end for row in rows for end in row.between or ()):
        if end not in labels:
            raise UnknownNameError(f"row of {where}", end, labels)
    if len(set(labels)) < len(labels):
        raise SettingsError(f"{where}: two rows have the same label")
    base = _one(where, values, "base", str, labels[0])
    if base not in labels:
        raise UnknownNameError(f"base of {where}", base, labels)
    per_dataset = _by_dataset(where, values)
    for dataset in [*per_dataset, *(name for row in rows for name in row.dataset_settings)]:
        if dataset not in datasets:
            raise UnknownNameError(f"dataset of {where}", dataset, datasets)
    paper = _one(where, values, "paper", str, None)
    if paper is not None and paper not in published()["tables"]:
        raise UnknownNameError(f"paper of {where}", paper, published()["tables"])
    return Suite(
        name=name,
        about=_one(where, values, "about", str, ""),
        datasets=datasets,
        splits=_list(where, values, "splits", str),
        silos=_list(where, values, "silos", int),
        seeds=_one(where, values, "seeds", int, 5),
        rows=rows,
        base=base,
        paper=paper,
        ratio=_one(where, values, "ratio", str, "60/20/20"),
        evaluation=_one(where, values, "evaluation", str, None),
        settings=_flat(f"{where}: settings", values.get("settings", {})),
        dataset_settings=per_dataset,
        methods=frozenset(row.method for row in rows),
    )


def _one(where: str, values: Mapping[str, Any], key: str, wanted: type[Any], default: Any) -> Any:
    value = values.get(key, default)
    if value is default:
        return value
    if type(value) is not wanted or (wanted is int and not 1 <= value <= _MOST):
        words = {str: "a text", int: f"a whole number from 1 to {_MOST}", dict: "a table"}[wanted]
        raise SettingsError(f"{where}: {key} must be {words}, not {value!r}")
    return value


def _list(where: str, values: Mapping[str, Any], key: str, wanted: type[Any]) -> tuple[Any, ...]:
    found = values.get(key)
    words = {str: "texts", int: "whole numbers from 1", dict: "tables"}[wanted]
    if (
        not isinstance(found, list)
        or not 0 < len(found) <= _MOST
        or not all(type(each) is wanted and (wanted is not int or each >= 1) for each in found)
    ):
        raise SettingsError(f"{where}: {key} must be a list of {words}, not empty")
    if wanted is not dict and len(set(found)) < len(found):
        raise SettingsError(f"{where}: {key} names something twice")
    return tuple(found)


def _flat(where: str, settings: Any) -> dict[str, Any]:
    if not isinstance(settings, dict):
        raise SettingsError(f"{where} must be a table")
    for key, value in settings.items():
        if isinstance(value, dict | list):
            raise SettingsError(f"{where}: {key} must be a single value, settings are flat")
    return {key.replace("-", "_"): value for key, value in settings.items()}


def _between(where: str, values: Mapping[str, Any]) -> tuple[str, str] | None:
    if "between" not in values:
        return None
    ends = _list(where, values, "between", str)
    if len(ends) != 2:
        raise SettingsError(f"{where}: between must name two rows, from and to")
    return ends[0], ends[1]


def _row_between(
    where: str, values: Mapping[str, Any], suites: tuple[str, str] | None
) -> tuple[str, str] | None:
    """The suite's ends unless the row has its own; an empty list says that it is on no way."""
    if values.get("between") == []:
        return None
    return _between(where, values) or suites


def _within(row: Row, labels: Collection[str]) -> Row:
    """The row as it stands in a part of the suite that may lack the rows it is measured by."""
    return row if row.between and set(row.between) <= set(labels) else replace(row, between=None)


def _by_dataset(where: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    given = _one(where, values, "dataset-settings", dict, {})
    return {
        dataset: _flat(f"{where}: dataset-settings.{dataset}", settings)
        for dataset, settings in given.items()
    }


def _row(where: str, values: Mapping[str, Any], between: tuple[str, str] | None) -> Row:
    known = {
        *("method", "label", "published", "settings", "dataset-settings", "evaluation", "between")
    }
    for key in values:
        if key not in known:
            raise UnknownNameError(f"key of a row of {where}", key, known)
    method = _one(where, values, "method", str, None)
    if method is None:
        raise SettingsError(f"{where}: a row has no method")
    label = _one(where, values, "label", str, method)
    fits = label.isprintable() and 0 < len(label) <= 60 and not label.startswith(".")
    if not fits or set(label) & {"/", "\\"}:
        raise SettingsError(f"{where}: a row cannot be called {label!r}: its name becomes a folder")
    return Row(
        label=label,
        method=method,
        published=_one(where, values, "published", str, label),
        settings=_flat(f"{where}: settings of {label}", values.get("settings", {})),
        evaluation=_one(where, values, "evaluation", str, None),
        between=_row_between(f"{where}, row {label}", values, between),
        dataset_settings=_by_dataset(f"{where}, row {label}", values),
    )


@cache
def published() -> dict[str, Any]:
    """The papers' figures: tables by paper, dataset, number of silos and method; and how."""
    found: dict[str, Any] = json.loads(files(__name__).joinpath("published.json").read_bytes())
    return found


@dataclass(frozen=True)
class Figure:
    """A published accuracy: mean and standard deviation (None: not printed) over `repeats` runs."""

    accuracy: float
    std: float | None
    repeats: int


def published_figure(suite: Suite, row: Row, dataset: str, silos: int) -> Figure | None:
    """What the suite's paper says of a row; None where it says nothing."""
    if suite.paper is None:
        return None
    table = published()["tables"][suite.paper]
    found = table.get(dataset, {}).get(f"{silos}", {}).get(row.published)
    if found is None:
        return None
    # FedDEP's table 3 has the settings of its table 2.
    repeats = published()["settings"][suite.paper.split("-")[0]]["repeats"]
    return Figure(found["acc"], found["std"], repeats)
