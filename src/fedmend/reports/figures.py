"""What tables read of runs: many runs in one small text file, to be kept beside a page of results.

A run's folder has its weights and every round; a table needs a line of it. One JSON object stands
in a line: first what many runs have in common (settings, a split's counts, machine and versions),
then the runs by name, so that two versions of a file can be compared line by line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from fedmend.errors import FileFormatError
from fedmend.files import write_bytes

Record = dict[str, Any]

SUFFIX = ".jsonl"
FORMAT = "fedmend figures 1"
LIMIT = 64 * 2**20
"""Bytes of a file; five times the largest suite of ours would not fill a tenth of it."""

_OWN = ("method", "seed", "evaluation", "split", "content_hash", "dataset", "pooled")
_COMMON = ("settings", "data", "conditions")


def figures(record: Mapping[str, Any]) -> Record:
    """The part of a run's or a baseline's record that tables read."""
    result, measured, sent = record["result"], record["measured"], record["bytes"]
    scores = ("mode", "accuracy", "macro_f1", "test_nodes")
    return {
        **{key: record[key] for key in _OWN},
        "result": None if result is None else {key: result.get(key) for key in scores},
        "bytes": {"up": sent["up"], "down": sent["down"]},
        "measured": {key: measured[key] for key in ("finished", "seconds") if key in measured},
        "settings": record["settings"],
        "data": record["data"],
        # A figure that is read again has them already.
        "conditions": record.get("conditions")
        or {"machine": measured.get("machine"), "versions": record.get("versions")},
    }


def write(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write runs' figures, completely or not at all."""
    common: dict[str, str] = {}
    lines = []
    for name, record in sorted(runs.items()):
        kept = figures(record)
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


def read(path: Path) -> dict[str, Record]:
    """Runs' figures by name, each checked; whatever is wrong is one line that says where."""
    common: dict[str, Any] = {}
    runs: dict[str, Record] = {}
    for number, line in _lines(path):
        if "common" in line:
            common[str(line["common"])] = line.get("value")
            continue
        try:
            name = line.pop("name")
            kept = {**line, **{key: common[line[key]] for key in _COMMON}}
        except (KeyError, TypeError) as error:
            raise _wrong(path, number, "it says too little or points at nothing") from error
        problem = _problem(kept)
        if problem or not isinstance(name, str):
            raise _wrong(path, number, problem or "its name is no text")
        runs[name] = kept
    return runs


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


def _problem(run: Record) -> str:
    """Why tables could not read a run's figures; "" if they can."""
    checks = {
        "method": _is_text(run.get("method")),
        "seed": _is_count(run.get("seed")),
        "evaluation": _is_text(run.get("evaluation")),
        "split": _is_split(run.get("split")),
        "content_hash": _is_text(run.get("content_hash")),
        "dataset": _is_text(run.get("dataset")),
        "pooled": isinstance(run.get("pooled"), bool),
        # None where there were no test nodes, which is not the same as nothing said of it.
        "result": "result" in run and (run["result"] is None or _is_result(run["result"])),
        "bytes": _has(run.get("bytes"), "up", "down"),
        "measured": _has(run.get("measured"), "seconds"),
        "settings": isinstance(run.get("settings"), dict),
        "data": _is_data(run.get("data")),
        "conditions": isinstance(run.get("conditions"), dict),
    }
    return ", ".join(f"{key} is wrong" for key, fine in checks.items() if not fine)


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    # NaN and the infinities, which json reads, are not between.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


def _has(value: Any, *keys: str) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(key)) for key in keys)


def _is_split(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("how")) and _is_text(value.get("hash"))


def _is_result(value: Any) -> bool:
    return _has(value, "accuracy", "macro_f1") and max(value["accuracy"], value["macro_f1"]) <= 1


def _is_data(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("per_silo"), list):
        return False
    share, silos = value.get("missing_share"), value["per_silo"]
    if not (share is None or _is_number(share)) or not silos:
        return False
    roles = ("train_nodes", "val_nodes", "test_nodes")
    return all(
        _has(silo, *roles)
        and isinstance(silo.get("labels"), dict)
        and silo["labels"].keys() == silos[0]["labels"].keys()
        and all(map(_is_count, silo["labels"].values()))
        for silo in silos
    )
