"""The answer to a trainer that is attached: the stream, its start, and the workers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.coordinator.streams.queues import work_of
from shared.wire import messages as m
from shared.wire.topics.work_messages import VERIFY

if TYPE_CHECKING:
    from loader_server.coordinator.settings import CoordinatorSettings
    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
    from loader_server.coordinator.streams.verifiers import AttachedVerifier
    from shared.wire.message_parts import BookMark

__all__ = ["grant"]


def grant(
    settings: CoordinatorSettings,
    stream: StreamTrainers,
    trainer: AttachedTrainer | AttachedVerifier,
    members: m.Members,
    book: BookMark | None,
) -> m.Attached:
    """Return the answer to an attach request that is granted."""
    view, group = stream.view, trainer.cursor.group
    verifies = trainer.attach.work == VERIFY
    next_group = group if verifies else settings.group or (group if view.evaluation else stream.group)
    leases = view.leases is not None and not verifies
    return m.Attached(
        serial=trainer.attach.serial,
        job=settings.job,
        stream=trainer.attach.stream,
        evaluation=view.evaluation,
        work=work_of(trainer.attach, evaluation=view.evaluation) if leases else None,
        book=book if leases else None,
        cursor=trainer.cursor,
        next_group=next_group,
        tenure=trainer.tenure,
        batches=trainer.batches,
        most_batches=view.most_batches(max(next_group, group)),
        fields=view.fields,
        shapes=view.shapes,
        producers=view.producers,
        base_fields=view.base_fields,
        heartbeat_timeout_ms=int(1000 * settings.heartbeat_timeout_s),
        max_bad=settings.max_bad.share,
        max_bad_samples=settings.max_bad.samples,
        members=members.version,
        workers=members.workers,
    )
