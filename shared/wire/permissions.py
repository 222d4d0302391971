"""Permissions: which roles may send which messages to whom, and the answer to a key that oversteps its role.

Rules: pure; a server does not understand messages that are missing from its table, whoever sends them. Which key has
which role is decided in `keys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.declared import ROLES, SPEAKERS
from shared.wire.refusals import not_attached, refused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.wire.declared import Role

__all__ = ["TO_COORDINATOR", "TO_PARAMETER_SERVER", "TO_WORKER", "refusal"]

#: Messages that each server understands, and the roles that may send them.
TO_COORDINATOR: Mapping[type[m.Message], frozenset[Role]] = SPEAKERS["coordinator"]
TO_WORKER: Mapping[type[m.Message], frozenset[Role]] = SPEAKERS["worker"]
TO_PARAMETER_SERVER: Mapping[type[m.Message], frozenset[Role]] = SPEAKERS["parameter server"]

_REMEDY = (
    "Use the pair of that role (`loader-server keys` says which machine needs which files), or put the key's public "
    "half there."
)


def refusal(message: m.Message, allowed: Collection[Role], held: Collection[Role]) -> m.Refused | m.NotAttached:
    """Return the answer to a message that needs one of the `allowed` roles, from a key that has only those in `held`.

    It is a NotAttached for Attach and Join, which carry a serial, and a Refused for other messages.
    """
    expected = f"a key in {_folders(allowed)}"
    got = f"{message.kind} with {f'a key in {_folders(held)}' if held else 'a key that is not allowed, or no longer'}"
    answer = refused("role", expected, got, _REMEDY)
    return not_attached(message.serial, answer) if isinstance(message, m.Attach | m.Join) else answer


def _folders(roles: Collection[Role]) -> str:
    return " or ".join(f"allowed/{role}" for role in ROLES if role in roles)
