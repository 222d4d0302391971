"""Messages about samples that kill decoders: found by workers, known to all of them, and forgiven by people.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Many
from shared.wire.declared import Message, message
from shared.wire.parts import COUNT, ID, NAME, PROSE, wire

__all__ = ["Culprit", "Culprits", "Forgive", "Forgiven"]


@message("Culprit", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit(Message):
    """Report of a worker that a sample kills the process that decodes it; `ends` says how."""

    worker: str = wire(NAME)
    stream: str = wire(NAME)
    identity: str = wire(PROSE)
    ends: str = wire(NAME)


@message("Culprits")
@dataclass(frozen=True, slots=True, kw_only=True)
class Culprits(Message):
    """Samples that are known to kill decoders, by the hash of stream and identity: mask them unread."""

    version: int = wire(ID)
    keys: tuple[int, ...] = wire(Many(ID, 2**15))


@message("Forgive", to="coordinator", by=("coordinator", "worker"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Forgive(Message):
    """Notice that a culprit was mended, or all of them were: use them again."""

    stream: str = wire(NAME)
    identity: str = wire(PROSE)


@message("Forgiven")
@dataclass(frozen=True, slots=True, kw_only=True)
class Forgiven(Message):
    """Answer to `Forgive`: the number of forgotten convictions."""

    count: int = wire(COUNT)
