"""Other parties' words on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedmend.engines.printable import printable


def test_control_characters_are_replaced_and_lines_joined() -> None:
    assert printable("a \x1b[2Jb\r\nc\x9b\u202e", 80) == "a ?[2Jb c??"
    assert printable("north, Süd – 北", 80) == "north, Süd – 北"
    assert printable(None, 80) == "None"


@given(st.text(), st.integers(0, 50))
def test_it_is_printable_and_short(text: str, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
