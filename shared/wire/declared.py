"""Declarations of messages, and their registry: by name on the wire, and by the server that understands them.

Rules: pure; a message registers itself where it is declared, with its name on the wire and the roles that may send it
to which server; its checks stand at its fields.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.wire.bounds import Check

__all__ = ["KINDS", "ROLES", "SPEAKERS", "Message", "Role", "Server", "message"]

#: Roles that a key can give its holder.
Role = Literal["coordinator", "worker", "trainer"]

ROLES: tuple[Role, ...] = ("coordinator", "worker", "trainer")

#: Kinds of servers; parameter servers have trainers' keys.
Server = Literal["coordinator", "worker", "parameter server"]


class Message:
    """Base of all messages; `kind` is the name on the wire."""

    __slots__ = ()
    kind: ClassVar[str]
    checks: ClassVar[dict[str, Check]]


_M = TypeVar("_M", bound=Message)

#: Message classes by name on the wire.
KINDS: dict[str, type[Message]] = {}

#: Messages that each server understands, and the roles that may send them; messages that no server takes are answers.
SPEAKERS: dict[Server, dict[type[Message], frozenset[Role]]] = {"coordinator": {}, "worker": {}, "parameter server": {}}


def message(name: str, *, to: Server | None = None, by: Iterable[Role] = ()) -> Callable[[type[_M]], type[_M]]:
    """Return a decorator that registers a dataclass as the message `name`, which roles `by` may send to server `to`.

    Raise AssertionError if the name is taken.
    """

    def register(kind: type[_M]) -> type[_M]:
        if name in KINDS:
            raise AssertionError(f"two messages are called {name}: {KINDS[name].__module__} and {kind.__module__}")
        kind.kind = name
        kind.checks = {field.name: field.metadata["check"] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        KINDS[name] = kind
        if to is not None:
            SPEAKERS[to][kind] = frozenset(by)
        return kind

    return register
