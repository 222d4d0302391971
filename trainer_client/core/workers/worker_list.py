"""The coordinator's list of workers, in the order in which to connect to them, and the workers to leave out.

Rules: pure. All workers on this host come first. The others are ordered by a hash of the trainer and their endpoint, so
that load spreads over the fleet and a restarted worker keeps its place. A worker that turned us away is not tried again
until another incarnation is listed there; one that was given up to make room is, once the head is safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shared.errors import StokerError
    from shared.wire import messages as m
    from shared.wire.message_parts import WorkerAddress
    from trainer_client.core.settings import CoreSettings

__all__ = ["WorkerList"]


class WorkerList:
    """The latest list of workers; empty until the coordinator sends one."""

    def __init__(self, settings: CoreSettings) -> None:
        self.version = 0
        #: The latest failure of a worker to begin to serve; None again once a new incarnation of that worker is listed.
        self.failing: m.Failing | None = None
        #: Endpoints on this host.
        self.local: list[str] = []
        #: Endpoints on other hosts, in the order in which to connect to them.
        self.remote: list[str] = []
        self._settings = settings
        self._addresses: dict[str, WorkerAddress] = {}
        self._ranks: dict[str, int] = {}
        #: Errors of workers that turned us away, by endpoint, with the incarnation that was listed there.
        self._turned_away: dict[str, tuple[int, StokerError]] = {}
        #: Endpoints that were given up to make room for others, with the reason.
        self._given_up: dict[str, str] = {}

    def __contains__(self, endpoint: str) -> bool:
        return endpoint in self._addresses

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def update(self, version: int, workers: Iterable[WorkerAddress]) -> None:
        """Replace the list by the coordinator's latest; a new incarnation at an endpoint may be tried again.

        The failure that was noted of a worker is forgotten once a new incarnation of that worker is listed.
        """
        workers, incarnations = tuple(workers), {address.incarnation for address in self._addresses.values()}
        new_names = {address.worker for address in workers if address.incarnation not in incarnations}
        if self.failing is not None and self.failing.worker in new_names:
            self.failing = None
        self.version = version
        known = self._addresses = {address.endpoint: address for address in workers}
        # By endpoint and not by incarnation: a restarted worker keeps its place, and so its trainers.
        self._ranks = {endpoint: self._ranks.get(endpoint) or self.rank(endpoint) for endpoint in known}
        self.local = [endpoint for endpoint, address in known.items() if self._is_local(address)]
        self.remote = sorted(known.keys() - set(self.local), key=self._ranks.__getitem__)
        # A reused address may be another job's worker today and ours tomorrow, so only the incarnation that turned us
        # away is left out.
        self._turned_away = {
            endpoint: (incarnation, error)
            for endpoint, (incarnation, error) in self._turned_away.items()
            if endpoint in known and known[endpoint].incarnation == incarnation
        }

    def note_failing(self, failing: m.Failing) -> None:
        """Keep the latest worker that could not begin to serve, for the error that ends the feed."""
        self.failing = failing

    def rank(self, name: str) -> int:
        """Return a number to order workers by: a hash of the name that differs from trainer to trainer."""
        return digest64(f"{self._settings.incarnation} {name}".encode())

    def _is_local(self, address: WorkerAddress) -> bool:
        return bool(address.boot_id) and address.boot_id == self._settings.boot_id

    def name(self, endpoint: str) -> str:
        """Return the listed name of the worker at this endpoint, or the endpoint itself if it is not listed."""
        address = self._addresses.get(endpoint)
        return address.worker if address is not None else endpoint

    # --- workers to leave out ---

    def note_turned_away(self, endpoint: str, error: StokerError) -> None:
        """Leave out a listed worker that refused us or cannot be reached, until another incarnation is listed there.

        Do nothing for an endpoint that is not listed.
        """
        address = self._addresses.get(endpoint)
        if address is not None:
            self._turned_away[endpoint] = (address.incarnation, error)

    def give_up(self, endpoint: str, why: str) -> None:
        """Leave out this endpoint to make room for others, until `try_again`."""
        self._given_up[endpoint] = why

    def try_again(self) -> None:
        """Allow the endpoints that were given up to be tried again."""
        self._given_up.clear()

    def is_out(self, endpoint: str) -> bool:
        """Return whether this endpoint is left out at the moment, as it turned us away or was given up."""
        return endpoint in self._turned_away or endpoint in self._given_up

    def out(self) -> dict[str, str]:
        """Return the endpoints that are left out, each with the reason in words."""
        return dict.fromkeys(self._turned_away, "turned us away") | self._given_up

    def refusals(self) -> list[StokerError]:
        """Return the errors of the listed workers that turned us away; empty if none did."""
        return [error for _, error in self._turned_away.values()]
