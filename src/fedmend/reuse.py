"""Runs that are finished elsewhere, taken over in place of being made again.

The papers' tables share rows: FedAvg of one dataset, split and seed is the same run in four of
them. Two runs are the same where method, settings, seed, split (by its hash) and mode of evaluation
are, and the features too; `run.is_same_run` decides.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend.data.partition import Partition
from fedmend.errors import FileFormatError, SettingsError
from fedmend.files import make_folder, read_json, replacing, storage_errors
from fedmend.reports import record as records
from fedmend.run import is_same_run

_IDENTITY = ("method", "settings", "seed", "evaluation", "split", "content_hash")


class FinishedRuns:
    """The runs below some folders; they are looked through when the first one is asked for."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._known: dict[str, list[tuple[Path, dict[str, Any]]]] | None = None

    def find(
        self,
        method: str,
        settings: Mapping[str, Any],
        silos: Partition,
        seed: int,
        evaluation: str | None,
    ) -> Path | None:
        """The folder of the run that `train` would make of these arguments, if it is there."""
        if self._known is None:
            self._known = _by_split(self._folders)
        for folder, kept in self._known.get(silos.hash, []):
            if is_same_run(kept, method, settings, silos, seed, evaluation):
                return folder
        return None


def check_folders(folders: Iterable[Path]) -> None:
    """Refuse what is no folder before anything runs: a wrong name would cost hours."""
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"--reuse {folder}: there is no such folder")


def _by_split(folders: Iterable[Path]) -> dict[str, list[tuple[Path, dict[str, Any]]]]:
    known: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for folder in folders:
        for path in sorted(folder.rglob(records.RECORD)):
            try:
                record = read_json(path)
                kept = {key: record[key] for key in _IDENTITY}
                known.setdefault(str(kept["split"]["hash"]), []).append((path.parent, kept))
            except (FileFormatError, KeyError, TypeError):
                continue  # not a run of ours: then it is made anew
    return known


def take_over(finished: Path, folder: Path) -> None:
    """Give `folder` the files of a finished run; its record comes last, and makes it one.

    Files are linked where that is possible: a run's are never changed, only replaced.
    """
    make_folder(folder)
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
