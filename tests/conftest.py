"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # on graphs this small, a second thread costs ten times what it gives

settings.register_profile("fedmend", deadline=None)  # a busy machine is no failure
settings.load_profile("fedmend")


@pytest.fixture(scope="session")
def planetoid_root() -> Path:
    """The folder of the genuine Planetoid files; the test is skipped where there is none."""
    beside = Path(__file__).parents[2] / "shared/datasets/planetoid"
    root = Path(os.environ.get("FEDMEND_TEST_PLANETOID", beside))
    if not (root / "ind.cora.graph").is_file():
        pytest.skip(f"no Planetoid files in {root}; FEDMEND_TEST_PLANETOID may name their folder")
    return root
