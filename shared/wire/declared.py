"""What every message is, and the registry of them: by name on the wire, and by the server that understands them.

Rules: pure; a message registers itself where it is declared, with its name on the wire and who may say it to which
server; its checks stand at its fields.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.wire.bounds import Check

__all__ = ["KINDS", "ROLES", "SPEAKERS", "Message", "Role", "Server", "message"]

#: What a key entitles its holder to be.
Role = Literal["coordinator", "worker", "trainer"]

ROLES: tuple[Role, ...] = ("coordinator", "worker", "trainer")

#: Who listens; parameter servers are trainers by their keys.
Server = Literal["coordinator", "worker", "parameter server"]


class Message:
    """A whole message; `kind` is its name on the wire."""

    __slots__ = ()
    kind: ClassVar[str]
    checks: ClassVar[dict[str, Check]]


_M = TypeVar("_M", bound=Message)

#: Every message class by its name on the wire.
KINDS: dict[str, type[Message]] = {}

#: What each server understands, and the roles that may say it; what nobody may say to a server is an answer.
SPEAKERS: dict[Server, dict[type[Message], frozenset[Role]]] = {"coordinator": {}, "worker": {}, "parameter server": {}}


def message(name: str, *, to: Server | None = None, by: Iterable[Role] = ()) -> Callable[[type[_M]], type[_M]]:
    """Register a dataclass as the message of this name on the wire, which these roles may say to a server."""

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
