"""Messages to bytes and back: one msgpack frame `[version, kind, {field: value}]`.

Rules: pure; `decode` survives any bytes and raises nothing but `ProtocolError`; unknown, missing and problem fields are
refused; a frame is at most MAX_FRAME long, so nothing larger is ever unpacked. Payload frames do not pass here.
"""

from __future__ import annotations

from typing import Any

import msgpack

from shared.errors import ProtocolError
from shared.wire.bounds import OutOfBounds
from shared.wire.messages import KINDS, Message, Refused
from shared.wire.parts import Part

__all__ = ["MAX_FRAME", "VERSION", "VersionError", "decode", "encode", "encode_refusal"]

#: The protocol's version; see PROTOCOL.md. Raised by every change that an older peer would misread.
VERSION = 8

#: The longest header or control frame: an `Attached` of 4096 workers and as many shapes has 0.3 MB. Hostile bytes
#: unpack to 80 times their length at most (empty lists), so this bounds what a frame can cost.
MAX_FRAME = 2**20


class VersionError(ProtocolError):
    """A peer speaks another version, `theirs`."""

    def __init__(self, theirs: int) -> None:
        self.theirs = theirs
        super().__init__(
            expected=f"protocol version {VERSION}",
            got=f"version {theirs}",
            where="message from the other side",
            remedy="Install the same release of stoker on both sides.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return VersionError, (self.theirs,)


def encode(message: Message) -> bytes:
    """One frame."""
    fields = {}
    for name in message.checks:
        value = getattr(message, name)
        fields[name] = value if type(value) in _ATOMS else _plain(value)
    # A name that is not UTF-8 (of a file, say) still has to reach whoever reads the error.
    packed: bytes = msgpack.packb([VERSION, message.kind, fields], unicode_errors="backslashreplace")
    if len(packed) > MAX_FRAME:
        raise ValueError(f"a {message.kind} of {len(packed)} bytes would be dropped by its receiver")
    return packed


_ATOMS = frozenset((int, str, bool))


def _plain(value: object) -> object:
    if isinstance(value, Part):
        value = tuple([getattr(value, name) for name in value.__match_args__])
    if isinstance(value, tuple):
        return [item if type(item) in _ATOMS else _plain(item) for item in value]
    return value


def decode(frame: bytes | memoryview) -> Message:
    """The message in a frame, every field within its bounds."""
    if len(frame) > MAX_FRAME:
        raise _garbage(f"{len(frame)} bytes", f"at most {MAX_FRAME} bytes")
    try:
        envelope = msgpack.unpackb(frame, strict_map_key=True)
    except Exception as error:
        raise _garbage(type(error).__name__, "a msgpack frame") from None
    return _opened(envelope)


def _opened(envelope: Any) -> Message:  # noqa: ANN401 - anything at all
    if type(envelope) is not list or len(envelope) != 3 or type(envelope[0]) is not int:
        raise _garbage("another structure", "[version, kind, fields]")
    version, kind, fields = envelope
    if version != VERSION and kind != Refused.kind:
        raise VersionError(version)
    if type(kind) is not str or kind not in KINDS or type(fields) is not dict:
        got = kind[:40] if type(kind) is str else type(kind).__name__
        raise _garbage(f"kind {got!r}", "a known kind of message and its fields")
    return _checked(KINDS[kind], fields)


def _checked(kind: type[Message], fields: dict[str, Any]) -> Message:
    checks = kind.checks
    if fields.keys() != checks.keys():
        other = sorted(str(name)[:40] for name in fields.keys() ^ checks.keys())[:5]
        raise _garbage(f"other fields {other}", f"the fields of {kind.kind}")
    try:
        return kind(**{name: check(fields[name]) for name, check in checks.items()})
    except OutOfBounds as problem:
        raise _garbage("something else", f"{problem} in {kind.kind}") from None


def _garbage(got: str, expected: str) -> ProtocolError:
    return ProtocolError(
        expected=expected, got=got, where="frame from the other side", remedy="It was dropped; see PROTOCOL.md."
    )


def encode_refusal(error: VersionError) -> bytes:
    """The answer to a peer of another version: the one message that every version can read."""
    return encode(Refused(code="version", expected=error.expected, got=error.got, remedy=error.remedy))
