"""Messages that come when nobody expects them any more, twice, out of order or late."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.metrics.worker_metrics import STALE_WANTS
from shared.wire import messages as m
from tests.support.behind import TIMEOUT_S, WAYS, Behind, metered, read_epoch, trained
from tests.support.loaders import wait_until
from tests.support.proxy import DOWN, UP, Parts, Proxy, kinds
from tests.support.scraping import fetch_metrics, read_targets
from trainer_client.session.metrics import STALE_BATCHES

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.fault(23)
@pytest.mark.fault(24)
@pytest.mark.parametrize("shared_memory", WAYS)
def test_batches_that_are_sent_once_more_later_are_dropped_and_counted(behind, tmp_path, shared_memory):
    behind.proxy.ways[DOWN].seen = []
    with metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value):
        old = _read_until_seen(behind, feed, DOWN, m.Pushed)
        before = value(STALE_BATCHES)

        def at(count: int) -> None:
            if count % 4 == 1:
                behind.proxy.inject(DOWN, old)

        def are_counted() -> bool:
            assert read_epoch(feed, at)[0] == behind.calm
            return value(STALE_BATCHES) >= before + len(old)

        wait_until(are_counted, "they were counted")


@pytest.mark.fault(23)
@pytest.mark.fault(24)
def test_wants_that_are_sent_once_more_later_are_dropped_by_the_worker_and_counted(behind, tmp_path):
    behind.proxy.ways[UP].seen = []
    (far,) = (
        one
        for one in read_targets(behind.fleet.job.parent / ".stoker/tones/targets").values()
        if one.get("worker") == "far"
    )

    def stale() -> float:
        return sum(value for (name, _), value in fetch_metrics(far["address"]).items() if name == STALE_WANTS.name)

    with metered(behind.fleet.endpoint, tmp_path) as (feed, _):
        old, before = _read_until_seen(behind, feed, UP, m.Want), stale()

        def are_counted() -> bool:
            epoch, _ = read_epoch(feed, lambda count: behind.proxy.inject(UP, old) if count == 3 else None)
            assert epoch == behind.calm
            return stale() >= before + len(old)

        wait_until(are_counted, "they were counted")
        assert read_epoch(feed)[0] == behind.calm


def _read_until_seen(behind: Behind, feed: trainer_client.Feed, way: str, kind: type[m.Message]) -> list[Parts]:
    """Messages of a kind that went this way: an epoch may be over before the worker behind the relay is greeted."""
    found: list[Parts] = []

    def had_part() -> bool:
        assert read_epoch(feed)[0] == behind.calm
        found[:] = [parts for parts in behind.proxy.ways[way].seen or () if kind in kinds(parts)]
        return bool(found)

    wait_until(had_part, "the worker behind the relay had part in this")
    return found


# --- twice, out of order, late ---


def _twice(parts: Parts) -> Iterable[Parts]:
    return [parts, parts]


class _Swapped:
    """Each second message before the one that came before it; but no Ping before a Want. What a Pong does not list is
    free to be lent again, and that is safe because a connection keeps the order in which things were said.
    """

    def __init__(self) -> None:
        self._held: Parts | None = None

    def __call__(self, parts: Parts) -> Iterable[Parts]:
        held, self._held = (self._held, None) if self._held is not None else (None, parts)
        if held is None:
            return []
        return [held, parts] if m.Ping in kinds(parts) else [parts, held]


class _Late:
    """Each up to a tenth of the heartbeat timeout late, now and then one beyond it."""

    def __init__(self) -> None:
        self._chance = random.Random(5)

    def __call__(self, parts: Parts) -> Iterable[Parts]:
        rare = self._chance.random() < 0.02
        threading.Event().wait(TIMEOUT_S * (1.5 if rare else 0.1 * self._chance.random()))
        return [parts]


_CHANGES = {"twice": lambda: _twice, "swapped": _Swapped, "late": _Late}


@pytest.mark.fault(24)
@pytest.mark.parametrize("shared_memory", WAYS)
@pytest.mark.parametrize("change", _CHANGES)
def test_messages_of_a_worker_that_come_twice_swapped_or_late_change_nothing(behind, tmp_path, change, shared_memory):
    for way in behind.proxy.ways.values():
        way.change = _CHANGES[change]()
    with metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, _):
        built = behind.fleet.worker("far")["built"]
        assert read_epoch(feed)[0] == behind.calm

        def had_part() -> bool:
            assert read_epoch(feed)[0] == behind.calm
            return behind.fleet.worker("far")["built"] > built

        wait_until(had_part, "it had part in this")


@pytest.mark.fault(24)
@pytest.mark.parametrize("change", _CHANGES)
def test_messages_of_the_coordinator_that_come_twice_swapped_or_late_change_nothing(behind: Behind, change) -> None:
    with Proxy(behind.fleet.endpoint) as proxy:
        for way in proxy.ways.values():
            way.change = _CHANGES[change]()
        with trainer_client.connect(proxy.endpoint) as feed:
            numbers = []
            for epoch in range(2):
                assert feed.epoch == epoch
                for batch in feed:
                    numbers.append((epoch, batch.number))
                    feed.trained()
            batches = len(numbers) // 2
            assert numbers == [(epoch, number) for epoch in range(2) for number in range(batches)]
            wait_until(lambda: trained(behind.fleet) == [(2, 0)], "the coordinator knows that two epochs are done")
