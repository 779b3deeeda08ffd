"""What leaves a silo, and what can be proved about it."""

from __future__ import annotations

from fedmend.privacy.edge_ldp import nfdp

__all__ = ["nfdp"]
