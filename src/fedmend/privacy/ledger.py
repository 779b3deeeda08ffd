"""The ledger: what left each silo, and what it was told, to the byte.

Every message is counted as it stands on the wire, per phase, round, silo, direction, message type
and *kind* of content. "up" is from a silo to the server, "down" from the server to a silo.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

Direction = Literal["up", "down"]


class Kind(StrEnum):
    """What a field of a message tells, for whoever has to judge whether it may leave."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    EMBEDDINGS = "embeddings"
    PROTOTYPES = "prototypes"
    COUNTS = "counts"
    METRICS = "metrics"
    SHARES = "shares"
    SEALED = "sealed"  # encrypted for another silo: whoever carries it learns its size
    PSEUDONYMS = "pseudonyms"
    CONTROL = "control"
    RAW = "raw"  # features and edges themselves: only a ceiling that no federation can reach
    FRAMING = "framing"  # names, shapes and types: the wire format's own bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    phase: str
    round: int
    silo: str
    direction: Direction
    message: str
    kind: str
    bytes: int


class Ledger:
    """Adds up bytes; never sees the content."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._bytes: Counter[tuple[str, int, str, Direction, str, str]] = Counter()
        self._totals: Counter[tuple[str, Direction]] = Counter()  # by silo: asked every round
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Count a line of another ledger."""
        key = (entry.phase, entry.round, entry.silo, entry.direction)
        self._bytes[(*key, entry.message, entry.kind)] += entry.bytes
        self._totals[(entry.silo, entry.direction)] += entry.bytes

    def count(
        self,
        phase: str,
        round: int,
        silo: str,
        direction: Direction,
        message: str,
        sizes: Mapping[Kind, int],
    ) -> None:
        """Count one message: its bytes by kind."""
        for kind, size in sizes.items():
            if size:
                self._bytes[(phase, round, silo, direction, message, kind.value)] += size
                self._totals[(silo, direction)] += size

    @property
    def entries(self) -> list[Entry]:
        """Every line, sorted: the same run gives the same ledger."""
        return [Entry(*key, size) for key, size in sorted(self._bytes.items())]

    def total(self, direction: Direction | None = None, silo: str | None = None) -> int:
        """Bytes in one direction (or both), of one silo (or all)."""
        return sum(
            size
            for (name, way), size in self._totals.items()
            if direction in (None, way) and silo in (None, name)
        )

    def by(self, *fields: str) -> dict[tuple[Any, ...], int]:
        """Bytes added up over everything but these fields: `ledger.by("silo", "kind")`."""
        sums: Counter[tuple[Any, ...]] = Counter()
        for entry in self.entries:
            sums[tuple(getattr(entry, name) for name in fields)] += entry.bytes
        return dict(sums)

    def left(self) -> dict[str, dict[str, int]]:
        """What left each silo, by kind."""
        sums: dict[str, dict[str, int]] = {}
        for (_, _, silo, way, _, kind), size in sorted(self._bytes.items()):
            if way == "up":
                kinds = sums.setdefault(silo, {})
                kinds[kind] = kinds.get(kind, 0) + size
        return dict(sorted(sums.items()))

    def to_csv(self) -> str:
        """All lines as CSV with a header."""
        out = io.StringIO()
        writer = csv.DictWriter(out, list(Entry.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(entry) for entry in self.entries)
        return out.getvalue()

    @staticmethod
    def from_csv(text: str) -> Ledger:
        """The ledger that `to_csv` wrote."""
        rows = csv.DictReader(io.StringIO(text))
        return Ledger(
            Entry(
                row["phase"],
                int(row["round"]),
                row["silo"],
                "up" if row["direction"] == "up" else "down",
                row["message"],
                row["kind"],
                int(row["bytes"]),
            )
            for row in rows
        )
