"""What the coordinator's state is told, what it orders and what it wants kept: its interface to service and journal.

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
    from shared.wire.parts import WireField, WireShape

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
    """What the coordinator has to know about a stream; its answers never block."""

    digest: str
    evaluation: bool
    #: Whether rows carry state, so that each rank has to have the same rows from batch to batch.
    carries: bool
    fields: tuple[WireField, ...]
    shapes: tuple[WireShape, ...]
    producers: int
    base_fields: tuple[WireField, ...]
    #: In queue mode, how batches are leased; None: trainers go in lockstep.
    leases: LeaseRules | None

    def batches(self, epoch: int, group: int) -> int | None:
        """How many batches an epoch has; None while they are still being counted: ask again soon."""

    def most_batches(self, group: int) -> int:
        """The most batches that any epoch has."""

    def objection(self, group: int) -> SettingsError | None:
        """Why batches cannot come in groups of `group`; None if they can."""


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
    """We stalled, or could promise nothing: whoever could not be heard or answered is not to blame."""


@dataclass(frozen=True, slots=True)
class JournalLooked:
    """How the journal stands: what has become of its files (empty: nothing), and how many facts it lacks."""

    lost: str
    waiting: int


@dataclass(frozen=True, slots=True)
class EndOrdered:
    """The job is to end: once trainers have finished what they have leased if it `drains`, else now."""

    drains: bool


@dataclass(frozen=True, slots=True)
class GraphRuns:
    """The first epoch of a graph that a trainer sent was run: its stream is there."""

    stream: str
    view: StreamView


@dataclass(frozen=True, slots=True)
class GraphFailed:
    """A graph could not be kept or run."""

    stream: str
    reason: str


# --- facts: what survives ---


@dataclass(frozen=True, slots=True)
class GroupFixed:
    """A stream's group."""

    stream: str
    group: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """How far a stream has been trained on."""

    stream: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class RankTaken:
    """The incarnations that have held a rank, in the order in which they came: the last one holds it now, with this
    tenure.
    """

    stream: str
    rank: int
    incarnations: tuple[int, ...]
    tenure: int


@dataclass(frozen=True, slots=True)
class CulpritFound:
    """A sample that kills its decoder."""

    stream: str
    identity: str
    #: How the children that had it in hand ended.
    ends: str


@dataclass(frozen=True, slots=True)
class Forgot:
    """The sample is used again: undoes `CulpritFound`."""

    stream: str
    identity: str


@dataclass(frozen=True, slots=True)
class ResultsKept:
    """What a stream's last epoch, or last evaluation, came to over all ranks."""

    stream: str
    epoch: int
    step: int
    rows: int
    #: Means; None: not a number.
    values: tuple[tuple[str, float | None], ...]
    #: Who reported a part of it, by incarnation and serial; in queue mode only those of whom there is no `ResultsPart`.
    told: tuple[tuple[int, int], ...]
    #: Why the run ended; empty while it goes on.
    ended: str = ""
    #: These are no results, but what ranks agreed on.
    aside: bool = False
    #: In queue mode, as earlier releases kept it: each trainer's own part, as incarnation, serial, rows and means.
    parts: tuple[tuple[int, int, int, tuple[tuple[str, float | None], ...]], ...] = ()
    #: Training went back to a checkpoint since.
    is_left: bool = False
    #: The evaluation that they are of, or the run whose ranks agreed; empty: of none.
    evaluation: str = ""
    #: The sums of a piece of all ranks' metric states, in base64, and which piece it is.
    part: int = 0
    states: str = ""


@dataclass(frozen=True, slots=True)
class ResultsPart:
    """In queue mode: what one trainer told of the last epoch with results, which grow with each report."""

    stream: str
    incarnation: int
    serial: int
    epoch: int
    step: int
    rows: int
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class ResultsPartLeft:
    """There are results of another epoch, or training went back: undoes `ResultsPart`."""

    stream: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class ResultsLeft:
    """An older evaluation, or what ranks of a run agreed on, is forgotten: undoes `ResultsKept`."""

    stream: str
    evaluation: str
    aside: bool = False


@dataclass(frozen=True, slots=True)
class WorldNamed:
    """An elastic world of a stream began, in place of the one before."""

    stream: str
    version: int
    least: int
    most: int
    #: Member, incarnation, name and replicas of each, in the order of ranks.
    members: tuple[tuple[int, int, str, int], ...]


ResultsFact = ResultsKept | ResultsLeft | ResultsPart | ResultsPartLeft
Fact = GroupFixed | Advanced | RankTaken | CulpritFound | Forgot | ResultsFact | WorldNamed | LeaseFact | BookAdvanced


# --- instructions ---


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this to the journal before any message that follows is sent."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a peer."""

    peer: bytes
    message: m.Message


@dataclass(frozen=True, slots=True)
class Warn:
    """Write this to the log."""

    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunGraph:
    """Keep this graph on disk, tell its sender so, run its first epoch, and report the result."""

    stream: str
    content: bytes


Event = Received | Ticked | Excused | JournalLooked | EndOrdered | GraphRuns | GraphFailed
Instruction = Keep | Send | Warn | RunGraph
