"""Questions for stamps of batches, passed on to the trainers and workers that have them, and their answers.

Rules: pure. Nothing of an answer is kept. Only the process that was asked may answer, on the connection on which it is
known, and each question is answered once. Open questions are few and short-lived, so that no asker costs much.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from loader_server.coordinator.events import Send
from shared.wire import messages as m
from shared.wire.message_parts import TraceProcess
from shared.wire.topics.trace_messages import MOST_LISTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.coordinator.streams.stream_trainers import StreamTrainers
    from loader_server.coordinator.workers import Workers

__all__ = ["TraceRelay"]

#: Limit of open questions, beyond which the oldest are forgotten, and how long one stays open.
_MOST_OPEN = 1024
_OPEN_S = 10.0


@dataclass(frozen=True, slots=True)
class _PassedOn:
    """A question that was passed on: who asked under which serial, whom, on which connection, and when."""

    asker: bytes
    serial: int
    process: int
    peer: bytes
    asked_s: float


class TraceRelay:
    """The open questions of all askers."""

    def __init__(self, streams: Mapping[str, StreamTrainers], workers: Workers) -> None:
        self._streams = streams
        self._workers = workers
        #: By our own serial, oldest first.
        self._open: dict[int, _PassedOn] = {}
        self._serial = 0

    def take(self, peer: bytes, message: m.TraceQuery | m.TracePage, now_s: float) -> Iterator[Send]:
        """Yield the orders for a question, as `_ask` does, or for an answer, as `_answer` does."""
        return self._ask(peer, message, now_s) if isinstance(message, m.TraceQuery) else self._answer(peer, message)

    def _ask(self, asker: bytes, query: m.TraceQuery, now_s: float) -> Iterator[Send]:
        """Yield the orders for a question: the list of processes if it names none, else a request to each known one.

        For a process that is not known the answer says that it is gone.
        """
        if not query.processes:
            yield Send(asker, self._processes(query.serial))
        peers = self._peers() if query.processes else {}
        for process in query.processes:
            peer = peers.get(process)
            if peer is None:
                yield Send(asker, _gone(query.serial, process))
                continue
            self._serial += 1
            self._open[self._serial] = _PassedOn(asker, query.serial, process, peer, now_s)
            self._forget_old(now_s)
            wanted = m.TraceWanted(
                serial=self._serial,
                first_row=query.first_row,
                last_ms=query.last_ms,
                stream=query.stream,
                epoch=query.epoch,
                number=query.number,
            )
            yield Send(peer, wanted)

    def _answer(self, peer: bytes, page: m.TracePage) -> Iterator[Send]:
        """Yield the page for its asker; nothing if the question is not open, or was for another process or peer."""
        question = self._open.get(page.serial)
        if question is None or question.peer != peer or question.process != page.process:
            return
        del self._open[page.serial]
        # Field by field, and not by `dataclasses.replace`: the stamps are passed on as they are.
        yield Send(
            question.asker,
            m.TracePage(**{name: getattr(page, name) for name in page.checks} | {"serial": question.serial}),
        )

    def _forget_old(self, now_s: float) -> None:
        for serial, question in list(self._open.items()):
            if len(self._open) <= _MOST_OPEN and now_s - question.asked_s < _OPEN_S:
                return
            del self._open[serial]

    def _peers(self) -> dict[int, bytes]:
        """Return the connections of all trainers and workers, by incarnation."""
        trainers = chain.from_iterable(stream.trainers.items() for stream in self._streams.values())
        peers = {incarnation: trainer.peer for incarnation, trainer in trainers}
        return peers | {worker.address.incarnation: worker.peer for worker in self._workers.sorted()}

    def _processes(self, serial: int) -> m.TraceProcesses:
        processes = [
            TraceProcess(attach.name, attach.incarnation, name, attach.rank, attach.replicas, attach.world)
            for name, stream in self._streams.items()
            for attach in (trainer.attach for trainer in stream.trainers.values())
        ]
        processes += [
            TraceProcess(worker.address.worker, worker.address.incarnation, "", 0, 0, 0)
            for worker in self._workers.sorted()
        ]
        left_out = max(0, len(processes) - MOST_LISTED)
        return m.TraceProcesses(serial=serial, processes=tuple(processes[:MOST_LISTED]), left_out=left_out)


def _gone(serial: int, process: int) -> m.TracePage:
    return m.TracePage(
        serial=serial, process=process, gone=True, boot_id="", now_ns=0, oldest_ns=0, streams=(), stamps=b"",
        next_row=None, overwritten=0,
    )  # fmt: skip
