"""A run's folder: complete or refused, and nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedmend.data.partition import Partition
from fedmend.errors import DataError, FedmendError, FileFormatError, SettingsError, StorageError
from fedmend.models.predictor import model_with
from fedmend.privacy.ledger import Ledger
from fedmend.runs.record import SavedRun, is_file_name, read_record, read_run
from fedmend.runs.train import own_or_shared, train
from tests.tiny import QUICK, comparable, same_weights, tiny_partition

PARTITION = tiny_partition()
SHARED = train("fedavg", PARTITION, dataset="tiny", **QUICK)
OWN = train("local", PARTITION, **QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return SHARED.save(tmp_path / "run")


def test_what_is_written(tmp_path: Path) -> None:
    result = train("fedavg", PARTITION, out=tmp_path / "run", **QUICK)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["checkpoint.safetensors", "ledger.csv", "record.json", "weights.safetensors"]
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record == result.record.to_dict() == read_run(tmp_path / "run").record.to_dict()
    assert record["method"] == "fedavg"
    assert record["seed"] == 0
    assert record["settings"]["rounds"] == 3
    assert record["split"]["hash"] == PARTITION.hash
    assert set(record["versions"]) >= {"fedmend", "python", "torch", "numpy"}
    assert record["bytes"]["up"] == result.ledger.total("up")
    assert set(record["measured"]["phases"]) >= {"set-up", "training", "evaluation"}
    assert record["measured"]["peak_memory_mb"] > 1
    assert record["result"]["accuracy"] == result.accuracy
    ledger = Ledger.from_csv((tmp_path / "run/ledger.csv").read_text())
    assert ledger.entries == result.ledger.entries
    rounds = record["rounds"]["training"]
    assert {int(number): metrics for number, metrics in rounds.items()} == (
        result.history["training"]
    )


def test_same_seed_same_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        train("fedper", PARTITION, out=tmp_path / name, **QUICK)
    one, other = (files_in(tmp_path / name) for name in ("one", "other"))
    assert one.keys() == other.keys()
    different = [str(path) for path in one if one[path] != other[path]]
    assert different == ["record.json"]
    first, second = (read_record(tmp_path / name / "record.json") for name in ("one", "other"))
    assert comparable(first) == comparable(second)


def files_in(folder: Path) -> dict[Path, bytes]:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in found}


def test_own_models_are_files_of_their_own(tmp_path: Path) -> None:
    OWN.save(tmp_path)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [
        "silo-0.safetensors",
        "silo-1.safetensors",
        "silo-2.safetensors",
    ]
    saved = read_run(tmp_path)
    assert saved.weights is None
    assert all(
        same_weights(saved.own_weights(name), OWN.own[name])
        for name in saved.record.silos_with_own_model
    )


def test_summary_of_the_result_is_short() -> None:
    assert len(repr(SHARED.scores)) < 300


# Not finished


def test_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"not a finished run: there is no record\.json"):
        read_run(tmp_path)
    with pytest.raises(FileFormatError, match="not a finished run"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(FileFormatError, match=r"was not finished; go on with .*--resume"):
        read_run(tmp_path)


def test_folder_of_several_runs(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(FileFormatError, match="it is empty"):
        read_run(tmp_path)
    SHARED.save(tmp_path / "seed-0")
    with pytest.raises(FileFormatError, match=r"several runs; choose one, e\.g\. .*seed-0"):
        read_run(tmp_path)


def test_a_crash_while_saving_leaves_no_record(tmp_path: Path) -> None:
    """Neither a new one nor that of an older run, whose weights may be gone already."""
    SHARED.save(tmp_path)
    (tmp_path / "ledger.csv").unlink()
    (tmp_path / "ledger.csv").mkdir()  # in the way: the rename fails, even for root
    with pytest.raises(StorageError, match=r"ledger\.csv"):
        SHARED.save(tmp_path)
    with pytest.raises(FileFormatError, match="not a finished run"):
        read_run(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (tmp_path / "ledger.csv").rmdir()
    SHARED.save(tmp_path)
    assert same_weights(read_run(tmp_path).weights, SHARED.weights)


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(StorageError):
        SHARED.save(tmp_path / "run")
    with pytest.raises(StorageError):
        train("local", PARTITION, out=tmp_path / "run", **QUICK)


# Damaged and hostile


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = folder / "record.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"[" * 200_000, b'{"format": 1}'],
)
def test_record_that_is_none(folder: Path, data: bytes) -> None:
    (folder / "record.json").write_bytes(data)
    with pytest.raises(FileFormatError) as caught:
        read_run(folder)
    assert "record.json" in str(caught.value)


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, [7], {"x": 7}, ...])
@pytest.mark.parametrize(
    "name",
    ["format", "model", "silos_with_own_model", "shared_model", "label_names", "method"],
)
def test_wrong_entries(folder: Path, name: str, value: Any) -> None:
    """Refused; or, where the entry allows it, read as what it says."""

    def change(record: dict[str, Any]) -> None:
        if value is ...:
            del record[name]
        else:
            record[name] = value

    changed(folder, change)
    try:
        saved = read_run(folder)
        model_of(saved)
    except FedmendError:
        return
    assert name in ("shared_model", "silos_with_own_model", "method")


def model_of(saved: SavedRun) -> None:
    own = saved.record.silos_with_own_model
    silo = own[0] if own else None
    weights = own_or_shared(saved.record, saved.weights, saved.own_weights, silo)
    model_with(saved.record.model, weights)


def test_a_record_of_the_format_before_is_read(folder: Path) -> None:
    """What it says of privacy had another form in every method."""
    nfdp = {"settings": {}, "recomputed": {"sampled": {"epsilon": 2.0, "delta": 0.5}}}
    for privacy, epsilon in (
        (None, None),
        ({"sentence": "x", "nfdp": None}, None),
        ({"sentence": "x", "nfdp": nfdp}, 2.0),
        ({"sentence": "x", "dp_sgd": {"epsilon": 3.0, "delta": 1e-5}}, 3.0),
        ({"sentence": "x", "row_epsilon": {"both": 4.0, "delta": 1e-5}}, 4.0),
    ):
        before = {"format": "fedmend run 1", "privacy": privacy}
        changed(folder, lambda record, before=before: record.update(before))  # type: ignore[misc]
        accounts = read_run(folder).record.privacy
        assert [each.epsilon for each in accounts] == ([] if privacy is None else [epsilon])
        assert all(each.sentence == "x" for each in accounts)


def test_a_silos_record_of_the_format_before_is_read(folder: Path) -> None:
    kept = ["method", "settings", "seed", "model", "label_names", "shared_model"]
    kept.append("silos_with_own_model")

    def before(record: dict[str, Any]) -> None:
        mine = {key: record[key] for key in kept}
        record.clear()
        engine = {"name": "flare", "silo": "silo-1", "run": "00"}
        record.update(mine, format="fedmend run 1", engine=engine)

    saved = read_run(changed(folder, before))
    assert saved.record.engine.silo == "silo-1"
    assert same_weights(saved.weights, SHARED.weights)


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden": 10**12},
        {"hidden": 2**30, "num_features": 2**30},
        {"hidden": -1},
        {"hidden": 0},
        {"hidden": 8.0},
        {"hidden": "8"},
        {"hidden": None},
        {"hidden": True},
        {"hidden": 9},
        {"layers": 10**9},
        {"layers": 3},
        {"layers": 1},
        {"heads": 0},
        {"num_classes": 4},
        {"num_features": 5},
        {"backbone": "gcn"},
        {"backbone": "../x"},
        {"backbone": ["sage"]},
        {"dropout": float("nan")},
        {"dropout": "0"},
        {"more": 1},
    ],
    ids=str,
)
def test_model_that_is_not_the_saved_one(folder: Path, shape: dict[str, Any]) -> None:
    changed(folder, lambda record: record["model"].update(shape))
    with pytest.raises(DataError) as caught:
        model_of(read_run(folder))
    assert "\n" not in str(caught.value)


OUTSIDE = ["../silo-0", "/etc/passwd", "..", ".", "", ".hidden", "a/b", "a\\b", "a\0b"]
OUTSIDE += ["a\nb", "a\rb", "\ud800", "x" * 201, "ü" * 101]


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    """Neither read from a record nor written by a run."""
    assert not is_file_name(name)
    OWN.save(tmp_path)
    changed(tmp_path, lambda record: record.update(silos_with_own_model=[name]))
    with pytest.raises(FileFormatError, match="names a silo outside its folder"):
        read_run(tmp_path)
    graph = PARTITION.silos["silo-0"]
    with pytest.raises(SettingsError, match="a silo cannot be called"):
        train("local", Partition({name: graph}, "x", None), **QUICK)


@pytest.mark.parametrize("name", ["silo-0", "Zürich", "a b", "a|b", "x" * 200, "ü" * 100, "a.b"])
def test_names_that_do_not(tmp_path: Path, name: str) -> None:
    graph = PARTITION.silos["silo-0"]
    result = train("local", Partition({name: graph}, "x", None), out=tmp_path, **QUICK)
    saved = read_run(tmp_path)
    assert saved.record.silos_with_own_model == (name,)
    assert same_weights(saved.own_weights(name), result.own[name])


def test_weights_that_are_missing_or_none(folder: Path) -> None:
    path = folder / "weights.safetensors"
    good = path.read_bytes()
    for data in (b"", b"x" * 100, good[:50], good[:-1], good + b"\0"):
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="not a safetensors file"):
            read_run(folder)
    path.unlink()
    with pytest.raises(FileFormatError, match=r"cannot read .*weights\.safetensors"):
        read_run(folder)


def test_own_weights_that_are_missing(tmp_path: Path) -> None:
    OWN.save(tmp_path)
    (tmp_path / "weights/silo-1.safetensors").unlink()
    saved = read_run(tmp_path)
    with pytest.raises(FileFormatError, match=r"cannot read .*silo-1.safetensors"):
        saved.own_weights("silo-1")


def test_weights_of_another_type(folder: Path) -> None:
    path = folder / "weights.safetensors"
    weights = load_file(path)
    save_file({key: value.to(torch.float64) for key, value in weights.items()}, path)
    model_of(read_run(folder))  # the same numbers: read as they are meant
    save_file({key: torch.zeros(1) for key in weights}, path)
    with pytest.raises(DataError, match="do not fit the model"):
        model_of(read_run(folder))


@settings(max_examples=60)
@given(
    st.integers(0, 2**20),
    st.integers(1, 255),
    st.sampled_from(["record.json", "weights.safetensors"]),
)
def test_flipped_bytes_never_end_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, at: int, by: int, name: str
) -> None:
    if not FLIPPED:
        FLIPPED.append(SHARED.save(tmp_path_factory.mktemp("flipped")))
    path = FLIPPED[0] / name
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at % min(len(bad), 6000)] ^= by
    path.write_bytes(bytes(bad))
    try:
        model_of(read_run(FLIPPED[0]))
    except FedmendError:
        pass
    finally:
        path.write_bytes(good)


FLIPPED: list[Path] = []
