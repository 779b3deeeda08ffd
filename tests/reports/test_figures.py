"""Figures of runs in one file: read as written, and nothing else is taken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import FedmendError, FileFormatError
from fedmend.files import typed
from fedmend.reports import figures
from fedmend.runs.record import Figures

SILO = {
    "name": "silo-0",
    "nodes": 5,
    "edges": 4,
    "train_nodes": 3,
    "val_nodes": 1,
    "test_nodes": 1,
    "labels": {"ä|b": 2, "c": 3},
}
RUN: dict[str, Any] = {
    "format": "fedmend run 1",
    "method": "fedavg",
    "settings": {"rounds": 2, "lr": 0.1},
    "seed": 0,
    "evaluation": "global-graph",
    "split": {"how": "random", "seed": 0, "hash": "a" * 64},
    "content_hash": "b" * 64,
    "dataset": "mine",
    "data": {"silos": 1, "missing_share": 0.25, "per_silo": [SILO]},
    "pooled": False,
    "rounds": {"training": {"0": {"validation_accuracy": 0.1}}},
    "result": {
        "mode": "global-graph",
        "accuracy": 1 / 3,
        "macro_f1": 0.1,
        "test_nodes": 3,
        "by_silo": {"silo-0": {"accuracy": 1 / 3}},
    },
    "bytes": {"up": 10, "down": 20, "left_by_silo": {"silo-0": {"weights": 10}}},
    "versions": {"fedmend": "0"},
    "measured": {"finished": "2026-01-02T03:04:05+00:00", "seconds": 1.5, "machine": "x"},
}
BASELINE = {
    **{key: value for key, value in RUN.items() if key not in ("versions", "rounds")},
    "method": "majority",
    "settings": {},
    "result": None,
    "measured": {"seconds": 0.1},
}
RUNS: dict[str, Figures] = {
    name: typed(Figures, run)
    for name, run in {"b/seed-0": RUN, "b/seed-1": {**RUN, "seed": 1}, "a/seed-0": BASELINE}.items()
}
RESULTS = sorted((Path(__file__).parents[2] / "docs/results/figures").glob("*.jsonl"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    figures.write(tmp_path / "mine.jsonl", RUNS)
    return tmp_path / "mine.jsonl"


def test_what_is_written_is_read_to_the_last_digit(path: Path) -> None:
    found = figures.read(path)
    assert list(found) == sorted(RUNS)
    kept, run = found["b/seed-0"], RUNS["b/seed-0"]
    assert kept.result is not None
    assert kept.result.accuracy == 1 / 3
    assert (kept.measured.machine, kept.versions) == ("x", {"fedmend": "0"})
    assert kept == replace(
        run,
        result=replace(kept.result, by_silo={}),
        bytes=replace(run.bytes, left_by_silo={}),
    )
    assert found["a/seed-0"].result is None


@pytest.mark.parametrize("published", RESULTS, ids=lambda path: path.stem)
def test_the_figures_of_the_results_page_are_read_whole(published: Path, tmp_path: Path) -> None:
    """They are of many versions; written again, not a byte is another."""
    found = figures.read(published)
    assert len(found) > 100
    figures.write(tmp_path / "again.jsonl", found)
    assert (tmp_path / "again.jsonl").read_bytes() == published.read_bytes()


def test_writing_again_what_was_read_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    figures.write(path, figures.read(path))
    assert path.read_bytes() == before


def test_what_really_ran_stays_with_a_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    figures.write(path, {**RUNS, "b/seed-0": replace(RUNS["b/seed-0"], ran="Made before lr.")})
    assert path.read_text().count('"ran"') == 1
    found = figures.read(path)
    assert found["b/seed-0"].ran == "Made before lr."
    assert found["b/seed-1"].ran == ""
    figures.write(path, found)
    assert figures.read(path) == found


def test_what_runs_have_in_common_is_written_once(path: Path) -> None:
    assert path.read_text().count('"per_silo"') == 1
    assert path.read_text().count('"rounds":2') == 1


WRONG: dict[str, tuple[str, Any]] = {
    "seed": ("seed", -1),
    "no whole number": ("seed", True),
    "method": ("method", 5),
    "split": ("split", {"how": "random"}),
    "result": ("result", {"accuracy": 1.5, "macro_f1": 0.1}),
    "nan": ("result", {"accuracy": float("nan"), "macro_f1": 0.1}),
    "bytes": ("bytes", {"up": -1, "down": 0}),
    "measured": ("measured", {}),
    "settings": ("settings", []),
    "conditions": ("conditions", "x"),
    "ran": ("ran", ["x"]),
    "data": ("data", {"per_silo": []}),
    "labels differ": (
        "data",
        {"missing_share": 0, "per_silo": [SILO, {**SILO, "labels": {"d": 1}}]},
    ),
    "a silo without roles": ("data", {"missing_share": 0, "per_silo": [{"labels": {}}]}),
    "a silo that is a list": ("data", {"missing_share": 0, "per_silo": [[]]}),
    "missing share": ("data", {"missing_share": "x", "per_silo": [SILO]}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_value_is_told_with_its_line(path: Path, what: str) -> None:
    key, value = WRONG[what]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    run = next(line for line in lines if line.get("name") == "b/seed-0")
    if key in ("settings", "data", "conditions"):
        lines.insert(1, {"common": "new", "value": value})
        value = "new"
    run[key] = value
    path.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    with pytest.raises(FileFormatError, match=rf"line \d+: .*{key}"):
        figures.read(path)


@pytest.mark.parametrize(
    "key", ["method", "seed", "split", "pooled", "result", "bytes", "measured"]
)
def test_what_is_missing_is_told(path: Path, key: str) -> None:
    """Also where None would be allowed: a damaged key is not a value."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    next(line for line in lines if line.get("name") == "b/seed-0").pop(key)
    path.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    with pytest.raises(FileFormatError, match=rf"line \d+: .*{key}"):
        figures.read(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "no JSON object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "says too little"),
        ('{"name":"a","settings":"nowhere","data":"x","conditions":"y"}', "points at nothing"),
        ('{"name":"a","settings":[],"data":"x","conditions":"y"}', "points at nothing"),
    ],
)
def test_a_wrong_line_is_told(path: Path, line: str, said: str) -> None:
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(FileFormatError, match=said):
        figures.read(path)


def test_other_files_are_not_ours(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.jsonl"
    assert figures.is_ours(path)
    assert not figures.is_ours(other)
    for content in (b"", b"{}\n", b'{"format": "fedmend figures 2"}\n', b"\xff\xfe\n"):
        other.write_bytes(content)
        assert not figures.is_ours(other)
        with pytest.raises(FileFormatError):
            figures.read(other)
    with pytest.raises(FileFormatError, match="cannot read"):
        figures.read(tmp_path / "nowhere.jsonl")


def test_a_file_that_is_too_large_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "LIMIT", 10)
    with pytest.raises(FileFormatError, match="larger than 10 bytes"):
        figures.read(path)


@given(data=st.data())
def test_damage_is_an_error_of_ours_or_figures_that_tables_can_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from fedmend.reports import guards
    from fedmend.reports.summary import summarise_runs

    path = tmp_path_factory.mktemp("damage") / "mine.jsonl"
    figures.write(path, RUNS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = figures.read(path)
    except FedmendError:
        return
    for run in found.values():
        summarise_runs([run])
        guards.label_skew(run)
        guards.warnings({"a": [run]})
