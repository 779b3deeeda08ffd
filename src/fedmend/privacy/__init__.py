"""What leaves a silo, and what can be proved about it."""

from __future__ import annotations

from fedmend.privacy.accountants.nfdp import nfdp

__all__ = ["nfdp"]
