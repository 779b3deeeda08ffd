"""Sinks against the real libraries, reading back what they wrote; skipped where one is missing."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path

import pytest

from fedmend.engines.base import Moment, Watch
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.runs import tracking
from fedmend.runs.record import Record
from fedmend.runs.train import train
from tests.tiny import QUICK, tiny_partition


class Diary:
    """A sink that remembers."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.figures: dict[tuple[str, int], float] = {}
        self.record: Record | None = None
        self.closed = 0
        self.breaks = breaks

    def figure(self, name: str, value: float, round: int) -> None:
        if self.breaks:
            raise OSError("disk full")
        assert (name, round) not in self.figures
        self.figures[name, round] = value

    def finished(self, record: Record) -> None:
        self.record = record

    def close(self) -> None:
        self.closed += 1


def followed(sink: tracking.Sink, watch: Watch | None = None) -> Record:
    watch = watch or Watch()
    with tracking.following([lambda *_: sink], "r", {"lr": 0.1}, watch) as following:
        result = train("fedavg", tiny_partition(), watch=following.watch, **QUICK)
        following.finish(result.record)
    return result.record


def wanted(record: Record) -> dict[tuple[str, int], float]:
    """Every figure of a record, by name and round."""
    return {
        (f"{phase}/{metric}", int(number)): value
        for phase, rounds in record.rounds.items()
        for number, metrics in rounds.items()
        for metric, value in metrics.items()
    }


def test_every_figure_is_told_once_at_its_round() -> None:
    diary = Diary()
    record = followed(diary)
    told = {key: value for key, value in diary.figures.items() if "bytes" not in key[0]}
    assert told == wanted(record)
    rounds = QUICK["rounds"]
    assert diary.figures["training/bytes up", rounds] <= record.bytes.up
    assert diary.record == record
    assert diary.closed == 1


def test_the_display_still_hears_and_nothing_changes() -> None:
    heard: list[Moment] = []
    record = followed(Diary(), Watch(on_round=heard.append))
    assert [moment.round for moment in heard] == [1, 2, 3]
    alone = train("fedavg", tiny_partition(), **QUICK).record
    assert record.result == alone.result


def test_a_sink_that_breaks_does_not_stop_the_run() -> None:
    said: list[str] = []
    record = followed(Diary(breaks=True), Watch(on_sentence=said.append))
    assert record.result is not None
    assert said == ["Diary follows no longer: OSError disk full"]


def test_a_run_that_stops_closes_its_sinks() -> None:
    diary = Diary()
    with (
        pytest.raises(KeyboardInterrupt),
        tracking.following([lambda *_: diary], "r", {}, Watch()),
    ):
        raise KeyboardInterrupt
    assert diary.closed == 1
    assert diary.record is None


def test_where_to_must_be_said() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'wandb'"):
        tracking.parse("wanb:x")
    for wrong in ("mlflow", "mlflow:"):
        with pytest.raises(SettingsError, match="say where to"):
            tracking.parse(wrong)


@pytest.mark.parametrize("name", tracking.SINKS)
def test_a_missing_library_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    for module in ("torch.utils.tensorboard", "mlflow", "alembic", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=rf"fedmend\[{name}\]"):
        tracking.parse(f"{name}:{tmp_path}")("r", {})


def test_what_a_library_cannot_do_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwilling(*_: object) -> tracking.Sink:
        raise PermissionError("may not\nbe written " + "x" * 500)

    monkeypatch.setattr(tracking, "TensorBoard", unwilling)
    with pytest.raises(SettingsError, match="--track tensorboard:a: cannot") as refused:
        tracking.parse("tensorboard:a")("r", {})
    assert "PermissionError may not be written" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_server_that_is_not_there_is_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the user's own goes before ours
    started = time.monotonic()
    with pytest.raises(SettingsError, match=r"--track mlflow:http://127\.0\.0\.1:9"):
        tracking.parse("mlflow:http://127.0.0.1:9")("r", {})
    assert time.monotonic() - started < 60
    from mlflow import environment_variables

    assert environment_variables.MLFLOW_HTTP_REQUEST_TIMEOUT.get() == 10
    assert environment_variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == 0


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = followed(tracking.parse(f"tensorboard:{tmp_path}")("first", {"lr": 0.1}))
    events = EventAccumulator(str(tmp_path / "first"))
    events.Reload()
    read = {
        (tag, event.step): event.value
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    }
    for key, value in wanted(record).items():
        assert read[key] == pytest.approx(value)
    assert record.result is not None
    assert read["result/test accuracy", 0] == pytest.approx(record.result.accuracy)


def test_mlflow_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    with warnings.catch_warnings():  # SQLAlchemy warns about what mlflow uses of it
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        record = followed(tracking.parse(f"mlflow:{tmp_path / 'm'}")("first", {"lr": 0.1}))
        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/m/mlflow.db")
        experiment = client.get_experiment_by_name("fedmend")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED"
        assert run.data.params["lr"] == "0.1"
        for name in {name for name, _ in wanted(record)}:
            history = client.get_metric_history(run.info.run_id, name)
            read = {(name, each.step): each.value for each in history}
            assert read == {key: value for key, value in wanted(record).items() if key[0] == name}


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    pytest.importorskip("wandb")
    from wandb.analytics import get_sentry
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    said: list[str] = []
    sink = tracking.parse(f"wandb:{tmp_path / 'w'}")("first", {"lr": 0.1})
    record = followed(sink, Watch(on_sentence=said.append))
    assert said == []
    assert "WANDB_ERROR_REPORTING" not in os.environ
    assert not get_sentry()._enabled  # errors are not reported to anybody
    (file,) = (tmp_path / "w").rglob("*.wandb")
    assert "offline-run" in str(file)

    def read() -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = {}
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            entry = wandb_internal_pb2.Record()
            entry.ParseFromString(data)
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in entry.history.item
            }
            found |= {(name, values["round"]): value for name, value in values.items()}
        store.close()
        return found

    # A process of its own writes the file: give it time.
    deadline = time.monotonic() + 60
    while not wanted(record).keys() <= read().keys() and time.monotonic() < deadline:
        time.sleep(0.2)
    there = read()
    for key, value in wanted(record).items():
        assert there[key] == pytest.approx(value), key
