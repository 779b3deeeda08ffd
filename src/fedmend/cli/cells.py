"""Showing and stopping the runs of a study or a suite."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedmend.cli import common

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedmend.engines.base import Moment
    from fedmend.runs.cells import Cell, Telling
    from fedmend.runs.record import Figures


class CellsDisplay:
    """Cells done, time left, what runs now and the table so far; one line each if no terminal."""

    def __init__(self, cells: int, table: Callable[[dict[str, Any]], RenderableType]) -> None:
        from rich.live import Live

        self._console = common.err_console()
        self._cells, self._table = cells, table
        self._records: dict[str, Any] = {}
        self._now: dict[str, tuple[float, Moment | None]] = {}
        self._done, self._failed = 0, 0
        self._times: list[float] = []
        self._started = time.monotonic()
        self._said: set[str] = set()
        self._live = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> CellsDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._failed:
            self.say(f"{self._failed} of {self._cells} cells failed")

    def telling(self) -> Telling:
        """What the cells' runner is to call."""
        from fedmend.runs.cells import Telling

        return Telling(self._start, self._round, self._finish, self._fail, self._say)

    def _start(self, cell: Cell) -> None:
        self._now[cell.name] = (time.monotonic(), None)

    def _round(self, cell: Cell, moment: Moment) -> None:
        since = self._now[cell.name][0]
        self._now[cell.name] = (since, moment)

    def _finish(self, cell: Cell, record: Figures) -> None:
        since, moment = self._now.pop(cell.name)
        self._done += 1
        if moment is not None:  # one that was there already had no round
            self._times.append(time.monotonic() - since)
        self._records[cell.name] = record

    def _fail(self, cell: Cell, why: str) -> None:
        self._now.pop(cell.name)
        self._done += 1
        self._failed += 1
        reason = why.replace(cell.name, "")  # whose folder it is makes no new reason
        if reason in self._said:
            return  # a dataset that is not here, say: one line, not one per cell
        self._said.add(reason)
        self._console.print(f"fedmend: {cell.name} failed: {why}", soft_wrap=True)

    def _say(self, cell: Cell, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._console.print(f"fedmend: {cell.name}: {sentence}", soft_wrap=True)

    def say(self, sentence: str) -> None:
        self._console.print(f"fedmend: {sentence}", soft_wrap=True)

    def _left(self) -> str:
        if not self._times:
            return ""
        each = sum(self._times) / len(self._times)
        left = each * (self._cells - self._done) / max(len(self._now), 1)
        return f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left"

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = []
        if self._records:
            lines.append(self._table(dict(self._records)))
        failed = f", {self._failed} failed" if self._failed else ""
        spent = time.monotonic() - self._started
        lines.append(
            Text(
                f"{self._done} of {self._cells} cells done{failed}, {spent:.0f} s{self._left()}",
                style="bold",
            )
        )
        for name, (_, moment) in sorted(self._now.items()):
            where = "preparing"
            if moment is not None:
                where = f"{moment.phase} {moment.round}/{moment.rounds}"
                if moment.validation is not None:
                    where += f", val {moment.validation:.3f}"
            lines.append(Text(f"  {name}: {where}", style="dim"))
        return Group(*lines)


@contextmanager
def stopping_gently(display: CellsDisplay, telling: Telling, out: Path) -> Iterator[None]:
    """The first Ctrl-C ends the running cells after their round, saved; the second at once."""
    from fedmend.engines.base import Interrupted

    go_on = f"go on with the same command and --out {out}"

    def on_signal(*_: int | FrameType | None) -> None:
        if telling.stop_requested:
            raise common.Stopped(f"stopped; finished cells and checkpoints are kept, {go_on}")
        telling.stop_requested = True
        display.say("stopping after the rounds that run; once more to stop at once")

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    except Interrupted as stop:
        raise common.Stopped(f"stopped and saved; {go_on}") from stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
