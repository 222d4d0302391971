"""The workers that the coordinator listed, in the order in which to talk to them, and those that we gave up on.

Rules: pure. All workers on this host come first. The others are ordered by a hash of the trainer and their endpoint, so
that load spreads over the fleet and a restarted worker keeps its place. One that turned us away is not tried again
before the list says that another incarnation runs there; one that was given up for others is, once the head is safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shared.errors import StokerError
    from shared.wire import messages as m
    from shared.wire.parts import WorkerAddress
    from trainer_client.core.settings import CoreSettings

__all__ = ["WorkerList"]


class WorkerList:
    """The latest list; empty until the coordinator sends one."""

    def __init__(self, settings: CoreSettings) -> None:
        self.version = 0
        #: The latest of the workers that could not begin to serve, if none came since.
        self.failing: m.Failing | None = None
        #: Endpoints on this host.
        self.local: list[str] = []
        #: Endpoints on other hosts, in the order in which to talk to them.
        self.remote: list[str] = []
        self._settings = settings
        self._addresses: dict[str, WorkerAddress] = {}
        self._ranks: dict[str, int] = {}
        #: What the workers that turned us away said, and which incarnation it was according to the list.
        self._turned_away: dict[str, tuple[int, StokerError]] = {}
        #: Endpoints that were given up for others while nobody can build the head, and why.
        self._given_up: dict[str, str] = {}

    def __contains__(self, endpoint: str) -> bool:
        return endpoint in self._addresses

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def update(self, version: int, workers: Iterable[WorkerAddress]) -> None:
        """Take in the coordinator's latest list."""
        workers, before = tuple(workers), {one.incarnation for one in self._addresses.values()}
        came = {one.worker for one in workers if one.incarnation not in before}
        if self.failing is not None and self.failing.worker in came:
            self.failing = None
        self.version = version
        known = self._addresses = {one.endpoint: one for one in workers}
        self._ranks = {endpoint: self._ranks.get(endpoint) or self.rank(endpoint) for endpoint in known}
        self.local = [endpoint for endpoint, one in known.items() if self._is_local(one)]
        remote = (endpoint for endpoint, one in known.items() if not self._is_local(one))
        self.remote = sorted(remote, key=self._ranks.__getitem__)
        self._turned_away = {
            endpoint: said
            for endpoint, said in self._turned_away.items()
            if endpoint in known and known[endpoint].incarnation == said[0]
        }

    def note_failing(self, failing: m.Failing) -> None:
        """Keep the latest worker that could not begin to serve, for the error that ends the feed."""
        self.failing = failing

    def rank(self, name: str) -> int:
        """A number to order workers by, which differs from trainer to trainer."""
        return digest64(f"{self._settings.incarnation} {name}".encode())

    def _is_local(self, address: WorkerAddress) -> bool:
        return bool(address.boot_id) and address.boot_id == self._settings.boot_id

    def name(self, endpoint: str) -> str:
        """What to call the worker at this endpoint."""
        address = self._addresses.get(endpoint)
        return address.worker if address is not None else endpoint

    # --- those that we gave up on ---

    def note_turned_away(self, endpoint: str, error: StokerError) -> None:
        """The worker there refused us, or cannot be reached at all."""
        address = self._addresses.get(endpoint)
        if address is not None:
            self._turned_away[endpoint] = (address.incarnation, error)

    def give_up(self, endpoint: str, why: str) -> None:
        """Others are tried instead."""
        self._given_up[endpoint] = why

    def try_again(self) -> None:
        """Those that were given up may be tried again."""
        self._given_up.clear()

    def is_out(self, endpoint: str) -> bool:
        """Whether it is not to be tried at the moment."""
        return endpoint in self._turned_away or endpoint in self._given_up

    def out(self) -> dict[str, str]:
        """Those that are out, each with the reason."""
        return dict.fromkeys(self._turned_away, "turned us away") | self._given_up

    def refusals(self) -> list[StokerError]:
        """What those that turned us away said."""
        return [error for _, error in self._turned_away.values()]
