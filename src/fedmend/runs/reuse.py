"""Runs that are finished elsewhere, taken over in place of being made again.

The papers' tables share rows: FedAvg of one dataset, split and seed is the same run in four of
them. Two runs are the same where method, settings, seed, split (by its hash) and mode of evaluation
are, and the features too; `run.is_same_run` decides. Where a run's folder is gone and its figures
were kept (`reports.figures`), these are taken over: enough for a table.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend.data.partition import Partition
from fedmend.errors import FileFormatError, SettingsError
from fedmend.files import make_folder, replacing, storage_errors
from fedmend.reports import figures
from fedmend.runs import record as records
from fedmend.runs.record import Figures
from fedmend.runs.train import is_same_run

FIGURES = f"figures{figures.SUFFIX}"
"""In a cell's folder, in place of a run: what tables read of one that was made elsewhere."""

Finished = Path | Figures
"""A run's folder, or its figures."""


class FinishedRuns:
    """The runs below some folders; they are looked through when the first one is asked for.

    Whole runs come before figures.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._known: dict[str, list[tuple[Finished, Figures]]] | None = None

    def find(
        self,
        method: str,
        settings: Mapping[str, Any],
        silos: Partition,
        seed: int,
        evaluation: str | None,
    ) -> Finished | None:
        """The run that `train` would make of these arguments, if it is there."""
        for finished, kept in self._on(silos):
            if is_same_run(kept, method, settings, silos, seed, evaluation):
                return finished
        return None

    def baseline(self, what: Mapping[str, Any], silos: Partition) -> Figures | None:
        """The figures of the baseline that `what` describes, if they were kept."""
        for _, kept in self._on(silos):
            if kept.is_of(what):
                return kept
        return None

    def _on(self, silos: Partition) -> list[tuple[Finished, Figures]]:
        if self._known is None:
            self._known = _by_split(self._folders)
        return self._known.get(silos.hash, [])


def check_folders(folders: Iterable[Path]) -> None:
    """Refuse what is no folder or a damaged file before anything runs: it would cost hours."""
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"--reuse {folder}: there is no such folder")
        for path in _files_of_figures(folder):
            figures.read(path)


def _by_split(folders: Sequence[Path]) -> dict[str, list[tuple[Finished, Figures]]]:
    known: dict[str, list[tuple[Finished, Figures]]] = {}
    for folder in folders:
        for path in sorted(folder.rglob(records.RECORD)):
            try:
                record = records.read_record(path)
            except FileFormatError:
                continue  # not a run of ours: then it is made anew
            known.setdefault(str(record.split.hash), []).append((path.parent, record))
    for folder in folders:
        for path in _files_of_figures(folder):
            for kept in figures.read(path).values():
                known.setdefault(str(kept.split.hash), []).append((kept, kept))
    return known


def _files_of_figures(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob(f"*{figures.SUFFIX}")) if figures.is_ours(path)]


def kept_figures(folder: Path) -> Figures | None:
    """What `take_over` put into a cell's folder in place of a run."""
    if not (folder / FIGURES).exists():
        return None
    return next(iter(figures.read(folder / FIGURES).values()), None)


def take_over(finished: Finished, folder: Path) -> None:
    """Give `folder` the files of a finished run; its record comes last, and makes it one.

    Files are linked where that is possible: a run's are never changed, only replaced. Of figures
    there is one file, which is no record: nothing can be predicted with it.
    """
    make_folder(folder)
    if not isinstance(finished, Path):
        figures.write(folder / FIGURES, {folder.name: finished})
        return
    files = [path for path in sorted(finished.rglob("*")) if path.is_file()]
    files = [path for path in files if not (path.is_symlink() or path.name.startswith("."))]
    for path in sorted(files, key=lambda path: path.name == records.RECORD):
        if path.name != records.CHECKPOINT:
            _link_or_copy(path, folder / path.relative_to(finished))
    (folder / records.CHECKPOINT).unlink(missing_ok=True)  # of the same run, begun here


def _link_or_copy(source: Path, target: Path) -> None:
    make_folder(target.parent)
    with storage_errors(target):
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk, or one that knows no links
            with replacing(target) as temporary:
                shutil.copyfile(source, temporary)
