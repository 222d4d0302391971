"""What every message is, and the list of them by name.

Rules: pure; a message is whole once it is declared: its name on the wire is that of its class, its checks stand at its
fields.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from shared.wire.bounds import Check

__all__ = ["KINDS", "Message", "declare"]


class Message:
    """A whole message; `kind` is its name on the wire."""

    __slots__ = ()
    kind: ClassVar[str]
    checks: ClassVar[dict[str, Check]]


#: Every message class by its name on the wire.
KINDS: dict[str, type[Message]] = {}


def declare(kind: type[Message]) -> type[Message]:
    """Enter a message into the list."""
    kind.kind = kind.__name__
    kind.checks = {field.name: field.metadata["check"] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    KINDS[kind.kind] = kind
    return kind
