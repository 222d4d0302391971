"""What a trainer's heartbeat says: how far its consumer is, what it read, and which part of the time it waited.

Rules: the receive thread makes each message, and the consumer writes what it is made of without waiting. Waiting that
begins, and waiting that ends, is an event for the log of the trainer as well; single heartbeats are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.events.spells import Spell, SpellBegan
from shared.wire import messages as m

if TYPE_CHECKING:
    from shared.logs import Log
    from trainer_client.core.attached_stream import AttachedStream
    from trainer_client.core.settings import CoreSettings
    from trainer_client.network.outbox import Outbox
    from trainer_client.network.standing import Standing

__all__ = ["Heartbeat"]


class Heartbeat:
    """The heartbeats of one trainer."""

    def __init__(self, settings: CoreSettings, standing: Standing, outbox: Outbox) -> None:
        self._settings, self._standing, self._outbox = settings, standing, outbox
        #: When the last one was made (0: none was), and how long the consumer had waited by then.
        self._made = (0.0, 0.0)
        self._spell = Spell()

    def make(self, members: int, stream: AttachedStream, now_s: float, log: Log) -> m.Progress:
        """Return the message that is due, and log waiting that began or ended since the one before.

        `members` is the version of the list of workers; of `stream` only the prefetch and time on the wire are read.
        """
        (epoch, number), (read_epoch, read_number) = self._standing.trained_to, self._outbox.read_to
        core = self._settings
        return m.Progress(
            stream=core.stream,
            rank=core.ranks.rank,
            incarnation=core.incarnation,
            epoch=epoch,
            number=number,
            read_epoch=read_epoch,
            read_number=read_number,
            waited_permille=round(1000 * self._measure_waited(now_s, log)),
            batches_read=self._outbox.batches_read,
            prefetch=stream.wants.prefetch,
            wire_us=int(1e6 * stream.answers.wire.busy_s),
            computed_us=int(1e6 * self._standing.computed_s),
            metrics=self._standing.metrics,
            members=members,
        )

    def _measure_waited(self, now_s: float, log: Log) -> float:
        """Return the part (0 to 1) of the time since the last heartbeat that the consumer waited; log spells of it."""
        waited_s = self._standing.waited_s + self._outbox.waiting_s(now_s)
        (made_s, before_s), self._made = self._made, (now_s, waited_s)
        share = max(0.0, min(1.0, (waited_s - before_s) / max(now_s - made_s, 1e-3)))
        event = self._spell.note(share, now_s - made_s if made_s else 0.0, now_s)
        if isinstance(event, SpellBegan):
            log.warning("waits for data", waited=round(event.share, 3))
        elif event is not None:
            log.info("waits for data no longer", seconds=round(event.seconds, 1), waited=round(event.share, 3))
        return share
