"""What others asked this party for, and what became of it: in the terminal and in `audit.txt`.

Light, and usable by every process of a party: each line is one write to the end of the file.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fedmend.deploy.status import tell
from fedmend.engines.printable import printable

AUDIT = "audit.txt"
"""In the party's state folder, for its owner alone."""

_MOST_BYTES = 10 * 2**20
_MOST_DIFFERENT = 1000
_LONGEST_LINE = 500


class Audit:
    """A party's record of requests.

    What is asked again and again is written down the first, the tenth, the hundredth time: whoever
    floods a party with requests fills neither its disk nor its terminal.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / AUDIT
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()

    def granted(self, who: str, what: str) -> None:
        """Somebody got what it asked for."""
        self._write(f"granted {who}: {what}")

    def refused(self, who: str, what: str) -> bool:
        """Somebody asked for what is none of its business; whether it was written down."""
        line = f"{who}: {what}"
        with self._lock:
            if line not in self._times and len(self._times) >= _MOST_DIFFERENT:
                line = "many: more different requests than are kept apart"
            self._times[line] += 1
            times = self._times[line]
        if str(times).strip("0") != "1":
            return False
        again = f" ({times} times)" if times > 1 else ""
        self._write(f"refused {line}{again}")
        tell(f"refused {printable(line, _LONGEST_LINE)}{again}")
        return True

    def _write(self, line: str) -> None:
        stamp = datetime.now().isoformat(timespec="seconds")
        text = f"{stamp} {printable(line, _LONGEST_LINE)}\n"
        # A full disk must not open a door; that it is full is said where the party's work stops.
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > _MOST_BYTES:
                self._path.replace(self._path.with_suffix(".1.txt"))
            rights = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            file = os.open(self._path, rights, 0o600)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)
