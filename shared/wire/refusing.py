"""Refusals: which roles may send which messages to whom, the messages that refuse, and the errors that these become.

Rules: pure; each refusal says what was expected, what came and what to do, cut to what a message carries. A server does
not understand messages that are missing from its table, under any key. Which key has which role is decided in `keys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import DataError, RefusedError, StokerError, WorldChangedError
from shared.wire import messages as m
from shared.wire.message_parts import ROLES, SPEAKERS, clipped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.wire.message_parts import Role, Ticket

__all__ = [
    "TO_COORDINATOR", "TO_PARAMETER_SERVER", "TO_WORKER", "error_of", "not_attached", "refusal_of_role", "refused",
    "unbuilt",
]  # fmt: skip

#: Messages that each server understands, and the roles that may send them.
TO_COORDINATOR: Mapping[type[m.Message], frozenset[Role]] = SPEAKERS["coordinator"]
TO_WORKER: Mapping[type[m.Message], frozenset[Role]] = SPEAKERS["worker"]
TO_PARAMETER_SERVER: Mapping[type[m.Message], frozenset[Role]] = SPEAKERS["parameter server"]

_REMEDY = (
    "Use the pair of that role (`loader-server keys` says which machine needs which files), or put the key's public "
    "half there."
)


def refusal_of_role(message: m.Message, allowed: Collection[Role], held: Collection[Role]) -> m.Refused | m.NotAttached:
    """Return the answer to a message that needs one of the `allowed` roles, from a key that has only those in `held`.

    It is a NotAttached for Attach and Join, which carry a serial, and a Refused for other messages.
    """
    sender = f"a key in {_folders(held)}" if held else "a key that is not allowed, or no longer"
    answer = refused("role", f"a key in {_folders(allowed)}", f"{message.kind} with {sender}", _REMEDY)
    return not_attached(message.serial, answer) if isinstance(message, m.Attach | m.Join) else answer


def _folders(roles: Collection[Role]) -> str:
    return " or ".join(f"allowed/{role}" for role in ROLES if role in roles)


def refused(code: str, expected: str, got: str, remedy: str) -> m.Refused:
    """Return a Refused with texts cut to what a message carries, 4000 characters each."""
    # Cut here and not in the codec: a text may quote a user's file or a traceback, and a message that is too long would
    # not be sent at all.
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


def error_of(refusal: m.Refused | m.NotAttached | m.Unbuilt, where: str) -> StokerError:
    """Return the error for the other side's refusal.

    It is a WorldChangedError for code "changed", a DataError for "failed", and a RefusedError for any other.
    """
    expected, got, remedy = refusal.expected, refusal.got, refusal.remedy
    if refusal.code == "changed":
        return WorldChangedError(expected=expected, got=got, where=where, remedy=remedy)
    if refusal.code == "failed":  # no refusal: the other side tried, and the data are at fault
        return DataError(expected=expected, got=got, where=where, remedy=remedy)
    return RefusedError(code=refusal.code, expected=expected, got=got, where=where, remedy=remedy)
