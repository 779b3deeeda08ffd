"""What the commands share: consoles, options, progress and how figures are written."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmend.config import MOST_THREADS

if TYPE_CHECKING:
    from rich.console import Console

    from fedmend.engines.base import Moment, Watch
    from fedmend.runs.tracking import SinkMaker


class Stopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """The user stopped the command; says how to go on. (Typer swallows a KeyboardInterrupt.)"""


DatasetOption = Annotated[
    str,
    typer.Option(
        "--dataset",
        help="A dataset (see `fedmend datasets`), a folder with a graph, or one of silo folders.",
    ),
]
SilosOption = Annotated[
    int | None, typer.Option("--silos", min=1, help="Number of silos; 5 if left out.")
]
SplitOption = Annotated[
    str | None,
    # None tells what was left out from what was asked for: a folder of silos is cut already.
    typer.Option(
        "--split", help="How the graph is cut (see `fedmend splits`); louvain if left out."
    ),
]
RatioOption = Annotated[str, typer.Option("--ratio", help="Shares of train/val/test nodes.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", min=1, help="Rounds of training.")]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="The first seed.")]
SplitSeedOption = Annotated[
    int | None, typer.Option("--split-seed", min=0, help="One cut for all seeds, of this seed.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, key=value; see `fedmend methods NAME`. Repeatable."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A TOML file of settings; --set goes before it.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; default runs/...")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with the runs in --out from their checkpoints.")
]
EvaluationOption = Annotated[
    str | None, typer.Option("--evaluation", help="global-graph, own-subgraph or cross-edges.")
]
BackboneOption = Annotated[
    str | None, typer.Option("--backbone", help="The network (see `fedmend backbones`).")
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", help="A Python file with a method or another part of one's own. Repeatable."
    ),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Torch device, e.g. cpu.")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option("--track", help="tensorboard:DIR, mlflow:DIR or wandb:DIR (offline). Repeatable."),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, help="Runs side by side, in processes of their own.")
]
ReuseOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--reuse",
        help="A folder of another suite or study, or of figures kept beside a page: what is the "
        "same run there is taken over. Repeatable.",
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers", min=0, help="Silos trained side by side, 0 = one per core; same result."
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option("--threads", min=1, max=MOST_THREADS, help="Torch threads of each silo's step."),
]
CheckpointOption = Annotated[
    int, typer.Option("--checkpoint-every", min=1, help="Rounds between checkpoints.")
]
DataRootOption = Annotated[
    str | None,
    # FEDMEND_DATA is read where datasets are loaded: given as this option it would replace the
    # bundled Cora.
    typer.Option("--data-root", help="Folder with dataset files; FEDMEND_DATA names one too."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")
]


StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="Folder for logs, checkpoints and models; default KIT-state."),
]


def out_console() -> Console:
    """For results: standard output."""
    return _console(stderr=False)


def err_console() -> Console:
    """For progress and remarks: standard error, so that results can be piped."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """A console that shows every text as it is.

    Names, paths and messages come from files and from other parties: "[/no]" in one of them is no
    markup, and ":warning:" no picture.
    """
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def gather_settings(pairs: list[str] | None, config: Path | None, **direct: Any) -> dict[str, Any]:
    """Settings from a file, then --set, then options of their own (where given)."""
    from fedmend.config import from_pairs, from_toml

    settings: dict[str, Any] = from_toml(config) if config else {}
    settings.update(from_pairs(pairs or []))
    settings.update({key: value for key, value in direct.items() if value is not None})
    return settings


def sinks(texts: list[str] | None) -> tuple[SinkMaker, ...]:
    """What --track names."""
    from fedmend.runs.tracking import parse

    return tuple(parse(text) for text in texts or [])


def default_out(*parts: str) -> Path:
    """`runs/PARTS-DATE`: a folder nobody has yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    clean = ["".join(c if c.isalnum() or c in "-+" else "-" for c in part) for part in parts]
    # A dataset with many options makes a name that no file system takes.
    name = "-".join(clean).encode()[:150].decode(errors="ignore")
    return Path("runs") / f"{name}-{stamp}"


def names(text: str) -> list[str]:
    """`a, b` as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


class Display:
    """A run's round, validation accuracy, bytes and time left; nothing if no terminal."""

    def __init__(self, runs: int) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = err_console()
        self._runs, self._started = runs, 0
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._preparing = console.status("preparing ...")
        self._watch: Watch | None = None

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._preparing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._preparing.stop()
        self._progress.stop()

    def watch(self, method: str, seed: int) -> Watch:
        """A watch that shows this run."""
        from fedmend.engines.base import Watch

        self._preparing.stop()
        self._progress.start()
        self._started += 1
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        of = f" ({self._started}/{self._runs})" if self._runs > 1 else ""
        name = f"{method}, seed {seed}{of}"
        tasks: dict[str, Any] = {}

        def on_round(moment: Moment) -> None:
            from fedmend.reports.tables import human_bytes

            figures = f"up {human_bytes(moment.bytes_up)}"
            if moment.validation is not None:
                figures = f"val {moment.validation:.3f}  {figures}"
            if moment.phase not in tasks:
                tasks[moment.phase] = self._progress.add_task(
                    f"{name}: {moment.phase}", total=moment.rounds, figures=""
                )
            self._progress.update(tasks[moment.phase], completed=moment.round, figures=figures)

        self._watch = Watch(on_round, self.say)
        return self._watch

    def say(self, sentence: str) -> None:
        """A remark above the progress line."""
        self._console.print(f"fedmend: {sentence}")

    def stop(self) -> bool:
        """Ask the current run to stop after its round; False if none is running."""
        if self._watch is None or self._watch.stop_requested:
            return False
        self._watch.stop_requested = True
        return True


@contextmanager
def stopping_gently(display: Display, go_on: str) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the run after its round, saved; the second at once.

    go_on: how to go on, in words.
    """
    from fedmend.engines.base import Interrupted

    def on_signal(*_: int | FrameType | None) -> None:
        if display.stop():
            display.say("stopping after this round; once more to stop at once")
        else:
            raise Stopped(f"stopped; the last checkpoint is kept, {go_on}")

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    except Interrupted as stop:
        raise Stopped(f"stopped and saved; {go_on}") from stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Something to look at while a step of unknown length runs; nothing if no terminal."""
    from rich.text import Text

    console = err_console()
    if not console.is_terminal:
        yield
        return
    with console.status(Text(text)):
        yield


def print_lines(rows: list[tuple[str, str]]) -> None:
    """Names and what they mean, a line each."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3))
    for name, text in rows:
        table.add_row(Text(name, style="bold"), text)
    out_console().print(table)


def resume_words(folder: Path) -> str:
    """How to go on with a run that was stopped."""
    return f"go on with the same command and --out {folder} --resume"


def status_line(sentence: str) -> None:
    """A line of a long-running process."""
    stamp = datetime.now().strftime("%H:%M:%S")
    sys.stdout.write(f"{stamp} {sentence}\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """The one JSON object of `--json`."""
    import json

    sys.stdout.write(json.dumps(value) + "\n")
