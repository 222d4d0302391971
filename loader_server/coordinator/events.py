"""The interface of the coordinator's state to service and journal: settings, events, facts and instructions.

Rules: pure; events and facts say what happened, instructions are orders; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from loader_server.leases.lease_book import BookAdvanced, LeaseFact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.leases.lease_table import LeaseRules
    from shared.bad_limit import BadLimit
    from shared.errors import SettingsError
    from shared.wire import messages as m
    from shared.wire.message_parts import WireField, WireShape

__all__ = [
    "Advanced",
    "CoordinatorSettings",
    "Counts",
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
    "StreamFact",
    "StreamView",
    "Ticked",
    "Warn",
    "WorldNamed",
]

#: Limit of the trainers of elastic runs whose attaches are known to be repeated: some more than run at a time.
_MOST_ELASTIC = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """What the state needs to know of its job."""

    job: str
    #: The builder fingerprint that every worker has to have.
    builder: str
    #: The parts of that fingerprint, by name.
    builder_parts: tuple[tuple[str, str], ...] = ()
    #: The group of all streams; 0: the world's size when a stream first starts.
    group: int
    heartbeat_timeout_s: float
    #: How many rows with a sample may be masked before a feed ends with an error.
    max_bad: BadLimit
    #: Streams that accept a graph from a trainer, with the digest of the kept graph, or an empty string.
    graphs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """Counters of what has happened since the coordinator started."""

    #: First attaches: one for each start of a trainer.
    attaches: int = 0
    #: Attaches of trainers that had attached before: to restore, to another world, or as the coordinator was away.
    reattaches: int = 0
    refusals: int = 0
    superseded: int = 0
    workers_gone: int = 0
    #: Workers whose place another took before their silence was noticed: killed, and started again at once.
    workers_replaced: int = 0
    #: Trainers dropped for their silence: killed, or cut off.
    trainers_gone: int = 0
    #: Requests older than the last one of their sender, or from a trainer whose rank is another's by now.
    stale: int = 0
    #: Trainers of elastic runs by stream and name, the latest last. An attach to a world does not say whether its
    #: trainer was in an earlier one, which it left under another incarnation.
    _elastic: dict[tuple[str, str], None] = field(default_factory=dict)

    def note_attach(self, attach: m.Attach) -> None:
        """Count a granted attach: as a start if it is the trainer's first, else as a reattach.

        Of the trainers of elastic runs only the latest 4096 are remembered; older ones count as started again.
        """
        key = (attach.stream, attach.name)
        is_elastic = attach.world_version is not None
        is_known = attach.serial > 1 or (is_elastic and key in self._elastic)
        self.attaches += not is_known
        self.reattaches += is_known
        if is_elastic:
            self._elastic.pop(key, None)
            self._elastic[key] = None
            if len(self._elastic) > _MOST_ELASTIC:
                del self._elastic[next(iter(self._elastic))]

    def report(self) -> dict[str, int]:
        """Return the counters that a status shows: attaches, reattaches, refusals and stale requests."""
        return {
            "attaches": self.attaches,
            "reattaches": self.reattaches,
            "refusals": self.refusals,
            "stale": self.stale,
        }


class StreamView(Protocol):
    """The coordinator's view of a stream; its answers never block."""

    #: The digest of its plan, which a trainer's cursor has to have.
    digest: str
    #: Whether it is read for evaluation, by any number of independent readers.
    evaluation: bool
    #: Whether rows carry state, so each rank has to get the same rows from batch to batch.
    carries: bool
    fields: tuple[WireField, ...]
    shapes: tuple[WireShape, ...]
    #: How many shards its batches are made in, whole; 0 if they are planned of samples.
    producers: int
    base_fields: tuple[WireField, ...]
    #: Native code that the job's processor level may not reach, by the transform or source that uses it.
    native_code: dict[str, list[str]]
    #: How batches are leased in queue mode; None in lockstep.
    leases: LeaseRules | None

    def batches(self, epoch: int, group: int) -> int | None:
        """Return how many batches an epoch has; None if that is not known yet or counting failed (ask again soon)."""

    def most_batches(self, group: int) -> int:
        """Return an upper bound on the number of batches of any epoch, in groups of this size."""

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
    """Time has passed; `report` is the state's report of the tick before, in which shows what limits the job."""

    report: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Excused:
    """The coordinator stalled, or could not write the journal: peers that were silent meanwhile are not to blame."""


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
class StreamFact:
    """A fact about a stream."""

    stream: str


@dataclass(frozen=True, slots=True)
class GroupFixed(StreamFact):
    """A stream's group, fixed when its training first started."""

    group: int


@dataclass(frozen=True, slots=True)
class Advanced(StreamFact):
    """The position that a stream's slowest rank has trained to."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class RankTaken(StreamFact):
    """The incarnations that have held a rank, oldest first.

    The last one holds it now, with this tenure.
    """

    rank: int
    incarnations: tuple[int, ...]
    tenure: int


@dataclass(frozen=True, slots=True)
class CulpritFound(StreamFact):
    """A sample that kills its decoder (a conviction)."""

    identity: str
    #: How the child processes that decoded it ended.
    ends: str


@dataclass(frozen=True, slots=True)
class Forgot(StreamFact):
    """A conviction was forgiven: undoes `CulpritFound`."""

    identity: str


@dataclass(frozen=True, slots=True)
class ResultsFact(StreamFact):
    """A fact about the results of training or evaluation."""


@dataclass(frozen=True, slots=True)
class ResultsKept(ResultsFact):
    """The aggregate of a stream's last epoch or evaluation over all ranks."""

    epoch: int
    step: int
    rows: int
    #: Means; None stands for one that is not a number.
    values: tuple[tuple[str, float | None], ...]
    #: The reports in it, by incarnation and serial; in queue mode only the latest, while each trainer has a
    #: `ResultsPart`.
    reports: tuple[tuple[int, int], ...]
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
class ResultsPart(ResultsFact):
    """One trainer's part of the last epoch with results, in queue mode, where the aggregate grows with each report."""

    incarnation: int
    serial: int
    epoch: int
    step: int
    rows: int
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class ResultsPartLeft(ResultsFact):
    """A part no longer counts, as another epoch has results or training went back: undoes `ResultsPart`."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class ResultsLeft(ResultsFact):
    """An old evaluation, or an agreement of a run's ranks, is forgotten: undoes `ResultsKept`."""

    evaluation: str
    aside: bool = False


@dataclass(frozen=True, slots=True)
class WorldNamed(StreamFact):
    """An elastic world of a stream began, replacing the one before."""

    version: int
    least: int
    most: int
    #: Member, incarnation, name and replicas of each, in rank order.
    members: tuple[tuple[int, int, str, int], ...]


Fact = StreamFact | LeaseFact | BookAdvanced


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
