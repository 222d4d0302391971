"""Upload of a data set's graph to the coordinator, until its stream can be attached to.

Rules: runs in the caller's thread, before there is a feed. The last answer decides the next message, and without an
answer the offer is repeated; so a coordinator that is restarted in between only costs time. Must not know TensorFlow.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from shared.errors import LostError
from shared.pipelines.element_values import digest_of_graph
from shared.wire import messages as m
from shared.wire.message_parts import PIECE_BYTES
from shared.wire.refusing import error_of
from trainer_client.network.coordinator_client import CoordinatorClient, lone_client
from trainer_client.network.trainer_log import process_log

if TYPE_CHECKING:
    from shared.keys import ClientKeys
    from trainer_client.network.coordinator_client import CoordinatorClient

__all__ = ["Sending", "send_graph"]

#: How long to wait for an answer before the offer is repeated.
_PAUSE_S = 0.5


class Sending:
    """The state of an upload, which decides the next message. Pure."""

    def __init__(self, job: str, stream: str, content: bytes) -> None:
        self._content = content
        self.offer = m.GraphOffer(job=job, stream=stream, digest=digest_of_graph(content), nbytes=len(content))
        #: Whether the coordinator has the whole graph, and whether its stream can be attached to.
        self.kept = self.runs = False

    def answer(self, answer: m.Message) -> m.GraphPiece | None:
        """Return the next piece after this answer; None if there is nothing to send but to wait.

        Note whether the coordinator has the whole graph, and whether its stream runs. An answer about another graph is
        ignored. If the answer is a refusal, raise its error, usually a RefusedError (`error_of`).
        """
        if isinstance(answer, m.Refused):
            raise error_of(answer, "coordinator")
        if not isinstance(answer, m.GraphKept | m.GraphWanted) or answer.digest != self.offer.digest:
            return None
        if isinstance(answer, m.GraphKept):
            self.kept, self.runs = True, answer.runs
            return None
        return m.GraphPiece(
            stream=self.offer.stream,
            digest=answer.digest,
            nbytes=self.offer.nbytes,
            offset=answer.offset,
            content=self._content[answer.offset : answer.offset + PIECE_BYTES],
        )


def send_graph(endpoint: str, keys: ClientKeys | None, sending: Sending, silence_s: float) -> None:
    """Send the graph and return once the coordinator has it and its stream can be attached to.

    Raise LostError if the coordinator is silent for `silence_s`, and the error of its refusal (`error_of`) if it
    refuses the graph or cannot run it. Raise ValueError if the graph exceeds the protocol's bounds. Errors of
    `lone_client` and of its client's `send` pass through, if no connection can be made or the coordinator's file is
    unsafe.
    """
    with lone_client(endpoint, keys) as client:
        heard_s, has_logged = time.monotonic(), False
        client.socket.poll(int(1000 * _PAUSE_S), zmq.POLLOUT)
        client.send(sending.offer)
        while not sending.runs:
            if client.socket.poll(int(1000 * _PAUSE_S)):
                heard_s = time.monotonic()
                _answer_all(client, sending)
                if sending.kept and not has_logged:
                    has_logged = True
                    process_log().info("the data set is there; its first epoch is run, to count its batches")
            elif time.monotonic() - heard_s > silence_s:
                raise _nobody(endpoint, client.problem, silence_s)
            else:
                # A coordinator that was restarted has the whole graph, a part of it or nothing: its answer to the offer
                # says from which byte to go on.
                client.send(sending.offer)


def _answer_all(client: CoordinatorClient, sending: Sending) -> None:
    for message in client.read():
        piece = sending.answer(message)
        if piece is not None:
            client.send(piece)


def _nobody(endpoint: str, problem: str, silence_s: float) -> LostError:
    return LostError(
        expected=f"a coordinator that answers within {silence_s:g} s",
        got=problem or "no answer",
        where=endpoint,
        remedy="Start it with `loader-server run job.toml`, or correct the endpoint.",
    )
