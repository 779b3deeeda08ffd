"""Whether this process was held up: stopped by somebody, or on a machine that was.

Whoever waits for others with a clock takes them for dead when it was itself that did not run.
"""

from __future__ import annotations

import threading
import time

_LOOK_EVERY, _TOO_LONG = 0.5, 3.0
"""Seconds between looks at the clock, and how many may lie between two on a busy machine."""


class Pauses:
    """Counts the seconds for which this process did not run."""

    def __init__(self, closed: threading.Event) -> None:
        self._closed, self._lock = closed, threading.Lock()
        self._last, self._seconds = time.monotonic(), 0.0
        threading.Thread(target=self._look, name="pauses", daemon=True).start()

    def seconds(self) -> float:
        """How long all pauses took so far; right also if one has ended just now."""
        with self._lock:
            now = time.monotonic()
            if now - self._last > _TOO_LONG:
                self._seconds += now - self._last
            self._last = now
            return self._seconds

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_EVERY):
            self.seconds()
