"""What tables read of runs: many runs in one small text file, to be kept beside a page of results.

A run's folder has its weights and every round; a table needs a line of it. One JSON object stands
in a line: first what many runs have in common (settings, a split's counts, machine and versions),
then the runs by name, so that two versions of a file can be compared line by line.

`ran` is a sentence beside a run whose settings do not say what ran: it was made before one of them
was there, say. Pages show it; it goes when the run is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmend.errors import FileFormatError
from fedmend.evaluation.evaluate import Scores
from fedmend.files import plain, typed, write_bytes
from fedmend.runs.record import Data, Figures, check_figures

SUFFIX = ".jsonl"
FORMAT = "fedmend figures 1"
LIMIT = 64 * 2**20
"""Bytes of a file; five times the largest suite of ours would not fill a tenth of it."""

_OWN = ("method", "seed", "evaluation", "split", "content_hash", "dataset", "pooled")
_COMMON = ("settings", "data", "conditions")


def _without_silos(result: Scores) -> dict[str, Any]:
    return {key: each for key, each in result.to_dict().items() if key != "by_silo"}


def _line(run: Figures) -> dict[str, Any]:
    """The part of a run's or a baseline's record that tables read."""
    result, measured = run.result, run.measured
    return {
        **{key: plain(getattr(run, key)) for key in _OWN},
        "result": None if result is None else _without_silos(result),
        "bytes": {"up": run.bytes.up, "down": run.bytes.down},
        "measured": {
            key: getattr(measured, key) for key in ("finished", "seconds") if getattr(measured, key)
        },
        "settings": plain(run.settings),
        "data": plain(run.data),
        "conditions": {"machine": measured.machine, "versions": plain(run.versions) or None},
        **({"ran": run.ran} if run.ran else {}),
    }


def write(path: Path, runs: Mapping[str, Figures]) -> None:
    """Write runs' figures, completely or not at all."""
    common: dict[str, str] = {}
    lines = []
    for name, run in sorted(runs.items()):
        kept = _line(run)
        for key in _COMMON:
            text = _text(kept[key])
            mark = hashlib.sha256(text.encode()).hexdigest()[:16]
            common[mark] = text
            kept[key] = mark
        lines.append(_text({"name": name, **kept}))
    first = [_text({"format": FORMAT})]
    first += [f'{{"common":"{mark}","value":{text}}}' for mark, text in sorted(common.items())]
    write_bytes(path, ("\n".join([*first, *lines]) + "\n").encode())


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def is_ours(path: Path) -> bool:
    """Whether a file begins as those of `write` do."""
    try:
        with path.open("rb") as file:
            return file.readline(256).strip() == _text({"format": FORMAT}).encode()
    except OSError:
        return False


def read(path: Path) -> dict[str, Figures]:
    """Runs' figures by name, each checked; whatever is wrong is one line that says where."""
    common: dict[str, Any] = {}
    data: dict[str, Any] = {}  # of many runs, looked at once
    runs: dict[str, Figures] = {}
    for number, line in _lines(path):
        if "common" in line:
            common[str(line["common"])] = line.get("value")
            continue
        try:
            name, mark = line.pop("name"), line["data"]
            kept = {**line, **{key: common[line[key]] for key in _COMMON}}
        except (KeyError, TypeError) as error:
            raise _wrong(path, number, "it says too little or points at nothing") from error
        try:
            if mark not in data:
                data[mark] = _data(kept["data"])
            runs[typed(str, name, "its name")] = _run({**kept, "data": data[mark]})
        except ValueError as error:
            raise _wrong(path, number, str(error)) from error
    return runs


def _data(given: Any) -> Data:
    found: Data = typed(Data, given, "data")
    if not found.per_silo:
        raise ValueError("data says nothing of the silos")
    return found


def _run(kept: dict[str, Any]) -> Figures:
    conditions = typed(Mapping[str, Any], kept.pop("conditions"), "conditions")
    measured = typed(dict[str, Any], kept.get("measured"), "measured")
    found = {
        **kept,
        "measured": {**measured, "machine": conditions.get("machine")},
        "versions": conditions.get("versions") or {},
    }
    run: Figures = typed(Figures, found, "it")
    check_figures(run)
    if run.split.hash is None or run.content_hash is None or run.dataset is None:
        raise ValueError("split, content_hash and dataset must be known")
    return run


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        if path.stat().st_size > LIMIT:
            raise FileFormatError(f"{path} is larger than {LIMIT} bytes: not a file of ours")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not a text file: {error}") from error
    if not is_ours(path):
        raise FileFormatError(f"{path} is no file of figures: its first line is not {FORMAT!r}")
    for number, line in enumerate(text.split("\n")[1:], start=2):
        if line:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _wrong(path, number, f"not valid JSON: {error}") from error
            if not isinstance(found, dict):
                raise _wrong(path, number, "no JSON object")
            yield number, found


def _wrong(path: Path, number: int, why: str) -> FileFormatError:
    return FileFormatError(
        f"{path}, line {number}: {why}; take an earlier version of the file, or remove it"
    )
