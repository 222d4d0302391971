"""The data sets that trainers send: accepting streams, uploads, and the peers that wait for the first epoch.

Rules: pure. The first graph that arrives whole is the stream's; the same graph again is accepted, another is refused. A
stream has at most one upload under way. A graph whose first epoch fails is forgotten, and the waiting peers are told
the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.coordinator import refusals
from loader_server.coordinator.events import Instruction, RunGraph, Send, Warn
from shared.pipelines.element_values import MOST_BYTES, digest_of_graph
from shared.silence import GONE_AFTER
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NO_GRAPH", "Graphs"]

#: Limit of peers that are told when a graph runs; the others ask again.
_MOST_WAITING = 4096


@dataclass(slots=True)
class _Arriving:
    """An upload under way."""

    digest: str
    nbytes: int
    heard_s: float
    content: bytearray = field(default_factory=bytearray)


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
        self._kept = dict(kept)
        self._quiet_s = GONE_AFTER * heartbeat_timeout_s
        self._running = set(running)
        self._arriving: dict[str, _Arriving] = {}
        self._waiting: dict[str, set[bytes]] = {stream: set() for stream in kept}

    def awaits(self, stream: str) -> bool:
        """Return whether a stream takes a graph but cannot be attached to yet."""
        return stream in self._kept and stream not in self._running

    def take(self, peer: bytes, said: m.GraphOffer | m.GraphPiece, now_s: float) -> list[Instruction]:
        """Handle an offer or a piece of a graph."""
        if isinstance(said, m.GraphPiece):
            return self._take_piece(peer, said, now_s)
        return self._take_offer(peer, said, now_s)

    def _take_offer(self, peer: bytes, offer: m.GraphOffer, now_s: float) -> list[Instruction]:
        stream = offer.stream
        if offer.job not in ("", self._job):
            return [Send(peer, refusals.graph_of_another_job(offer, self._job))]
        if stream not in self._kept:
            return [Send(peer, refusals.no_graph_taken(offer, self._kept))]
        if offer.nbytes > MOST_BYTES:
            return [Send(peer, refusals.too_large_a_graph(offer, MOST_BYTES))]
        if self._kept[stream]:
            return [self._answer_kept(peer, offer)]
        # The first offer reserves the stream. Another digest may replace it only after its sender has been silent, so
        # that a trainer that died in the middle of an upload does not block the stream.
        known = self._arriving.get(stream)
        if known is not None and known.digest != offer.digest and now_s - known.heard_s <= self._quiet_s:
            return [Send(peer, refusals.another_graph(offer, known.digest))]
        if known is None or known.digest != offer.digest:
            known = self._arriving[stream] = _Arriving(offer.digest, offer.nbytes, now_s)
        return [Send(peer, _wanted(offer.stream, known))]

    def _answer_kept(self, peer: bytes, offer: m.GraphOffer) -> Send:
        stream, kept = offer.stream, self._kept[offer.stream]
        if offer.digest != kept:
            return Send(peer, refusals.another_graph(offer, kept))
        runs = stream in self._running
        if not runs and len(self._waiting[stream]) < _MOST_WAITING:
            self._waiting[stream].add(peer)
        return Send(peer, m.GraphKept(stream=stream, digest=kept, runs=runs))

    def _take_piece(self, peer: bytes, piece: m.GraphPiece, now_s: float) -> list[Instruction]:
        """Append the next piece of an upload and ask for the one after; answer any other piece with what is wanted.

        A piece of no known upload, and an upload whose digest is wrong, get no answer: the sender starts again with an
        offer.
        """
        known = self._arriving.get(piece.stream)
        if known is None or known.digest != piece.digest:
            return []
        known.heard_s = now_s
        if piece.offset == len(known.content) and len(known.content) + len(piece.content) <= known.nbytes:
            known.content += piece.content
        if len(known.content) < known.nbytes:
            return [Send(peer, _wanted(piece.stream, known))]
        del self._arriving[piece.stream]
        content = bytes(known.content)
        if digest_of_graph(content) != known.digest:  # its sender offers it again
            return []
        self._kept[piece.stream] = known.digest
        self._waiting[piece.stream].add(peer)
        return [RunGraph(piece.stream, content)]

    def run(self, stream: str) -> list[Instruction]:
        """Mark a stream's first epoch as run, so that trainers can attach; return the news for the waiting peers."""
        self._running.add(stream)
        runs = m.GraphKept(stream=stream, digest=self._kept[stream], runs=True)
        return [Send(peer, runs) for peer in self._take_waiting(stream)]

    def fail(self, stream: str, reason: str) -> list[Instruction]:
        """Forget a graph that could not be kept or run; return a warning and refusals for the waiting peers."""
        self._kept[stream] = ""
        warning = Warn("graph cannot be run", {"stream": stream, "reason": reason})
        return [warning, *(Send(peer, refusals.no_such_run(stream, reason)) for peer in self._take_waiting(stream))]

    def _take_waiting(self, stream: str) -> set[bytes]:
        waiting, self._waiting[stream] = self._waiting[stream], set()
        return waiting


def _wanted(stream: str, known: _Arriving) -> m.GraphWanted:
    return m.GraphWanted(stream=stream, digest=known.digest, offset=len(known.content))
