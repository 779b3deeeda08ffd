"""Nobody changes what a method gives without saying so: every registered one, to the bit.

On a processor that rounds differently from the one the figures were written on, weights are
compared by their norm and figures within a few nodes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedmend.engines.base import Interrupted, Moment, Watch
from tests.golden.every_method import FILE, cases, figures, give, machine

KNOWN: dict[str, Any] = json.loads(FILE.read_text())
SAME_BITS = machine() == KNOWN["machine"]


def compare(found: dict[str, Any], known: dict[str, Any]) -> None:
    if SAME_BITS:
        assert found == known
        return
    assert found["messages"] == known["messages"]
    assert found["norms"] == pytest.approx(known["norms"], rel=0.02)
    assert found["bytes"] == pytest.approx(known["bytes"], rel=0.01)
    assert found["accuracy"] == pytest.approx(known["accuracy"], abs=0.15)


def test_every_method_has_its_figures() -> None:
    assert sorted(KNOWN["cases"]) == sorted(cases())


@pytest.mark.parametrize("case", cases())
def test_gives_what_it_always_gave(case: str) -> None:
    compare(figures(give(case)), KNOWN["cases"][case])


@pytest.mark.parametrize("case", [case for case in cases() if case.startswith("csbm")])
def test_gives_the_same_after_an_interruption(case: str, tmp_path: Path) -> None:
    def stop(moment: Moment) -> None:
        watch.stop_requested = moment.phase == "training" and moment.round == 2

    watch = Watch(on_round=stop)
    with pytest.raises(Interrupted):
        give(case, out=tmp_path, checkpoint_every=1, watch=watch)
    compare(
        figures(give(case, out=tmp_path, checkpoint_every=1, resume=True)), KNOWN["cases"][case]
    )
