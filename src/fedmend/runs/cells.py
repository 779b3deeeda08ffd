"""Many runs as one piece of work: the cells of a study's or a suite's table.

A cell is one method (or baseline) with one seed on one split. Its folder is a run folder, so that
finished cells are skipped and unfinished ones go on from their checkpoints when the work is started
again. A cell that fails is told and does not stop the others. With several jobs the cells run in
processes of their own, which are kept from cell to cell: importing torch anew for each would cost
seconds.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend import methods
from fedmend.data.lean_igraph import process_is_ours
from fedmend.data.partition import Partition
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.errors import FedmendError, FileFormatError, SettingsError, UnknownNameError
from fedmend.evaluation.baselines import BASELINES, run_baseline
from fedmend.evaluation.evaluate import MODES, check_mode
from fedmend.files import make_folder, plain, storage_errors, write_json
from fedmend.runs import record as records
from fedmend.runs.plan import Source
from fedmend.runs.record import Data, Figures, Measured, Sent, Split
from fedmend.runs.reuse import FinishedRuns, check_folders, kept_figures, take_over
from fedmend.runs.train import choose, configure, is_same_run, train

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext, SpawnProcess
    from multiprocessing.synchronize import Event

BASELINE = "baseline.json"

_TELL_EVERY = 0.1
"""Seconds between two words of a process about its rounds."""


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    name: its folder within the table's; unique there.
    """

    name: str
    method: str
    source: Source
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluation: str | None = None


@dataclass(frozen=True)
class Engine:
    """How cells are run; none of it changes a result but `threads`."""

    jobs: int = 1
    workers: int = 0
    threads: int = 1
    checkpoint_every: int = 10
    reuse: tuple[Path, ...] = ()
    """Folders whose finished runs, or kept figures, are taken over where a cell is the same run."""


def _nothing(*_: Any) -> None:
    pass


@dataclass
class Telling:
    """What is told while cells run, and the wish to stop."""

    started: Callable[[Cell], None] = _nothing
    round: Callable[[Cell, Moment], None] = _nothing
    finished: Callable[[Cell, Figures], None] = _nothing
    failed: Callable[[Cell, str], None] = _nothing
    said: Callable[[Cell, str], None] = _nothing
    stop_requested: bool = False


@dataclass
class Outcome:
    """Records and failures, by the cells' names."""

    records: dict[str, Figures] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_cells(
    cells: Sequence[Cell], out: Path, engine: Engine, telling: Telling | None = None
) -> Outcome:
    """Run what is not finished yet; raises `Interrupted` when asked to stop, with all saved."""
    telling = telling or Telling()
    if engine.jobs < 1:
        raise SettingsError(f"jobs={engine.jobs} is not allowed: at least 1")
    check_cells(cells)
    check_folders(engine.reuse)
    check_out(cells, out)
    if engine.jobs == 1 or len(cells) < 2:
        return _one_after_another(cells, out, engine, telling)
    return _side_by_side(cells, out, engine, telling)


def check_cells(cells: Iterable[Cell]) -> None:
    """Refuse what can be seen to be wrong without loading data, before anything runs."""
    seen: set[str] = set()
    cuts: set[tuple[str, int | None, str | None, str]] = set()
    for cell in cells:
        if cell.name in seen:
            raise SettingsError(f"two cells are called {cell.name}")
        seen.add(cell.name)
        source = cell.source
        cut = (source.dataset, source.silos, source.split, source.ratio)
        if cut not in cuts:
            source.check()
            cuts.add(cut)
        if cell.evaluation is not None and cell.evaluation not in MODES:
            raise UnknownNameError("evaluation mode", cell.evaluation, MODES)
        if cell.method not in BASELINES:
            configure(cell.method, cell.settings)
        elif cell.settings:
            raise SettingsError(f"{cell.method} has no settings, got {', '.join(cell.settings)}")


def check_out(cells: Iterable[Cell], out: Path) -> None:
    """Refuse a folder that cannot be written or holds other runs in the cells' places."""
    with storage_errors(out):  # a name that is too long, say
        is_file = out.exists() and not out.is_dir()
    if is_file:
        raise SettingsError(f"--out {out} is a file: choose a folder")
    kept = _Kept(Engine())
    for cell in cells:
        if cell.method not in BASELINES and _holds_another_run(cell, out / cell.name, kept):
            raise _another_run(out / cell.name)
    make_folder(out)


def _holds_another_run(cell: Cell, folder: Path, kept: _Kept) -> bool:
    """Whether a finished run there is not this cell's; data is loaded only where in doubt."""
    try:
        record = records.read_record(folder / records.RECORD)
    except FileFormatError:
        return False  # there is none, or none that can be read: the cell itself tells
    if is_of_other_settings(cell, record):
        return True
    source = cell.source
    cut = {
        **source.as_dict(),
        "seed": cell.seed if source.split_seed is None else source.split_seed,
    }
    if cut == {**(record.source or {}), "seed": record.split.seed}:
        return False
    # Other words for the data may mean the same silos: a run taken over from another table.
    try:
        silos = kept.split(source).partition(cell.seed)
    except FedmendError:
        return False  # the cell itself will fail, and stop no other
    run = (cell.method, cell.settings, silos, cell.seed, cell.evaluation)
    return not is_same_run(record, *run)


def is_of_other_settings(cell: Cell, run: Figures) -> bool:
    """Whether a record cannot be this cell's, as far as that shows without loading its data."""
    wanted: dict[str, Any] = {"method": cell.method, "settings": {}, "seed": cell.seed}
    if cell.method not in BASELINES:
        chosen, config = choose(cell.method, cell.settings)
        wanted |= {"method": chosen.name, "settings": asdict(config)}
    if cell.evaluation is not None:
        wanted["evaluation"] = cell.evaluation
    return not run.is_of(wanted)


def _another_run(folder: Path) -> SettingsError:
    return SettingsError(
        f"{folder} holds a run of other settings or another split; choose another --out, or "
        "remove that folder"
    )


def known_settings(method: str) -> set[str]:
    """The names of the settings a method takes."""
    return {each.name for each in fields(methods.find(method).settings_type)}


class _Kept:
    """What a process keeps from cell to cell.

    The split of the cell before, because the next one often has the same, and the finished runs
    elsewhere that may be taken over.
    """

    def __init__(self, engine: Engine) -> None:
        self._source: Source | None = None
        self.finished = FinishedRuns(engine.reuse)

    def split(self, source: Source) -> Source:
        if self._source is None or self._source != source:
            self._source = replace(source)  # a copy: what it keeps is dropped with it
        return self._source


def run_cell(cell: Cell, out: Path, kept: _Kept, engine: Engine, watch: Watch) -> Figures:
    """One cell's record: of the finished run in its folder or elsewhere, or of one made now."""
    folder = out / cell.name
    silos = kept.split(cell.source).partition(cell.seed)
    if cell.method in BASELINES:
        return _baseline(cell, silos, folder, kept.finished)
    wanted = (cell.method, cell.settings, silos, cell.seed, cell.evaluation)
    if not (folder / records.RECORD).exists():
        elsewhere = kept.finished.find(*wanted)
        if elsewhere is not None:
            take_over(elsewhere, folder)
    if (folder / records.RECORD).exists():
        record = records.read_record(folder / records.RECORD)
        if is_same_run(record, *wanted):
            return record
        raise _another_run(folder)
    kept_of_it = kept_figures(folder)
    if kept_of_it is not None and is_same_run(kept_of_it, *wanted):
        return kept_of_it
    train(
        cell.method,
        silos,
        seed=cell.seed,
        evaluation=cell.evaluation,
        out=folder,
        resume=True,
        workers=engine.workers,
        threads=engine.threads,
        checkpoint_every=engine.checkpoint_every,
        watch=watch,
        dataset=cell.source.dataset,
        source=cell.source.as_dict(),
        **cell.settings,
    )
    made = records.read_record(folder / records.RECORD)  # as it will be found the next time
    # Nobody goes on from a finished cell, and those of a paper's table would keep gigabytes.
    (folder / records.CHECKPOINT).unlink(missing_ok=True)
    return made


def _baseline(cell: Cell, silos: Partition, folder: Path, finished: FinishedRuns) -> Figures:
    """A baseline's record: of a run's, what tables read. It is no run: nothing can be predicted."""
    started = time.perf_counter()
    mode = cell.evaluation or ("own-subgraph" if silos.whole is None else "global-graph")
    check_mode(mode, silos, predict_together=True)  # it uses no edges, between silos or within
    what: dict[str, Any] = {
        "method": cell.method,
        "settings": {},
        "seed": cell.seed,
        "evaluation": mode,
        "split": Split(how=silos.how, seed=silos.seed, hash=silos.hash),
        "content_hash": silos.content_hash,
    }
    path = folder / BASELINE
    if path.exists():
        kept = records.read_figures(path)
        if kept.is_of(what):
            return kept
    elsewhere = finished.baseline(what, silos)
    if elsewhere is not None:
        return elsewhere
    scores = run_baseline(cell.method, silos, mode)
    made = Figures(
        **what,
        dataset=cell.source.dataset,
        data=Data(**vars(silos.statistics())),
        pooled=True,
        result=scores,
        bytes=Sent(up=0, down=0),
        measured=Measured(seconds=time.perf_counter() - started),
    )
    write_json(path, {"format": "fedmend baseline 1", **plain(made)})
    return records.read_figures(path)


def why(error: Exception) -> str:
    """An error in one line; what is not the input's fault is named by its type."""
    words = " ".join(str(error).split())
    return words if isinstance(error, FedmendError) else f"{type(error).__name__}: {words}"


def _one_after_another(
    cells: Sequence[Cell], out: Path, engine: Engine, telling: Telling
) -> Outcome:
    outcome, kept = Outcome(), _Kept(engine)
    for cell in cells:
        if telling.stop_requested:
            raise Interrupted
        telling.started(cell)
        try:
            record = run_cell(cell, out, kept, engine, _watch(cell, telling))
        except Exception as error:  # whatever it is, the other cells go on
            if telling.stop_requested:
                raise  # somebody who had no patience for the round's end
            outcome.failures[cell.name] = why(error)
            telling.failed(cell, why(error))
            continue
        outcome.records[cell.name] = record
        telling.finished(cell, record)
    return outcome


def _watch(cell: Cell, telling: Telling) -> Watch:
    def on_round(moment: Moment) -> None:
        telling.round(cell, moment)
        watch.stop_requested = telling.stop_requested

    watch = Watch(on_round, lambda sentence: telling.said(cell, sentence))
    return watch


# Several processes: the parent hands out cells and listens, a process runs one after another.


def _work(pipe: Connection, stop: Event, out: Path, engine: Engine) -> None:
    """A process's whole life: cells come in, words and records go out."""
    # The terminal's Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    process_is_ours()
    kept = _Kept(engine)
    try:
        while (cell := pipe.recv()) is not None:
            pipe.send(_result(cell, pipe, stop, out, engine, kept))
    except (EOFError, BrokenPipeError):
        return  # the parent is gone


def _result(
    cell: Cell, pipe: Connection, stop: Event, out: Path, engine: Engine, kept: _Kept
) -> tuple[str, Any]:
    watch = Watch(on_sentence=lambda sentence: pipe.send(("said", sentence)))
    told = 0.0

    def on_round(moment: Moment) -> None:
        nonlocal told
        watch.stop_requested = stop.is_set()
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            pipe.send(("round", moment))

    watch.on_round = on_round
    try:
        return "finished", run_cell(cell, out, kept, engine, watch)
    except Interrupted:
        return "stopped", None
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, the other cells go on
        return "failed", why(error)


class _Worker:
    """One process and the cell it has."""

    def __init__(self, context: SpawnContext, stop: Event, out: Path, engine: Engine) -> None:
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_work, args=(theirs, stop, out, engine), daemon=True
        )
        self.process.start()
        theirs.close()
        self.cell: Cell | None = None

    def give(self, cell: Cell) -> None:
        self.cell = cell
        self.pipe.send(cell)

    def end(self) -> None:
        """Let it end by itself, or end it: an unfinished cell has its checkpoint."""
        with suppress(OSError):  # it may be gone already
            if self.cell is None:
                self.pipe.send(None)
                self.process.join(5)
        self.process.terminate()
        self.process.join(5)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _side_by_side(cells: Sequence[Cell], out: Path, engine: Engine, telling: Telling) -> Outcome:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    stop = context.Event()
    outcome, waiting = Outcome(), list(cells)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in workers):
            if telling.stop_requested:
                stop.set()
                waiting.clear()
            idle = [worker for worker in workers if worker.cell is None]
            while waiting and (idle or len(workers) < engine.jobs):
                if idle:
                    worker = idle.pop()
                else:
                    worker = _Worker(context, stop, out, engine)
                    workers.append(worker)
                cell = waiting.pop(0)
                telling.started(cell)
                with suppress(OSError):  # where it has died, its pipe says so below
                    worker.give(cell)
            busy = {worker.pipe: worker for worker in workers if worker.cell is not None}
            for pipe in wait(list(busy), timeout=0.2):
                worker = busy[pipe]  # type: ignore[index]  # what comes back is what was given
                if not _listen(worker, outcome, telling):
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.end()
    if telling.stop_requested and len(outcome.records) + len(outcome.failures) < len(cells):
        raise Interrupted
    return outcome


def _listen(worker: _Worker, outcome: Outcome, telling: Telling) -> bool:
    """Take one word of a process; False if it has died."""
    cell = worker.cell
    if cell is None:
        return True
    try:
        word, value = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        words = f"its process ended with code {worker.process.exitcode}; was memory short?"
        outcome.failures[cell.name] = words
        telling.failed(cell, words)
        worker.end()
        return False
    match word:
        case "round":
            telling.round(cell, value)
        case "said":
            telling.said(cell, value)
        case "finished":
            worker.cell = None
            outcome.records[cell.name] = value
            telling.finished(cell, value)
        case "failed":
            worker.cell = None
            outcome.failures[cell.name] = value
            telling.failed(cell, value)
        case _:  # stopped: saved, and to be gone on with another time
            worker.cell = None
    return True
