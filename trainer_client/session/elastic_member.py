"""One member of an elastic run, with a session of its own in each world.

Rules: only the member's identity outlives a world. So there is no state to be brought up to date: connections, slots
and prefetched batches are new in each world.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shared.errors import WorldChangedError
from trainer_client.network.joining import Joining
from trainer_client.session.feed_session import FeedSession

if TYPE_CHECKING:
    from trainer_client.network.receiver import ReceiverSettings
    from trainer_client.session.metrics_settings import MetricsSettings

__all__ = ["ElasticMember"]


class ElasticMember:
    """One process of an elastic run whose worlds have from `least` to `most` trainers."""

    def __init__(self, least: int, most: int) -> None:
        self._limits = (least, most)
        self._member = secrets.randbits(63)
        self._joins = 0

    def join(self, settings: ReceiverSettings, metrics: MetricsSettings) -> FeedSession:
        """Wait for a place in a world, attach with it, and return the session; its `join_next` joins the next world.

        A world that is over before we are attached is skipped. Raise LostError if no world begins within the timeout.
        """
        core = settings.core
        joining = Joining(
            endpoint=settings.endpoint,
            keys=settings.coordinator_keys,
            job=core.job,
            stream=core.stream,
            name=core.name,
            replicas=core.ranks.replicas,
            least=self._limits[0],
            most=self._limits[1],
            timeout_s=settings.connect_timeout_s,
        )
        while True:
            self._joins += 1
            place = joining.wait_for_place(self._member, self._joins)
            placed = replace(core, ranks=place.ranks, incarnation=place.incarnation, world_version=place.version)
            try:
                session = FeedSession(replace(settings, core=placed), metrics)
            except WorldChangedError:
                continue  # this world was over before we were attached
            session.join_next = partial(self.join, settings, metrics)
            return session
