"""Messages between a trainer, a worker and the coordinator that never come."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

import trainer_client
from shared.wire import messages as m
from tests.support.behind import WAYS, Behind, metered, read_epoch, trained
from tests.support.loaders import wait_until
from tests.support.proxy import DOWN, UP, Parts, Proxy, kinds, messages_of
from trainer_client.session.metrics import LOST_WANTS

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.fault(22)
def test_progress_whose_answers_are_lost_is_known_all_the_same(behind: Behind) -> None:
    def lose(parts: Parts) -> Iterable[Parts]:
        return [] if kinds(parts) & {m.Noted, m.Members} else [parts]

    with Proxy(behind.fleet.endpoint) as proxy, trainer_client.connect(proxy.endpoint) as feed:
        proxy.ways[DOWN].change = lose
        for batch in feed:
            feed.trained()
            if batch.number == 6:
                break

        wait_until(lambda: trained(behind.fleet) == [(0, 7)], "the coordinator knows how far we are")
        proxy.ways[DOWN].change = lambda parts: [parts]
        assert feed._session.error is None


@pytest.mark.fault(22)
def test_a_worker_whose_registration_is_not_answered_registers_again_and_is_there_once(behind: Behind) -> None:
    left = [2]

    def lose(parts: Parts) -> Iterable[Parts]:
        lost = m.Registered in kinds(parts) and left[0] > 0
        left[0] -= lost
        return [] if lost else [parts]

    with Proxy(behind.fleet.endpoint) as proxy:
        proxy.ways[DOWN].change, proxy.ways[UP].seen = lose, []
        worker = behind.fleet.join("unanswered", "--coordinator", proxy.endpoint)

        def asked() -> list[m.Register]:
            return [one for parts in proxy.ways[UP].seen for one in messages_of(parts) if isinstance(one, m.Register)]

        wait_until(lambda: left == [0] and len(asked()) >= 3, "it has asked again")
        wait_until(lambda: sorted(behind.fleet.members()) == ["far", "near", "unanswered"], "it is there once")
        assert len(set(asked())) == 1
        worker.terminate()
        assert worker.wait(60) == 0
        wait_until(lambda: sorted(behind.fleet.members()) == ["far", "near"], "it has left")


@pytest.mark.fault(22)
@pytest.mark.parametrize("shared_memory", WAYS)
@pytest.mark.parametrize(("way", "kind"), [(UP, m.Want), (DOWN, m.Pushed)])
def test_wants_and_batches_that_are_lost_are_noticed_and_each_counts_once(behind, tmp_path, way, kind, shared_memory):
    seen = itertools.count(1)

    def lose(parts: Parts) -> Iterable[Parts]:
        return [] if kind in kinds(parts) and next(seen) % 3 == 0 else [parts]

    behind.proxy.ways[way].change = lose
    with metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value):
        assert read_epoch(feed)[0] == behind.calm

        def are_noticed() -> bool:
            assert read_epoch(feed)[0] == behind.calm
            return value(LOST_WANTS) > 0

        wait_until(are_noticed, "some were lost, and noticed")
        assert next(seen) > 3
