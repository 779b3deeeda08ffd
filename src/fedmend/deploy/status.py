"""Status lines, how a party's own processes speak to its terminal; and what they inherit."""

from __future__ import annotations

import sys

from fedmend.engines.printable import printable

STATUS = "fedmend| "
"""Marks a status line among whatever else a process prints."""

READY = "ready"
"""The status line of a party that can be worked with."""

START = "FEDMEND_START"
"""In the environment of a party's processes: which start of the party they belong to."""

LONGEST_LINE = 1000
"""Characters of a status line or an error; some of their words come from other parties."""


def tell(sentence: str) -> None:
    """A status line for whoever started this party's process."""
    # One write: several processes of a party share the stream.
    sys.stdout.write(f"{STATUS}{printable(sentence, LONGEST_LINE)}\n")
    sys.stdout.flush()
