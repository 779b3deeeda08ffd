"""What a run remembers of its nodes: written and read; a bad file is one clear error."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fedmend.errors import FileFormatError
from fedmend.runs import node_memory
from fedmend.runs.node_memory import NodeMemory
from tests.tiny import same_weights


def a_memory(nodes: int = 3) -> NodeMemory:
    return NodeMemory(
        {"embeddings": torch.ones(2, 3)},
        {"a|b": {"rows": torch.arange(4.0)}},
        {"a|b": np.array([f"node-{number}" for number in range(nodes)]), "Grüße": np.arange(2)},
    )


def test_everything_comes_back(tmp_path: Path) -> None:
    before = a_memory()
    node_memory.write(tmp_path, before)
    after = node_memory.read(tmp_path)
    assert after is not None
    assert same_weights(after.server, before.server)
    assert same_weights(after.silos["a|b"], before.silos["a|b"])
    assert {name: ids.tolist() for name, ids in after.ids.items()} == {
        "a|b": ["node-0", "node-1", "node-2"],
        "Grüße": ["0", "1"],
    }


def test_ids_do_not_stand_in_the_header(tmp_path: Path) -> None:
    """safetensors refuses a header above 100 MB: ten million ids."""
    node_memory.write(tmp_path, a_memory(10_000))
    (length,) = struct.unpack("<Q", (tmp_path / node_memory.FILE).read_bytes()[:8])
    assert length < 2000
    after = node_memory.read(tmp_path)
    assert after is not None
    assert len(after.ids["a|b"]) == 10_000


@pytest.mark.parametrize("about", [b"[]", b"{", b"\xff", b'{"silos": ["a"], "ids": []}', None])
def test_files_that_hold_something_else(tmp_path: Path, about: bytes | None) -> None:
    path = tmp_path / node_memory.FILE
    named = {} if about is None else {"about": torch.tensor(list(about), dtype=torch.uint8)}
    path.write_bytes(save(named, metadata={"fedmend": node_memory.FORMAT}))
    with pytest.raises(FileFormatError, match="does not hold what a run knows") as caught:
        node_memory.read(tmp_path)
    assert "\n" not in str(caught.value)
    path.write_bytes(save(named, metadata={"fedmend": "fedmend nodes 1"}))
    with pytest.raises(FileFormatError, match="another version of fedmend"):
        node_memory.read(tmp_path)
