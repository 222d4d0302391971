"""Messages of workers that the coordinator keeps: builders that differ, workers that fail, samples that kill decoders.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import FixedList, Many
from shared.wire.message_parts import COUNT, ID, NAME, PROSE, Message, message, wire

__all__ = ["MOST_PARTS", "BuilderParts", "Culprit", "Culprits", "Failing", "Forgive", "Forgiven"]

#: Most parts that fit into a request even if all names are long.
MOST_PARTS = 128


@message("BuilderParts", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderParts(Message):
    """Question of a worker that was refused for its builder fingerprint: which parts differ, by name and value."""

    worker: str = wire(NAME)
    parts: tuple[tuple[str, str], ...] = wire(Many(FixedList((NAME, NAME)), MOST_PARTS))


@message("Failing", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(Message):
    """Report that a worker cannot serve, and has ended or waits: to the coordinator, and from there to trainers."""

    worker: str = wire(NAME)
    expected: str = wire(PROSE)
    got: str = wire(PROSE)
    where: str = wire(PROSE)
    remedy: str = wire(PROSE)


@message("Culprit", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit(Message):
    """Report of a worker that a sample kills the process that decodes it; `ends` says how."""

    worker: str = wire(NAME)
    stream: str = wire(NAME)
    #: The sample's file, not its number, which a new index may give to another sample.
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
