"""Payloads under keys: sealed with AES-256-GCM, because libzmq's CURVE takes six times as long for them.

The trainer makes a key for each `Hello`, which crosses on an encrypted connection; under it the worker seals each
header and its payload, numbered upwards. Rules: no number is used twice under one key; what was changed, or comes a
second time, or late behind a later one, is not opened; an integrity check of its own makes a digest unnecessary.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["KEY_BYTES", "TAG_BYTES", "Opener", "Sealer"]

KEY_BYTES = 32

#: By so much a sealed message is longer.
TAG_BYTES = 16

_NUMBER_BYTES = 8
_HEADER, _PAYLOAD = b"head", b"load"


def _cipher(key: bytes):  # type: ignore[no-untyped-def] # noqa: ANN202 - imported only with keys
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    return AESGCM(key)


class Sealer:
    """The worker's half, one for each `Hello`; the building thread alone seals payloads, the poll loop headers."""

    def __init__(self, key: bytes) -> None:
        self._cipher = _cipher(key)
        #: Of the last payload that was sealed.
        self.number = 0

    def seal_payload(self, data: memoryview, sealed: NDArray[np.uint8]) -> int:
        """Seal into a buffer that is TAG_BYTES longer; the payload's number."""
        self.number += 1
        self._cipher.encrypt_into(_nonce(_PAYLOAD, self.number), data, None, sealed.data)
        return self.number

    def seal_header(self, number: int, frame: bytes) -> bytes:
        """The sealed header of a payload; to be asked for once."""
        sealed: bytes = self._cipher.encrypt(_nonce(_HEADER, number), frame, None)
        return number.to_bytes(_NUMBER_BYTES, "little") + sealed


class Opener:
    """The trainer's half, with the key that it made."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self._cipher = _cipher(self.key)
        #: Of the last header that was opened.
        self.number = 0

    def open_header(self, frame: bytes) -> bytes | None:
        """What was sealed; None if this is none, or not a new one."""
        number = int.from_bytes(frame[:_NUMBER_BYTES], "little")
        if number <= self.number:
            return None
        opened = self._open(_nonce(_HEADER, number), frame[_NUMBER_BYTES:])
        if opened is not None:
            self.number = number
        return opened

    def _open(self, nonce: bytes, sealed: bytes | memoryview) -> bytes | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            opened: bytes = self._cipher.decrypt(nonce, sealed, None)
        except InvalidTag:
            return None
        return opened

    def open_payload(self, number: int, sealed: memoryview) -> bytes | None:
        """The payload that belongs to the header of this number; None if it is another."""
        return self._open(_nonce(_PAYLOAD, number), sealed)

    def open_payload_into(self, number: int, sealed: memoryview, place: NDArray[np.uint8]) -> bool:
        """The same, written where it belongs; what is there is of no use if it fails."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        if sealed.nbytes != place.nbytes + TAG_BYTES:
            return False
        try:
            self._cipher.decrypt_into(_nonce(_PAYLOAD, number), sealed, None, place.data)
        except InvalidTag:
            return False
        return True


def _nonce(what: bytes, number: int) -> bytes:
    return what + number.to_bytes(_NUMBER_BYTES, "little")
