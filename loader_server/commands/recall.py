"""The facts that a job's coordinator remembers, read without changing anything, for commands that show them.

Rules: the journal is read if nobody holds it; otherwise the running coordinator is asked. A job that never ran
remembers nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.commands import status
from loader_server.coordinator.events import CulpritFound, GroupFixed
from loader_server.coordinator.journal import HeldError, Journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loader_server.coordinator.events import Fact
    from loader_server.job_file import JobFile

__all__ = ["Remembered", "recall"]

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The group of each stream that has one, and the samples that kill decoders, as stream and identity."""

    groups: Mapping[str, int] = field(default_factory=dict)
    culprits: frozenset[tuple[str, str]] = frozenset()


def recall(job: JobFile) -> Remembered:
    """Return the facts that are remembered of a job.

    Raises HeldError if another process holds the journal whose endpoint is unknown, or LostError if that does not
    answer.
    """
    path = job.state / "journal.sqlite"
    if not path.exists():
        return Remembered()
    try:
        with closing(Journal(path)) as journal:
            return _of_facts(journal.read_facts())
    except HeldError as held:
        if not held.endpoint:
            raise
        return _of_report(status.ask(held.endpoint, keys=job.keys, timeout_s=_TIMEOUT_S))


def _of_facts(facts: Iterable[Fact]) -> Remembered:
    groups, culprits = dict[str, int](), set[tuple[str, str]]()
    for fact in facts:
        if isinstance(fact, GroupFixed):
            groups[fact.stream] = fact.group
        elif isinstance(fact, CulpritFound):
            culprits.add((fact.stream, fact.identity))
    return Remembered(groups=groups, culprits=frozenset(culprits))


def _of_report(report: Mapping[str, object]) -> Remembered:
    streams, culprits = report["streams"], report["culprits"]
    assert isinstance(streams, dict)
    assert isinstance(culprits, list)
    return Remembered(
        groups={name: stream["group"] for name, stream in streams.items() if stream["group"]},
        culprits=frozenset((one["stream"], one["identity"]) for one in culprits),
    )
