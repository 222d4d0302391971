"""The events, facts and instructions of the coordinator's state: its interface to service and journal.

Rules: pure; events and facts say what happened, instructions are orders; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from loader_server.leases.facts import BookAdvanced, LeaseFact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.leases.table import LeaseRules
    from shared.errors import SettingsError
    from shared.wire import messages as m
    from shared.wire.message_parts import WireField, WireShape

__all__ = [
    "Advanced",
    "CulpritFound",
    "EndOrdered",
    "Event",
    "Excused",
    "Fact",
    "Forgot",
    "GraphFailed",
    "GraphRuns",
    "GroupFixed",
    "Instruction",
    "JournalLooked",
    "Keep",
    "RankTaken",
    "Received",
    "ResultsFact",
    "ResultsKept",
    "ResultsLeft",
    "ResultsPart",
    "ResultsPartLeft",
    "RunGraph",
    "Send",
    "StreamView",
    "Ticked",
    "Warn",
    "WorldNamed",
]


class StreamView(Protocol):
    """The coordinator's view of a stream; its answers never block."""

    digest: str
    evaluation: bool
    #: Whether rows carry state, so each rank has to get the same rows from batch to batch.
    carries: bool
    fields: tuple[WireField, ...]
    shapes: tuple[WireShape, ...]
    producers: int
    base_fields: tuple[WireField, ...]
    #: How batches are leased in queue mode; None in lockstep.
    leases: LeaseRules | None

    def batches(self, epoch: int, group: int) -> int | None:
        """Return how many batches an epoch has; None while they are being counted (ask again soon)."""

    def most_batches(self, group: int) -> int:
        """Return the largest number of batches of any epoch."""

    def objection(self, group: int) -> SettingsError | None:
        """Return why the stream cannot be read in groups of this size; None if it can."""


# --- events ---


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer."""

    peer: bytes
    message: m.Message
    #: The address that the connection of a worker that registers comes from; empty if it is not known.
    host: str = ""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Excused:
    """We stalled, or could not write the journal: peers that were not heard or answered meanwhile are not to blame."""


@dataclass(frozen=True, slots=True)
class JournalLooked:
    """State of the journal: the problem with its files (empty if none), and how many facts are not written yet."""

    lost: str
    waiting: int


@dataclass(frozen=True, slots=True)
class EndOrdered:
    """The job is to end: after trainers have finished their leases if it `drains`, else now."""

    drains: bool


@dataclass(frozen=True, slots=True)
class GraphRuns:
    """The first epoch of a sent graph was run: its stream can be attached to."""

    stream: str
    view: StreamView


@dataclass(frozen=True, slots=True)
class GraphFailed:
    """A graph could not be kept, or its first epoch could not be run."""

    stream: str
    reason: str


# --- facts, which survive a crash ---


@dataclass(frozen=True, slots=True)
class GroupFixed:
    """A stream's group, fixed when its training first started."""

    stream: str
    group: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """The position that a stream's slowest rank has trained to."""

    stream: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class RankTaken:
    """The incarnations that have held a rank, oldest first.

    The last one holds it now, with this tenure.
    """

    stream: str
    rank: int
    incarnations: tuple[int, ...]
    tenure: int


@dataclass(frozen=True, slots=True)
class CulpritFound:
    """A sample that kills its decoder (a conviction)."""

    stream: str
    identity: str
    #: How the child processes that decoded it ended.
    ends: str


@dataclass(frozen=True, slots=True)
class Forgot:
    """A conviction was forgiven: undoes `CulpritFound`."""

    stream: str
    identity: str


@dataclass(frozen=True, slots=True)
class ResultsKept:
    """The aggregate of a stream's last epoch or evaluation over all ranks."""

    stream: str
    epoch: int
    step: int
    rows: int
    #: Means; None stands for one that is not a number.
    values: tuple[tuple[str, float | None], ...]
    #: The reports in it, by incarnation and serial; in queue mode only the latest, while each trainer has a
    #: `ResultsPart`.
    told: tuple[tuple[int, int], ...]
    #: Why the run ended; empty while it goes on.
    ended: str = ""
    #: Whether these are values that ranks agreed on, rather than results.
    aside: bool = False
    #: Each trainer's own part in queue mode, as earlier releases kept it: incarnation, serial, rows and means.
    parts: tuple[tuple[int, int, int, tuple[tuple[str, float | None], ...]], ...] = ()
    #: Whether training has gone back to a checkpoint since.
    is_left: bool = False
    #: The evaluation, or the run whose ranks agreed; empty if it has no name.
    evaluation: str = ""
    #: The number of a piece of the summed metric states, and the piece itself in base64.
    part: int = 0
    states: str = ""


@dataclass(frozen=True, slots=True)
class ResultsPart:
    """One trainer's part of the last epoch with results, in queue mode, where the aggregate grows with each report."""

    stream: str
    incarnation: int
    serial: int
    epoch: int
    step: int
    rows: int
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class ResultsPartLeft:
    """A part no longer counts, as another epoch has results or training went back: undoes `ResultsPart`."""

    stream: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class ResultsLeft:
    """An old evaluation, or an agreement of a run's ranks, is forgotten: undoes `ResultsKept`."""

    stream: str
    evaluation: str
    aside: bool = False


@dataclass(frozen=True, slots=True)
class WorldNamed:
    """An elastic world of a stream began, replacing the one before."""

    stream: str
    version: int
    least: int
    most: int
    #: Member, incarnation, name and replicas of each, in rank order.
    members: tuple[tuple[int, int, str, int], ...]


ResultsFact = ResultsKept | ResultsLeft | ResultsPart | ResultsPartLeft
Fact = GroupFixed | Advanced | RankTaken | CulpritFound | Forgot | ResultsFact | WorldNamed | LeaseFact | BookAdvanced


# --- instructions ---


@dataclass(frozen=True, slots=True)
class Keep:
    """Order to write this to the journal before any message that follows is sent."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Send:
    """Order to send this to a peer."""

    peer: bytes
    message: m.Message


@dataclass(frozen=True, slots=True)
class Warn:
    """Order to write this to the log."""

    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunGraph:
    """Order to write this graph to disk, run its first epoch, and report the result."""

    stream: str
    content: bytes


Event = Received | Ticked | Excused | JournalLooked | EndOrdered | GraphRuns | GraphFailed
Instruction = Keep | Send | Warn | RunGraph
