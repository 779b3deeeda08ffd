"""What the benchmarks share: where things are, what machine this is, progress, saving."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmend.files import write_json

REPOSITORY = Path(__file__).resolve().parent.parent
HERE = REPOSITORY / "benchmarks"
CACHE = HERE / ".cache"

Row = dict[str, Any]
"""One line of a result: plain values only, so that it can be kept as JSON."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    quick: small sizes, to see that everything works; exploring: other settings or a part of the
    cells. Neither is what the documentation should show, so their results go to the cache.
    """

    quick: bool = False
    data_root: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    datasets: tuple[str, ...] | None = None
    before: Path | None = None

    @property
    def exploring(self) -> bool:
        return bool(self.settings) or self.datasets is not None

    @property
    def results(self) -> Path:
        if self.exploring:
            return CACHE / "explored"
        return CACHE / "quick" if self.quick else HERE / "results"

    @property
    def page(self) -> Path:
        published = REPOSITORY / "docs" / "benchmarks.md"
        aside = self.results / "benchmarks.md"
        return aside if self.quick or self.exploring else published


@dataclass(frozen=True)
class Measured:
    """A benchmark's rows and what they were measured with."""

    rows: list[Row]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()


def data_root(given: Path | None) -> Path | None:
    """The folder with CiteSeer and PubMed: as given, FEDMEND_DATA, or one beside the checkout."""
    if given is not None:
        return given
    variable = os.environ.get("FEDMEND_DATA")
    if variable:
        return Path(variable)
    beside = REPOSITORY.parent / "shared" / "datasets" / "planetoid"
    return beside if beside.is_dir() else None


def root_for(dataset: str, given: Path | None) -> Path | None:
    """Where to look for a dataset; Cora is always the bundled one."""
    return None if dataset == "cora" else data_root(given)


def available(dataset: str, given: Path | None) -> bool:
    """Whether a dataset is on this machine; says so if not. Nothing is downloaded."""
    from fedmend.data.datasets import load
    from fedmend.errors import FedmendError

    try:
        load(dataset, data_root=root_for(dataset, given), download=False)
    except FedmendError as error:
        say(f"{dataset} is left out: {error} (or give --data-root)")
        return False
    return True


def medians_in_turns(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Each function's median seconds; they take turns, so that a busy moment hits all alike."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, taken in zip(functions, seconds, strict=True):
            started = time.perf_counter()
            function()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in seconds]


# The machine


def machine() -> dict[str, Any]:
    """What the figures were measured on; the load tells whether it was quiet."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """The versions that matter for the figures."""
    found = {"python": platform.python_version()}
    for name in ("fedmend", "torch", "numpy", "scipy", "igraph", "torch-geometric"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit that is measured, marked if files have been changed since."""
    try:
        asked = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=10"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def peak_memory_mb() -> float:
    """The most memory this process has held since its program started.

    Not ru_maxrss where it can be avoided: on Linux a process takes over its parent's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) / 1024.0
    from fedmend.runs.record import peak_memory_mb as by_resource

    return by_resource()


# Saving


def save(folder: Path, name: str, command: str, before: Mapping[str, Any], found: Measured) -> None:
    """Write a benchmark's result, completely or not at all."""
    write_json(
        folder / f"{name}.json",
        {
            "benchmark": name,
            "command": command,
            "date": datetime.now(UTC).date().isoformat(),
            "commit": commit(),
            "machine": dict(before),
            "versions": versions(),
            "settings": dict(found.settings),
            "notes": list(found.notes),
            "rows": found.rows,
        },
    )


# Progress


def say(sentence: str) -> None:
    """A line of progress."""
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def working_on(what: str) -> Iterator[None]:
    """Say what takes long, how long it has been at it, and how long it took."""
    started = time.perf_counter()
    done = threading.Event()
    live = sys.stderr.isatty()

    def tick() -> None:
        while not done.wait(1.0 if live else 30.0):
            passed = f"{what}: {time.perf_counter() - started:.0f} s"
            print(f"\r{passed} ...", end="", file=sys.stderr, flush=True) if live else say(passed)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        start = "\r" if live else ""
        say(f"{start}{what}: {time.perf_counter() - started:.1f} s    ")
