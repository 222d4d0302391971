"""Payloads under keys: sealed with AES-256-GCM, because libzmq's CURVE takes six times as long for them.

The trainer makes a key for each `Hello`, which crosses on an encrypted connection; with it the worker seals each header
and its payload, under rising numbers.

Rules: no number is used twice with one key; a message that was changed, repeated or overtaken by a later one is not
opened; since sealing protects integrity, sealed payloads need no checksum.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["KEY_BYTES", "TAG_BYTES", "Opener", "Sealer"]

KEY_BYTES = 32

#: Length of the authentication tag that sealing appends.
TAG_BYTES = 16

_NUMBER_BYTES = 8
_HEADER, _PAYLOAD = b"head", b"load"


def _cipher(key: bytes):  # type: ignore[no-untyped-def] # noqa: ANN202 - imported only with keys
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


# 10 MB take 1 ms on either side, instead of 5 to 6 ms with CURVE.
class Sealer:
    """Worker's half, one for each `Hello`; only the building thread seals payloads, only the poll loop headers.

    Making it raises ImportError without the library cryptography.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = _cipher(key)
        #: Number of the last sealed payload; GCM is broken if a nonce repeats, so it only rises.
        self.number = 0

    def seal_payload(self, data: memoryview, sealed: NDArray[np.uint8]) -> int:
        """Seal into a buffer that is TAG_BYTES longer than the data; return the payload's number, counted from 1."""
        # Raised before sealing, and also if that fails: a number that may have been used once is never used again.
        self.number += 1
        self._cipher.encrypt_into(_nonce(_PAYLOAD, self.number), data, None, sealed.data)
        return self.number

    def seal_header(self, number: int, frame: bytes) -> bytes:
        """Return the sealed header of the payload with this number; call it only once for each number."""
        sealed: bytes = self._cipher.encrypt(_nonce(_HEADER, number), frame, None)
        return number.to_bytes(_NUMBER_BYTES, "little") + sealed


class Opener:
    """Trainer's half, with the key that it made; making it raises ImportError without the library cryptography."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self._cipher = _cipher(self.key)
        #: Number of the last opened header; headers with it or a lower one are replays, or were overtaken.
        self.number = 0

    def open_header(self, frame: bytes) -> bytes | None:
        """Return the opened header; None if it is not authentic, or not newer than the last one."""
        # The number is not encrypted, but part of the nonce: with a changed one the header does not open.
        number = int.from_bytes(frame[:_NUMBER_BYTES], "little")
        if number <= self.number:
            return None
        opened = self._open(_nonce(_HEADER, number), frame[_NUMBER_BYTES:])
        if opened is not None:  # else anyone could make us refuse all headers to come, by one with a high number
            self.number = number
        return opened

    def _open(self, nonce: bytes, sealed: bytes | memoryview) -> bytes | None:
        """Return the opened bytes, or None if they are not authentic."""
        from cryptography.exceptions import InvalidTag

        try:
            opened: bytes = self._cipher.decrypt(nonce, sealed, None)
        except InvalidTag:
            return None
        return opened

    def open_payload(self, number: int, sealed: memoryview) -> bytes | None:
        """Return the opened payload of the header with this number; None if it is not authentic."""
        return self._open(_nonce(_PAYLOAD, number), sealed)

    def open_payload_into(self, number: int, sealed: memoryview, place: NDArray[np.uint8]) -> bool:
        """Open the payload of the header with this number into `place`; return False if it is not authentic.

        Return False as well, before anything is written, unless it is TAG_BYTES longer than `place`; otherwise the
        bytes written there are useless in that case.
        """
        from cryptography.exceptions import InvalidTag

        if sealed.nbytes != place.nbytes + TAG_BYTES:
            return False
        try:
            self._cipher.decrypt_into(_nonce(_PAYLOAD, number), sealed, None, place.data)
        except InvalidTag:
            return False
        return True


def _nonce(kind: bytes, number: int) -> bytes:
    # Under one key headers and payloads share numbers, so the first bytes keep their nonces apart.
    return kind + number.to_bytes(_NUMBER_BYTES, "little")
