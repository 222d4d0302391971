"""Messages that refuse, and the error that one becomes at its receiver.

Rules: pure; each says what was expected, what came and what to do, cut to what a message carries. Why something is
refused is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import DataError, RefusedError, StokerError, WorldChangedError
from shared.wire import messages as m
from shared.wire.parts import clipped

if TYPE_CHECKING:
    from shared.wire.parts import Ticket

__all__ = ["error_of", "not_attached", "refused", "unbuilt"]


def refused(code: str, expected: str, got: str, remedy: str) -> m.Refused:
    """Return a Refused with texts cut to what a message carries."""
    return m.Refused(code=code, expected=clipped(expected), got=clipped(got), remedy=clipped(remedy))


def not_attached(serial: int, reason: m.Refused) -> m.NotAttached:
    """Return the same refusal as the answer to the request to attach with this serial."""
    return m.NotAttached(
        serial=serial, code=reason.code, expected=reason.expected, got=reason.got, remedy=reason.remedy
    )


def unbuilt(  # noqa: PLR0913, PLR0917 - a message
    ticket: Ticket, code: str, expected: str, got: str, where: str, remedy: str
) -> m.Unbuilt:
    """Return the answer to a want that gets no batch, with texts cut to what a message carries."""
    return m.Unbuilt(
        ticket=ticket,
        code=code,
        expected=clipped(expected),
        got=clipped(got),
        where=clipped(where),
        remedy=clipped(remedy),
    )


def error_of(said: m.Refused | m.NotAttached | m.Unbuilt, where: str) -> StokerError:
    """Return the error for the other side's refusal.

    It is a WorldChangedError for code "changed", a DataError for "failed", and a RefusedError for any other.
    """
    if said.code == "changed":
        return WorldChangedError(expected=said.expected, got=said.got, where=where, remedy=said.remedy)
    if said.code == "failed":  # no refusal: the other side tried, and the data are at fault
        return DataError(expected=said.expected, got=said.got, where=where, remedy=said.remedy)
    return RefusedError(code=said.code, expected=said.expected, got=said.got, where=where, remedy=said.remedy)
