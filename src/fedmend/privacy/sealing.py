"""Sealing bytes from one silo to another, so that the server that carries them cannot read them.

Each silo has an X25519 key pair for the run, in memory only. Two silos derive a key per direction
(HKDF over their shared secret and both public keys) and seal with ChaCha20-Poly1305; nonces count
up, and what a box is for (round, pass, way) is bound to it, so that it opens nowhere else.

Public keys come through the server: it is assumed to carry them unchanged (semi-honest). Against a
server that would swap them, the silos must compare `fingerprint`s by another way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedmend.errors import FederationError, SettingsError

_NONCE = 12
KEY_BYTES = 32


@contextmanager
def cryptography_needed() -> Iterator[None]:
    """Turn a missing package into one line that says what to install."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(
            "secret sharing needs the package cryptography; install it with: "
            "pip install 'fedmend[privacy]'"
        ) from error


class Sealing:
    """One silo's keys and what it shares with each of the others."""

    def __init__(self) -> None:
        with cryptography_needed():
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        self._private = X25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()
        self._channels: dict[bytes, tuple[Any, Any]] = {}
        self._sent: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"Sealing({self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """Of the public key, for people to compare."""
        return hashlib.sha256(self.public).hexdigest()[:16]

    def _channel(self, peer: bytes) -> tuple[Any, Any]:
        """The ciphers towards a peer and from it."""
        if peer not in self._channels:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
            from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            try:
                secret = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
            except ValueError as error:  # a key of low order, or of another length
                raise FederationError("a silo's public key is not valid") from error

            def cipher(sender: bytes, receiver: bytes) -> Any:
                info = b"fedmend sealing 1" + sender + receiver
                key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)
                return ChaCha20Poly1305(key)

            self._channels[peer] = cipher(self.public, peer), cipher(peer, self.public)
        return self._channels[peer]

    def seal(self, data: bytes, peer: bytes, purpose: str) -> bytes:
        """`data` for the silo with this public key."""
        number = self._sent[peer] = self._sent.get(peer, 0) + 1
        nonce = number.to_bytes(_NONCE, "little")
        sealed: bytes = self._channel(peer)[0].encrypt(nonce, data, purpose.encode())
        return nonce + sealed

    def open(self, sealed: bytes, peer: bytes, purpose: str) -> bytes:
        """What a peer sealed for this silo and this purpose; an error if it is anything else."""
        from cryptography.exceptions import InvalidTag

        try:
            opened: bytes = self._channel(peer)[1].decrypt(
                sealed[:_NONCE], sealed[_NONCE:], purpose.encode()
            )
        except (InvalidTag, ValueError) as error:
            raise FederationError(
                f"a sealed message ({purpose}) does not open: it was changed, or is not for this"
            ) from error
        return opened
