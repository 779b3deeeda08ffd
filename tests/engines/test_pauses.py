"""Whether a process notices that it did not run."""

from __future__ import annotations

import threading

import pytest

from fedmend.engines import pauses


def test_a_pause_counts_whoever_looks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("fedmend.engines.pauses.time.monotonic", lambda: now)
    closed = threading.Event()
    closed.set()  # nobody looks but this test
    found = pauses.Pauses(closed)
    now += 2.0
    assert found.seconds() == 0.0
    now += 30.0
    assert found.seconds() == 30.0
    now += 1.0
    assert found.seconds() == 30.0
    now += 4.0
    assert found.seconds() == 34.0
