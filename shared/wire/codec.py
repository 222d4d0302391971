"""Encoding of messages: one msgpack frame `[version, kind, {field: value}]`.

Rules: pure; `decode` survives any bytes and raises nothing but `ProtocolError`; unknown, missing and invalid fields are
refused. `encode` keeps the same bounds, so nothing is sent that every receiver would drop. A frame is at most MAX_FRAME
long, so nothing larger is ever unpacked. Payload frames do not pass here.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import msgpack

from shared.errors import ProtocolError, SettingsError
from shared.wire.bounds import Check, FixedList, Integer, Many, Maybe, OutOfBounds, Record
from shared.wire.message_parts import Part, clipped, escaped
from shared.wire.messages import KINDS, Message, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_FRAME", "VERSION", "VersionError", "decode", "encode", "encode_refusal", "refuse_unsendable"]

#: The protocol's version; see PROTOCOL.md. Raised by every change that an older peer would misread.
VERSION = 12

#: The longest header or control frame: an `Attached` of 4096 workers and as many shapes has 0.3 MB. Hostile bytes
#: unpack to 80 times their length at most (empty lists), so this bounds what a frame can cost.
MAX_FRAME = 2**20


class VersionError(ProtocolError):
    """Message from a peer that speaks another protocol version, `theirs`."""

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
    """Return the message as one frame.

    Raises:
        ValueError: The receiver would drop it: a field is out of its bounds, or the frame is too long.
    """
    fields = _plain_fields(message)
    packed: bytes = msgpack.packb([VERSION, message.kind, fields])
    if len(packed) > MAX_FRAME:
        raise ValueError(f"a {message.kind} of {len(packed)} bytes would be dropped by its receiver")
    return packed


def refuse_unsendable(message: Message, where: str) -> None:
    """Raise SettingsError with the field's name if a field of a message is out of its bounds."""
    try:
        _plain_fields(message)
    except _UnsendableError as error:
        raise SettingsError(
            expected=f"{error.name}: {error.expected}",
            got=clipped(repr(getattr(message, error.name)))[:_SHOWN],
            where=where,
            remedy="Pass a value within these bounds: nobody would take another.",
        ) from None


#: Longest shown part of a value that is out of its bounds.
_SHOWN = 200


class _UnsendableError(ValueError):
    """Field of a message that is out of its bounds."""

    def __init__(self, kind: str, name: str, expected: str, value: object) -> None:
        self.name, self.expected = name, expected
        super().__init__(f"{name} of {kind}: expected {expected}, got {value!r:.{_SHOWN}}")


def _plain_fields(message: Message) -> dict[str, Any]:
    """Return the fields as msgpack takes them; raise _UnsendableError if one is out of the receiver's bounds."""
    fields = {}
    kind: Callable[..., Any] = type(message)
    for name, check, minimum, maximum in _bounds(kind):
        value = getattr(message, name)
        # The fast path: most fields are such integers, and each batch brings a dozen.
        if type(value) is int and minimum <= value <= maximum:
            fields[name] = value
            continue
        try:
            fields[name] = _plain(value, check)
        except OutOfBounds as problem:
            raise _UnsendableError(message.kind, name, str(problem), value) from None
    return fields


@functools.cache
def _bounds(kind: Callable[..., Any]) -> tuple[tuple[str, Check, int, int], ...]:
    """Return the name, check and integer bounds of each field; the bounds are empty (1 to 0) if it takes no integer."""
    none = Integer(1, 0)
    checks = [(field.name, field.metadata["check"]) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    whole = [check if isinstance(check, Integer) else none for _, check in checks]
    return tuple((*check, bounds.minimum, bounds.maximum) for check, bounds in zip(checks, whole, strict=True))


_ATOMS = frozenset((int, bool, float, bytes, type(None)))


def _plain(value: Any, check: Check) -> Any:
    """Return a value as msgpack takes it; raise OutOfBounds if its check refuses it.

    It converts and checks in one pass, because each batch has two messages.
    """
    kind = type(value)
    if kind is str:
        # A name that is not UTF-8 (of a file, say) still has to reach the reader of the error.
        return check(value if value.isascii() else escaped(value))
    if kind in _ATOMS:
        return check(value)
    if type(check) is Maybe:
        return _plain(value, check.check)
    if kind is not tuple:
        return _plain_part(value, check) if isinstance(value, Part) else check(value)
    if type(check) is Many and len(value) <= check.most:
        return [_plain(item, check.check) for item in value]
    if type(check) is FixedList and len(value) == len(check.checks):
        return [_plain(item, of_item) for item, of_item in zip(value, check.checks, strict=True)]
    raise OutOfBounds(str(check))


def _plain_part(part: Part, check: Check) -> list[Any]:
    """Return a record as the list of its fields; raise OutOfBounds if its kind or a field is not as the check says."""
    if type(check) is not Record or type(part) is not check.kind:
        raise OutOfBounds(str(check))
    values = []
    kind: Callable[..., Any] = type(part)
    for name, of_field, minimum, maximum in _bounds(kind):
        value = getattr(part, name)
        is_whole = type(value) is int and minimum <= value <= maximum
        values.append(value if is_whole else _plain(value, of_field))
    return values


def decode(frame: bytes | memoryview) -> Message:
    """Return the message in a frame, every field within its bounds.

    Raise ProtocolError if it is none, or longer than MAX_FRAME: VersionError if the peer speaks another version. A
    Refused is read in every version.
    """
    # Before unpacking: what a frame costs in memory is bounded by its length alone.
    if len(frame) > MAX_FRAME:
        raise _garbage(f"{len(frame)} bytes", f"at most {MAX_FRAME} bytes")
    try:
        envelope = msgpack.unpackb(frame, strict_map_key=True)
    except Exception as error:  # any bytes may come, and msgpack raises many kinds of errors for them
        raise _garbage(type(error).__name__, "a msgpack frame") from None
    return _opened(envelope)


def _opened(envelope: Any) -> Message:
    """Return the message in an unpacked frame; raise ProtocolError or VersionError if it is none of ours.

    A Refused of another version is read as well.
    """
    if type(envelope) is not list or len(envelope) != 3 or type(envelope[0]) is not int:
        raise _garbage("another structure", "[version, kind, fields]")
    version, kind, fields = envelope
    # A Refused has the same form in every version, so that peers of two releases can say that they differ.
    if version != VERSION and kind != Refused.kind:
        raise VersionError(version)
    if type(kind) is not str or kind not in KINDS or type(fields) is not dict:
        got = kind[:40] if type(kind) is str else type(kind).__name__
        raise _garbage(f"kind {got!r}", "a known kind of message and its fields")
    return _checked(KINDS[kind], fields)


def _checked(kind: type[Message], fields: dict[str, Any]) -> Message:
    """Return the message with these fields; raise ProtocolError if one is missing, unknown or out of bounds."""
    checks = kind.checks
    if fields.keys() != checks.keys():
        # Shortened: names come from the peer, and may be as long as a frame.
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
    """Return the answer to a peer of another version: a Refused, the one message that every version can read."""
    return encode(Refused(code="version", expected=error.expected, got=error.got, remedy=error.remedy))
