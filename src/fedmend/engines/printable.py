"""Other parties' words, made fit for a terminal; light, for processes that never need torch."""

from __future__ import annotations


def printable(text: object, most: int) -> str:
    """A text as one line of at most `most` characters, without escape sequences and the like."""
    words = " ".join(str(text).split())[:most]
    return "".join(each if each.isprintable() else "?" for each in words)
