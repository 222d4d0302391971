"""One process among the members of an elastic run: a session in each of its worlds, one after the other.

Rules: nothing of a world outlives it but who the member is. So there is no state to be brought up to date: connections,
slots and what was read ahead are new in each world.
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
    """`least` and `most` say how many trainers a world has."""

    def __init__(self, least: int, most: int) -> None:
        self._limits = (least, most)
        self._member = secrets.randbits(63)
        self._joins = 0

    def join(self, settings: ReceiverSettings, metrics: MetricsSettings) -> FeedSession:
        """Wait for a place in a world, and attach with it."""
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
                continue  # it was over before we were in
            session.join_next = partial(self.join, settings, metrics)
            return session
