"""Reading of batches by their numbers, without being a trainer: it claims no rank and moves no cursor.

Rules: each batch is dropped as soon as its digest is known. Batches come after those of all trainers, so on a fleet
that trainers keep busy this waits. Requests that cannot be compared are refused before anything is read.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.errors import ProtocolError, SettingsError
from shared.keys import ClientKeys
from shared.memory import boot_id
from shared.wire.message_parts import Cursor
from shared.wire.topics.work_messages import VERIFY
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Position, Ranks
from trainer_client.network.outbox import Reader
from trainer_client.network.receiver import Receiver, ReceiverSettings
from trainer_client.network.trainer_log import trainer_name
from trainer_client.session.batch_maker import BatchMaker
from trainer_client.verifying.digests import EpochDigests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.verifying.digests import CutPart

__all__ = ["EpochsOfJob", "NotComparableError", "read_epochs", "read_part"]


class NotComparableError(SettingsError):
    """The request cannot be compared with what the job gives its trainers."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsOfJob:
    """Selection of batches to read from a job."""

    endpoint: str
    stream: str
    epochs: range
    #: None: the job's own group.
    group: int | None
    #: Number of batches to read of each epoch; None: all.
    most: int | None
    keys: str
    connect_timeout_s: float


@contextmanager
def _connected(source: EpochsOfJob, world: int = 1) -> Iterator[Receiver]:
    """Yield the receiver of a verifier, not yet attached; its `world` ranks are read together, in rounds.

    Raise SettingsError for an endpoint that is invalid or in an unsafe file, or a missing key, and MachineError if too
    few open files are left.
    """
    receiver = Receiver(
        ReceiverSettings(
            core=CoreSettings(
                job="",
                stream=source.stream,
                ranks=Ranks(rank=0, replicas=world, world=world),
                incarnation=secrets.randbits(63),
                name=trainer_name(),
                boot_id=boot_id(),
                work=VERIFY,
                verify=True,
            ),
            endpoint=source.endpoint,
            coordinator_keys=ClientKeys.of_trainer(source.keys, to="coordinator"),
            worker_keys=ClientKeys.of_trainer(source.keys, to="worker"),
            connect_timeout_s=source.connect_timeout_s,
        )
    )
    try:
        yield receiver
    finally:
        receiver.close(2.0)


def _read(receiver: Receiver, cursor: Cursor, stop: int) -> Iterator[tuple[int, int]]:
    """Yield number and digest of each batch from the cursor on, before `stop`; empty places are left out.

    Raise ProtocolError if the epoch ends earlier, and the reader's errors, such as LostError and EndedError.
    ClosedError of `take` passes through.
    """
    maker, reader = BatchMaker(receiver), Reader(Position(cursor.epoch, cursor.number, cursor.group))
    next_number = cursor.number
    try:
        while next_number < stop:
            item = receiver.outbox.take(reader)
            if item is None:
                ended = f"an end before batch {next_number}"
                raise _defect("the loaders", f"{stop} batches in epoch {cursor.epoch}", ended)
            batch = maker.make(item)
            del item  # or its slot would stay lent while the next batch is waited for
            if not batch.empty:
                next_number = batch.number + 1
                yield batch.number, batch.digest
    finally:
        receiver.outbox.leave(reader)


def read_epochs(source: EpochsOfJob, note: Callable[[int, int], None] = lambda _done, _of: None) -> list[EpochDigests]:
    """Return the digests of all batches, read in order by one reader.

    `note` is called with the number of batches read and to read in the epoch. Raise NotComparableError if the job reads
    in another group, or has no such epochs, because the stream is for evaluation. Raise ProtocolError if batches come
    out of order or end early, LostError if nobody answers, RefusedError if the job refuses the reader, EndedError if it
    has ended, MachineError if too few open files are left, and SettingsError for unusable keys or numbers. ClosedError
    of `_read_epoch` passes through.
    """
    with _connected(source) as receiver:
        start = receiver.attach(None).cursor  # the job's own, which has its group and plan
        if receiver.spec.evaluation and source.epochs != range(1):
            raise NotComparableError(
                expected=f"epoch 0 alone, as each epoch of {source.stream} is the same: it is for evaluation",
                got=f"epochs {source.epochs.start} to {source.epochs.stop - 1}",
                where=source.endpoint,
                remedy="Leave --epoch and --epochs out.",
            )
        asked = Cursor(source.epochs.start, 0, source.group or start.group, start.plan_digest)
        cursor = receiver.attach(asked).cursor
        if cursor.group != asked.group:
            raise _another_group(source, asked.group, cursor.group)
        return [_read_epoch(receiver, source, replace(cursor, epoch=epoch), note) for epoch in source.epochs]


def _read_epoch(
    receiver: Receiver, source: EpochsOfJob, cursor: Cursor, note: Callable[[int, int], None]
) -> EpochDigests:
    """Return the digests of an epoch's first `source.most` batches, or of all; `note` gets how many are read.

    Raise ProtocolError if they come out of order or end early, LostError if no worker answers, SettingsError for an
    epoch out of bounds, EndedError if the job ended, and the error of a feed that fails or is closed.
    """
    digests = EpochDigests(cursor.epoch, cursor.group, cursor.plan_digest)
    batches = receiver.ask_batches(cursor.epoch, cursor.group)
    stop = min(batches, source.most or batches)
    for number, digest in _read(receiver, cursor, stop):
        if number != len(digests.batches):
            raise _defect(source.endpoint, f"batch {len(digests.batches)}", f"batch {number}")
        digests.batches.append(digest)
        note(number + 1, stop)
    return digests


def read_part(source: EpochsOfJob, whole: EpochDigests, part: CutPart) -> Iterator[tuple[int, int]]:
    """Yield number and digest of each batch of a part of an epoch that was read as a whole before.

    A reader of its own resumes at the part's beginning, and reads in rounds of the part's world. Raise
    NotComparableError if the group has changed since, ProtocolError if the epoch ends early, LostError if nobody
    answers, RefusedError if the job refuses the reader, EndedError if it has ended, MachineError if too few open files
    are left, and SettingsError for unusable keys. ClosedError of `_read` passes through.
    """
    cursor = Cursor(whole.epoch, part.start, whole.group, whole.plan_digest)
    with _connected(source, part.world) as receiver:
        group = receiver.attach(cursor).cursor.group
        if group != whole.group:
            raise _another_group(source, whole.group, group)
        yield from _read(receiver, cursor, part.stop)


def _another_group(source: EpochsOfJob, expected: int, got: int) -> NotComparableError:
    return NotComparableError(
        expected=f"a stream that is read in groups of {expected}",
        got=f"one that is read in groups of {got}, so its batches come in another order and cannot be compared",
        where=f"{source.endpoint}, stream {source.stream}",
        remedy="Leave --group out, or compare with a job of the same group.",
    )


def _defect(where: str, expected: str, got: str) -> ProtocolError:
    return ProtocolError(expected=expected, got=got, where=where, remedy="Report this: it is a defect.")
