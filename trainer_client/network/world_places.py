"""Joining an elastic world: asking the coordinator for a place until there is one.

Rules: used in the waiting thread, with a socket of its own that lives only that long. Too few trainers are an error
after a time that the caller states. While others train, a spare waits for as long as they do.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import LostError, RefusedError, StokerError
from shared.events.trainer_fields import trainer_fields
from shared.logs import Log
from shared.silence import Silence
from shared.wire import messages as m
from shared.wire.refusing import error_of
from trainer_client.core.upcoming import Ranks
from trainer_client.network.coordinator_client import WARN_AFTER_S, lone_client

if TYPE_CHECKING:
    from trainer_client.core.settings import CoreSettings
    from trainer_client.network.coordinator_client import CoordinatorClient, ReceiverSettings

__all__ = ["wait_for_place"]

#: How often to ask until the coordinator sets a pause, and the pause if the connection is not up yet.
_PAUSE_S, _NOT_YET_S = 0.5, 0.02
#: Silence after which the connection is replaced: a live coordinator answers at once.
_SILENT_S = 2.0


def wait_for_place(settings: ReceiverSettings, limits: tuple[int, int], member: int, serial: int) -> CoreSettings:
    """Wait for a place in a world of `limits` trainers; return the trainer's settings with that place.

    Serials of one member must grow. Raise LostError if no world has begun after `connect_timeout_s`, which starts again
    whenever others are training, and the error of a refusal, usually a RefusedError. On any of these the coordinator is
    notified that we leave, if it is there. Errors of `lone_client`, and of its client's `send` and `renew`, pass
    through.
    """
    core, (least, most) = settings.core, limits
    join = m.Join(
        serial=serial,
        job=core.job,
        stream=core.stream,
        member=member,
        incarnation=secrets.randbits(63),
        name=core.name,
        replicas=core.ranks.replicas,
        least=least,
        most=most,
        behind=0,
    )
    with lone_client(settings.endpoint, settings.coordinator_keys) as client:
        try:
            placed = _PlaceRequest(settings, client, join).wait()
        except BaseException:  # a Ctrl-C as well: no world may count on a member that is gone
            client.send(m.Detach(stream=core.stream, rank=0, incarnation=join.incarnation))
            raise
    ranks = Ranks(rank=placed.rank, replicas=core.ranks.replicas, world=placed.world)
    return replace(core, ranks=ranks, incarnation=join.incarnation, world_version=placed.version)


class _PlaceRequest:
    """One request for a place, repeated until its answer."""

    def __init__(self, settings: ReceiverSettings, client: CoordinatorClient, join: m.Join) -> None:
        self._endpoint, self._timeout_s = settings.endpoint, settings.connect_timeout_s
        self._client = client
        self._join = join
        self._log = Log("trainer", stream=join.stream, **trainer_fields(join.name, None, join.incarnation))
        self._reason = "no answer"
        self._until_s = time.monotonic() + self._timeout_s
        self._warn_s = time.monotonic() + WARN_AFTER_S
        self._again_s = 0.0
        self._silence = Silence()

    def wait(self) -> m.Placed:
        """Ask until a place is given, and return that answer; raise an error after the timeout or on a refusal.

        After the timeout it is a LostError. While others train, each answer starts the timeout again. Errors of the
        client's `send` and `renew` pass through.
        """
        while True:
            now_s = time.monotonic()
            if now_s > self._until_s:
                self._reason = self._client.problem or self._reason
                raise self._nobody()
            self._warn_once(now_s)
            if now_s >= self._again_s:
                if self._silence.lose_patience(now_s, _SILENT_S):
                    self._client.renew()
                is_sent = self._client.send(self._join)
                self._again_s = now_s + (_PAUSE_S if is_sent else _NOT_YET_S)
            pause_s = min(self._again_s, self._until_s) - now_s
            if self._client.socket.poll(int(1000 * max(pause_s, 0)) + 1):
                for answer in self._client.read():
                    if isinstance(answer, m.Placed) and answer.serial == self._join.serial:
                        return answer
                    self._hear(answer, time.monotonic())

    def _warn_once(self, now_s: float) -> None:
        """Warn, long before the timeout, that no coordinator answers: the endpoint may be wrong.

        Do nothing before that time (5 s), once it was warned, or once an answer has come.
        """
        if now_s >= self._warn_s:
            self._warn_s = math.inf
            self._log.warning("no coordinator answers yet: it goes on asking", endpoint=self._endpoint)

    def _hear(self, answer: m.Message, now_s: float) -> None:
        self._silence.hear(now_s)
        self._warn_s = math.inf
        match answer:
            # An answer to an earlier request of this member may still arrive, with a place that it has left.
            case m.Gathering() if answer.serial == self._join.serial:
                self._note_gathering(answer, now_s)
            case m.NotAttached() if answer.serial == self._join.serial:
                raise error_of(answer, "coordinator")
            case m.Refused():
                raise RefusedError(
                    code=answer.code, expected=answer.expected, got=answer.got, where="coordinator",
                    remedy=answer.remedy,
                )  # fmt: skip

    def _note_gathering(self, gathering: m.Gathering, now_s: float) -> None:
        self._again_s = now_s + gathering.retry_ms / 1000
        self._join = replace(self._join, behind=gathering.behind)
        if gathering.behind:  # others train: a spare waits as long as they do, so the timeout starts again
            self._until_s = now_s + self._timeout_s
        if gathering.reason != self._reason:
            self._reason = gathering.reason
            self._log.info("waits for a place in the world", reason=gathering.reason)

    def _nobody(self) -> StokerError:
        return LostError(
            expected=f"a place in a world of at least {self._join.least} trainers within {self._timeout_s:g} s",
            got=self._reason,
            where=self._endpoint,
            remedy="Start more trainers or the loaders, allow fewer with elastic=, or more time with "
            "connect_timeout_s.",
        )
