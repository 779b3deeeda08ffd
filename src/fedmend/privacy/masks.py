"""Masks: uniform field elements from AES in counter mode, under a key nobody else has.

A generator takes its key from the operating system and is never saved, so no two runs, and no
run that was interrupted and resumed, use a mask twice.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING

import numpy as np

from fedmend.errors import SettingsError
from fedmend.privacy.field import PRIME
from fedmend.privacy.sealing import cryptography_needed

if TYPE_CHECKING:
    from fedmend.privacy.field import Elements

_PRIME = np.uint64(PRIME)


class MaskGenerator:
    """Draws masks. `seed` is for tests alone: whoever knows it can take every mask off."""

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and "PYTEST_CURRENT_TEST" not in os.environ:
            raise SettingsError(
                "seeded masks hide nothing and exist for fedmend's own tests only: "
                "leave the seed out"
            )
        with cryptography_needed():
            from cryptography.hazmat.primitives.ciphers import Cipher
            from cryptography.hazmat.primitives.ciphers.algorithms import AES256
            from cryptography.hazmat.primitives.ciphers.modes import CTR
        key = os.urandom(32) if seed is None else hashlib.sha256(f"{seed}".encode()).digest()
        # Every key is used by one generator alone, so the counter may start at zero.
        self._cipher = Cipher(AES256(key), CTR(bytes(16))).encryptor()

    def _words(self, count: int) -> Elements:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype=np.uint64).copy()

    def elements(self, *shape: int) -> Elements:
        """Uniform elements: 61 bits each, and drawn again where they are the prime itself."""
        drawn = self._words(math.prod(shape)) & _PRIME
        again = np.flatnonzero(drawn == _PRIME)
        while len(again):
            drawn[again] = self._words(len(again)) & _PRIME
            again = again[drawn[again] == _PRIME]
        return drawn.reshape(shape)
