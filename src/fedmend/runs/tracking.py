"""Following runs with TensorBoard, MLflow or Weights & Biases, each an extra.

A sink hears when a run starts, each figure with the round it belongs to, and how the run ended;
whatever has these methods can be one. Weights & Biases only ever writes to the disk (offline mode):
nothing is sent unless the user syncs it. A sink that fails while the run goes on is dropped with a
word about it, since no diary is worth a lost run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedmend.engines.base import Moment, Watch
from fedmend.errors import FedmendError, SettingsError, UnknownNameError
from fedmend.runs.record import Record

SINKS = {
    "tensorboard": "event files in a folder",
    "mlflow": "a database in a folder, or a server's address",
    "wandb": "Weights & Biases in offline mode, in a folder",
}


class Sink(Protocol):
    """Who follows one run."""

    def figure(self, name: str, value: float, round: int) -> None:
        """One figure of one round; `name` is `phase/metric`."""

    def finished(self, record: Record) -> None:
        """The run has ended and this is its record."""

    def close(self) -> None:
        """Nothing more will come, whether the run has finished or not."""


SinkMaker = Callable[[str, Mapping[str, Any]], Sink]
"""Opens a sink for the run of this name, which has these facts."""


def parse(text: str) -> SinkMaker:
    """`tensorboard:DIR`, `mlflow:DIR-or-address` or `wandb:DIR`."""
    name, colon, where = text.partition(":")
    if name not in SINKS:
        raise UnknownNameError("tracker", name, SINKS)
    if not colon or not where:
        raise SettingsError(f"--track {text!r}: say where to, e.g. --track {name}:runs/{name}")
    makers: dict[str, Callable[[str, str, Mapping[str, Any]], Sink]] = {
        "tensorboard": TensorBoard,
        "mlflow": MLflow,
        "wandb": WeightsAndBiases,
    }

    def make(run: str, facts: Mapping[str, Any]) -> Sink:
        try:
            return makers[name](where, run, facts)
        except FedmendError:
            raise
        except Exception as error:  # other people's code: a path or an address it cannot use
            raise SettingsError(
                f"--track {text}: cannot be written to ({_in_short(error)}); choose another place"
            ) from error

    return make


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}"


@dataclass
class Followed:
    """A run's sinks, and the watch that feeds them."""

    watch: Watch
    sinks: list[Sink]
    _told: set[tuple[str, int]] = field(default_factory=set)

    def tell(self, moment: Moment) -> None:
        for round, metrics in moment.noted.items():
            self._figures(moment.phase, round, metrics)
        self._figure(f"{moment.phase}/bytes up", moment.bytes_up, moment.round)
        self._figure(f"{moment.phase}/bytes down", moment.bytes_down, moment.round)

    def finish(self, record: Record) -> None:
        """What came after the last round, and the result."""
        for phase, rounds in record.rounds.items():
            for round, metrics in rounds.items():
                self._figures(phase, int(round), metrics)
        self._each(lambda sink: sink.finished(record))

    def _figures(self, phase: str, round: int, metrics: Mapping[str, float]) -> None:
        for metric, value in metrics.items():
            self._figure(f"{phase}/{metric}", value, round)

    def _figure(self, name: str, value: float, round: int) -> None:
        if (name, round) in self._told or not math.isfinite(value):
            return
        self._told.add((name, round))
        self._each(lambda sink: sink.figure(name, float(value), round))

    def close(self) -> None:
        self._each(lambda sink: sink.close())

    def _each(self, act: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            try:
                act(sink)
            except Exception as error:  # noqa: BLE001  # other people's code; the run goes on
                self.sinks.remove(sink)
                if self.watch.on_sentence:
                    self.watch.on_sentence(
                        f"{type(sink).__name__} follows no longer: {_in_short(error)}"
                    )


@contextmanager
def following(
    makers: Sequence[SinkMaker], run: str, facts: Mapping[str, Any], watch: Watch
) -> Iterator[Followed]:
    """Open the sinks and let them hear what the watch hears."""
    followed = Followed(watch, [])
    try:
        for maker in makers:
            followed.sinks.append(maker(run, facts))
        if makers:
            before = watch.on_round

            def on_round(moment: Moment) -> None:
                if before:
                    before(moment)
                followed.tell(moment)

            watch.on_round = on_round
        yield followed
    finally:
        followed.close()


def _headline(record: Record) -> dict[str, float]:
    """The figures a run ends with."""
    found = {"seconds": float(record.measured.seconds)}
    found |= {"bytes up": float(record.bytes.up), "bytes down": float(record.bytes.down)}
    if record.result is not None:
        found |= {
            f"test {key}": float(getattr(record.result, key)) for key in ("accuracy", "macro_f1")
        }
    return found


def _missing(extra: str) -> SettingsError:
    return SettingsError(f"--track {extra} needs more: pip install 'fedmend[{extra}]'")


class TensorBoard:
    """Scalars as event files, a folder per run."""

    def __init__(self, where: str, run: str, facts: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._writer: Any = SummaryWriter(str(Path(where) / run))
        lines = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{lines}")

    def figure(self, name: str, value: float, round: int) -> None:
        self._writer.add_scalar(name, value, round)

    def finished(self, record: Record) -> None:
        for name, value in _headline(record).items():
            self._writer.add_scalar(f"result/{name}", value, 0)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Parameters and metrics of a run in an experiment `fedmend`."""

    def __init__(self, where: str, run: str, facts: Mapping[str, Any]) -> None:
        try:
            import alembic  # noqa: F401  # what mlflow-skinny leaves out and its database needs
            from mlflow import MlflowClient, environment_variables
        except ImportError:
            raise _missing("mlflow") from None
        # By default it asks a server that is not there for minutes. The user's variables go before.
        environment_variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.default = 2
        environment_variables.MLFLOW_HTTP_REQUEST_TIMEOUT.default = 10
        artifacts = None
        if "://" not in where:
            folder = Path(where).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            where, artifacts = f"sqlite:///{folder}/mlflow.db", (folder / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=where)
        found = self._client.get_experiment_by_name("fedmend")
        experiment = (
            found.experiment_id
            if found
            else self._client.create_experiment("fedmend", artifact_location=artifacts)
        )
        self._run: str = self._client.create_run(experiment, run_name=run).info.run_id
        for key, value in facts.items():
            self._client.log_param(self._run, key, value)
        self._state = "KILLED"

    def figure(self, name: str, value: float, round: int) -> None:
        self._client.log_metric(self._run, name, value, step=round)

    def finished(self, record: Record) -> None:
        for name, value in _headline(record).items():
            self._client.log_metric(self._run, name, value)
        self._state = "FINISHED"

    def close(self) -> None:
        self._client.set_terminated(self._run, self._state)


@contextmanager
def _started_with(variable: str, value: str) -> Iterator[None]:
    """What is imported and started inside reads this value, unless the user gave one.

    For what has no other switch, wandb's reports of errors to its makers: the variable is gone
    again afterwards, so that nothing else in the process or below it sees it.
    """
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]


class WeightsAndBiases:
    """A run in offline mode; `wandb sync` sends it, if the user wants that."""

    def __init__(self, where: str, run: str, facts: Mapping[str, Any]) -> None:
        with _started_with("WANDB_ERROR_REPORTING", "false"):
            try:
                import wandb
            except ImportError:
                raise _missing("wandb") from None
            Path(where).mkdir(parents=True, exist_ok=True)
            self._run: Any = wandb.init(
                project="fedmend",
                name=run,
                mode="offline",
                dir=where,
                config=dict(facts),
                reinit="create_new",
                settings=wandb.Settings(
                    console="off",
                    disable_git=True,
                    save_code=False,
                    silent=True,
                    x_disable_meta=True,
                    x_disable_stats=True,
                ),
            )
        self._run.define_metric("*", step_metric="round")

    def figure(self, name: str, value: float, round: int) -> None:
        self._run.log({"round": round, name: value})

    def finished(self, record: Record) -> None:
        self._run.summary.update(_headline(record))

    def close(self) -> None:
        self._run.finish()
