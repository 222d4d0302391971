"""Upload of a data set's graph to the coordinator, until its stream can be attached to.

Rules: runs in the caller's thread, before there is a feed. The last answer decides the next message, and without an
answer the offer is repeated; so a coordinator that is restarted in between only costs time. Must not know TensorFlow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from shared.errors import LostError
from shared.logs import Log
from shared.pipelines.element_values import digest_of_graph
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire import messages as m
from shared.wire.message_parts import PIECE_BYTES
from shared.wire.refusing import error_of
from trainer_client.network.coordinator_client import CoordinatorClient

if TYPE_CHECKING:
    from shared.keys import ClientKeys

__all__ = ["GraphSender", "Sending", "send_graph"]

#: How long to wait for an answer before the offer is repeated.
_PAUSE_S = 0.5


class Sending:
    """The state of an upload, which decides the next message. Pure."""

    def __init__(self, job: str, stream: str, content: bytes) -> None:
        self._content = content
        self.offer = m.GraphOffer(job=job, stream=stream, digest=digest_of_graph(content), nbytes=len(content))
        #: Whether the coordinator has the whole graph, and whether its stream can be attached to.
        self.kept = self.runs = False

    def answer(self, said: m.Message) -> m.GraphPiece | None:
        """Return the next piece after this answer; None if there is nothing to send but to wait.

        Raise RefusedError if the answer is a refusal.
        """
        if isinstance(said, m.Refused):
            raise error_of(said, "coordinator")
        if not isinstance(said, m.GraphKept | m.GraphWanted) or said.digest != self.offer.digest:
            return None
        if isinstance(said, m.GraphKept):
            self.kept, self.runs = True, said.runs
            return None
        return m.GraphPiece(
            stream=self.offer.stream,
            digest=said.digest,
            nbytes=self.offer.nbytes,
            offset=said.offset,
            content=self._content[said.offset : said.offset + PIECE_BYTES],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSender:
    """The coordinator to send a graph to, and how long to wait for it."""

    endpoint: str
    keys: ClientKeys | None
    #: How long the coordinator may be silent before the upload fails.
    silence_s: float


def send_graph(to: GraphSender, sending: Sending) -> None:
    """Send the graph and return once the coordinator has it and its stream can be attached to.

    Raise LostError if the coordinator is silent for `silence_s`, and RefusedError if it refuses the graph.
    """
    refuse_small_limits_of_client()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = CoordinatorClient(context, to.endpoint, to.keys)
    try:
        _talk(client, to, sending)
    finally:
        client.close()
        context.term()


def _talk(client: CoordinatorClient, to: GraphSender, sending: Sending) -> None:
    heard_s, told = time.monotonic(), False
    client.socket.poll(int(1000 * _PAUSE_S), zmq.POLLOUT)
    client.send(sending.offer)
    while not sending.runs:
        if client.socket.poll(int(1000 * _PAUSE_S)):
            heard_s = time.monotonic()
            for message in client.read():
                piece = sending.answer(message)
                if piece is not None:
                    client.send(piece)
            if sending.kept and not told:
                told = True
                Log("trainer").info("the data set is there; its first epoch is run, to count its batches")
        elif time.monotonic() - heard_s > to.silence_s:
            raise _nobody(to, client.problem)
        else:
            client.send(sending.offer)


def _nobody(to: GraphSender, problem: str) -> LostError:
    return LostError(
        expected=f"a coordinator that answers within {to.silence_s:g} s",
        got=problem or "no answer",
        where=to.endpoint,
        remedy="Start it with `loader-server run job.toml`, or correct the endpoint.",
    )
