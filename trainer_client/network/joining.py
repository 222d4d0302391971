"""Joining an elastic world: asking the coordinator for a place until there is one.

Rules: used in the waiting thread, with a socket of its own that lives only that long. Too few trainers are an error
after a time that the caller states. While others train, a spare waits for as long as they do.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import zmq

from shared.errors import LostError, RefusedError, StokerError
from shared.logs import Log
from shared.silence import Silence
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire import messages as m
from shared.wire.refusing import error_of
from trainer_client.core.upcoming import Ranks
from trainer_client.network.coordinator_client import CoordinatorClient

if TYPE_CHECKING:
    from shared.keys import ClientKeys

__all__ = ["Joining", "WorldPlace"]

#: After how long to log that no coordinator answers.
_SAYS_SO_AFTER_S = 5.0
#: How often to ask until the coordinator sets a pause, and the pause if the connection is not up yet.
_PAUSE_S, _NOT_YET_S = 0.5, 0.02
#: Silence after which the connection is replaced: a live coordinator answers at once.
_SILENT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlace:
    """A place in a world of this version, and the incarnation that it was given to."""

    version: int
    incarnation: int
    ranks: Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A trainer's wish for a place: the coordinator, the job and stream, the limits of the world, and the patience."""

    endpoint: str
    keys: ClientKeys | None
    job: str
    stream: str
    name: str
    replicas: int
    least: int
    most: int
    timeout_s: float

    def wait_for_place(self, member: int, serial: int) -> WorldPlace:
        """Wait for a place and return it. Serials of one member must grow.

        Raise LostError if no world has begun after `timeout_s`, and RefusedError if the coordinator refuses us. On any
        error the coordinator is told that we leave, so that no world counts on us.
        """
        join = m.Join(
            serial=serial,
            job=self.job,
            stream=self.stream,
            member=member,
            incarnation=secrets.randbits(63),
            name=self.name,
            replicas=self.replicas,
            least=self.least,
            most=self.most,
            behind=0,
        )
        refuse_small_limits_of_client()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        client = CoordinatorClient(context, self.endpoint, self.keys)
        try:
            placed = _Asking(self, client, join).wait()
        except BaseException:  # a Ctrl-C as well: no world may count on a member that is gone
            client.send(m.Detach(stream=self.stream, rank=0, incarnation=join.incarnation))
            raise
        finally:
            client.close()
            context.term()
        ranks = Ranks(rank=placed.rank, replicas=self.replicas, world=placed.world)
        return WorldPlace(version=placed.version, incarnation=join.incarnation, ranks=ranks)


class _Asking:
    """One request for a place, repeated until its answer."""

    def __init__(self, joining: Joining, client: CoordinatorClient, join: m.Join) -> None:
        self._joining = joining
        self._client = client
        self._join = join
        self._log = Log("trainer", stream=joining.stream)
        self._reason = "no answer"
        self._until_s = time.monotonic() + joining.timeout_s
        self._says_so_s = time.monotonic() + _SAYS_SO_AFTER_S
        self._again_s = 0.0
        self._silence = Silence()

    def wait(self) -> m.Placed:
        """Ask until a place is given, and return that answer; raise an error after the timeout or on a refusal."""
        while True:
            now_s = time.monotonic()
            if now_s > self._until_s:
                self._reason = self._client.problem or self._reason
                raise self._nobody()
            self._say_so(now_s)
            if now_s >= self._again_s:
                if self._silence.lose_patience(now_s, _SILENT_S):
                    self._client.renew()
                is_sent = self._client.send(self._join)
                self._again_s = now_s + (_PAUSE_S if is_sent else _NOT_YET_S)
            pause_s = min(self._again_s, self._until_s) - now_s
            if self._client.socket.poll(int(1000 * max(pause_s, 0)) + 1):
                for said in self._client.read():
                    if isinstance(said, m.Placed) and said.serial == self._join.serial:
                        return said
                    self._hear(said, time.monotonic())

    def _say_so(self, now_s: float) -> None:
        """Warn once, long before the timeout, that no coordinator answers: the endpoint may be wrong."""
        if now_s >= self._says_so_s:
            self._says_so_s = math.inf
            self._log.warning("no coordinator answers yet: it goes on asking", endpoint=self._joining.endpoint)

    def _hear(self, said: m.Message, now_s: float) -> None:
        self._silence.hear(now_s)
        self._says_so_s = math.inf
        if isinstance(said, m.Gathering) and said.serial == self._join.serial:
            self._again_s = now_s + said.retry_ms / 1000
            self._join = replace(self._join, behind=said.behind)
            if said.behind:  # others train: a spare waits as long as they do, so the timeout starts again
                self._until_s = now_s + self._joining.timeout_s
            if said.reason != self._reason:
                self._reason = said.reason
                self._log.info("waits for a place in the world", reason=said.reason)
        elif isinstance(said, m.NotAttached) and said.serial == self._join.serial:
            raise error_of(said, "coordinator")
        elif isinstance(said, m.Refused):
            raise RefusedError(
                code=said.code, expected=said.expected, got=said.got, where="coordinator", remedy=said.remedy
            )

    def _nobody(self) -> StokerError:
        joining = self._joining
        return LostError(
            expected=f"a place in a world of at least {joining.least} trainers within {joining.timeout_s:g} s",
            got=self._reason,
            where=joining.endpoint,
            remedy="Start more trainers or the loaders, allow fewer with elastic=, or more time with "
            "connect_timeout_s.",
        )
