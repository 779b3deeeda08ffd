"""igraph without matplotlib in fedmend's own processes, and as it is in all others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys
from fedmend.data import lean_igraph
if {ours}:
    lean_igraph.process_is_ours()
graph = lean_igraph.igraph().Graph.Ring(5)
before = "matplotlib.pyplot" in sys.modules
again = lean_igraph.igraph()
import matplotlib.pyplot
print(json.dumps([before, graph.ecount(), again.__name__, "matplotlib" in sys.modules]))
"""


@pytest.mark.parametrize("ours", [True, False])
def test_drawing_is_left_out_of_our_own_processes_only(ours: bool) -> None:
    pytest.importorskip("matplotlib")
    found = subprocess.run(
        [sys.executable, "-c", CODE.format(ours=ours)], capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout) == [not ours, 5, "igraph", True]
