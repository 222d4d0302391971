"""The data sets that trainers send: accepting streams, uploads, and the peers that wait for the first epoch.

Rules: pure. The first graph that arrives whole is the stream's; the same graph again is accepted, another is refused. A
stream has at most one upload under way. A graph whose first epoch fails is forgotten, and the waiting peers hear the
reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.coordinator.events import Instruction, RunGraph, Send, Warn
from shared.pipelines.element_values import MOST_BYTES, digest_of_graph
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.refusing import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NO_GRAPH", "Graphs"]

#: Limit of peers that get the news when a graph runs; the others ask again.
_MOST_WAITING = 4096


@dataclass(slots=True)
class _Arriving:
    """An upload under way."""

    digest: str
    nbytes: int
    heard_s: float
    content: bytearray = field(default_factory=bytearray)

    def wanted(self, stream: str) -> m.GraphWanted:
        """Return the request for the next piece."""
        return m.GraphWanted(stream=stream, digest=self.digest, offset=len(self.content))


NO_GRAPH = (
    "a trainer has to send the data set of this stream (trainer_client.distribute), and its first epoch to be run"
)


class Graphs:
    """The graphs of all streams that accept one.

    `kept` has the digest of each stream's graph on disk, empty if there is none, and `running` names the streams whose
    first epoch was run.
    """

    def __init__(self, job: str, kept: Mapping[str, str], running: Iterable[str], heartbeat_timeout_s: float) -> None:
        self._job = job
        #: By stream: the digest of its graph, which is whole; empty if there is none.
        self._kept = dict(kept)
        #: The silence after which another trainer may replace an upload.
        self._quiet_s = GONE_AFTER * heartbeat_timeout_s
        self._running = set(running)
        self._arriving: dict[str, _Arriving] = {}
        self._waiting: dict[str, set[bytes]] = {stream: set() for stream in kept}

    def awaits(self, stream: str) -> bool:
        """Return whether a stream takes a graph but cannot be attached to yet."""
        return stream in self._kept and stream not in self._running

    def take(self, peer: bytes, message: m.GraphOffer | m.GraphPiece, now_s: float) -> list[Instruction]:
        """Return the answer to an offer or a piece of a graph; after its last piece, the order to run it.

        Return an empty list for a piece of no known upload, and for an upload whose digest is wrong.
        """
        if isinstance(message, m.GraphPiece):
            return self._take_piece(peer, message, now_s)
        return self._take_offer(peer, message, now_s)

    def _take_offer(self, peer: bytes, offer: m.GraphOffer, now_s: float) -> list[Instruction]:
        """Answer an offer with the piece that is wanted, with the news that the graph is kept, or with a refusal.

        Refused are graphs of another job, stream or size, and a graph other than the stream's, or than another that is
        arriving and whose sender is not silent. An accepted offer begins an upload, or goes on with it.
        """
        stream = offer.stream
        refusal = self._objection(offer)
        if refusal is not None:
            return [Send(peer, refusal)]
        if self._kept[stream]:
            return [self._answer_kept(peer, offer)]
        # The first offer reserves the stream. Another digest may replace it only after its sender has been silent, so
        # that a trainer that died in the middle of an upload does not block the stream.
        known = self._arriving.get(stream)
        if known is not None and known.digest != offer.digest and now_s - known.heard_s <= self._quiet_s:
            return [Send(peer, _another_graph(offer, known.digest))]
        if known is None or known.digest != offer.digest:
            known = self._arriving[stream] = _Arriving(offer.digest, offer.nbytes, now_s)
        return [Send(peer, known.wanted(stream))]

    def _objection(self, offer: m.GraphOffer) -> m.Refused | None:
        """Return why no graph of this job, stream or size is accepted; None if it is."""
        if offer.job not in ("", self._job):
            return refused(
                "job",
                expected=f"a trainer of job {self._job}",
                got=f"job {offer.job}",
                remedy="Connect to that job's coordinator.",
            )
        if offer.stream not in self._kept:
            names = ", ".join(f'"{name}"' for name in self._kept)
            return refused(
                "graph",
                expected=f"a stream that takes a graph: {names or 'none of this job does'}",
                got=f'"{offer.stream}"',
                remedy='In the job file write source = "graph" for the stream, and accept_graphs = true in [job].',
            )
        if offer.nbytes > MOST_BYTES:
            return refused(
                "graph",
                expected=f"at most {MOST_BYTES} bytes",
                got=str(offer.nbytes),
                remedy="Read the data from files instead of from arrays that are part of the graph.",
            )
        return None

    def _answer_kept(self, peer: bytes, offer: m.GraphOffer) -> Send:
        stream, kept = offer.stream, self._kept[offer.stream]
        if offer.digest != kept:
            return Send(peer, _another_graph(offer, kept))
        runs = stream in self._running
        if not runs and len(self._waiting[stream]) < _MOST_WAITING:
            self._waiting[stream].add(peer)
        return Send(peer, m.GraphKept(stream=stream, digest=kept, runs=runs))

    def _take_piece(self, peer: bytes, piece: m.GraphPiece, now_s: float) -> list[Instruction]:
        """Append the next piece of an upload and ask for the one after; answer any other piece with what is wanted.

        After the last piece keep the graph's digest and return the order to run it, of which the sender hears later. A
        piece of no known upload, and an upload whose digest is wrong, get no answer: the sender starts again with an
        offer.
        """
        known = self._arriving.get(piece.stream)
        if known is None or known.digest != piece.digest:
            return []
        known.heard_s = now_s
        # Two ranks may send the same graph side by side, so a piece may have come already.
        if piece.offset == len(known.content) and len(known.content) + len(piece.content) <= known.nbytes:
            known.content += piece.content
        if len(known.content) < known.nbytes:
            return [Send(peer, known.wanted(piece.stream))]
        del self._arriving[piece.stream]
        content = bytes(known.content)
        if digest_of_graph(content) != known.digest:
            return []
        self._kept[piece.stream] = known.digest
        self._waiting[piece.stream].add(peer)
        return [RunGraph(piece.stream, content)]

    def run(self, stream: str) -> list[Instruction]:
        """Mark a stream's first epoch as run, so that trainers can attach; return the news for the waiting peers.

        Raise a KeyError if the stream accepts no graph.
        """
        self._running.add(stream)
        return [
            Send(peer, m.GraphKept(stream=stream, digest=self._kept[stream], runs=True))
            for peer in self._take_waiting(stream)
        ]

    def fail(self, stream: str, reason: str) -> list[Instruction]:
        """Forget a graph that could not be kept or run; return a warning and refusals for the waiting peers.

        Raise a KeyError if the stream accepts no graph.
        """
        self._kept[stream] = ""
        refusal = refused(
            "graph",
            expected=f'the first epoch of "{stream}" to be run, so that its batches are counted',
            got=reason,
            remedy="Mend the data set, or what it reads, and start again: it was not kept.",
        )
        warning = Warn("graph cannot be run", {"stream": stream, "reason": reason})
        return [warning, *(Send(peer, refusal) for peer in self._take_waiting(stream))]

    def _take_waiting(self, stream: str) -> set[bytes]:
        waiting, self._waiting[stream] = self._waiting[stream], set()
        return waiting


def _another_graph(offer: m.GraphOffer, kept: str) -> m.Refused:
    """Refuse a graph because the stream has another one, or another one is arriving."""
    return refused(
        "graph",
        expected=f"the data set of this stream, {kept[:16]}",
        got=offer.digest[:16],
        remedy="All ranks and restarts of a job send the same data set: the same code, files and version of "
        "TensorFlow. For another one make another job, or end the loaders and remove "
        f"graphs/{offer.stream}.graph in its state folder.",
    )
