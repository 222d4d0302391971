"""A trainer and a worker that lose each other and nobody else, and what is under way then."""

from __future__ import annotations

import threading

import pytest

import trainer_client
from shared.keys import make_keys
from shared.wire import messages as m
from tests.support.behind import BEATS, SLACK_S, SLOW, TIMEOUT_S, WAYS, Behind, metered, read_epoch, trained
from tests.support.fleet import fleet
from tests.support.loaders import wait_until, write_job
from tests.support.proxy import DOWN, UP, Proxy, messages_of
from trainer_client.core.asking.wants import WANTS_PER_HEDGE
from trainer_client.session.metrics import ASKED, HEDGED, STALE_BATCHES, SUSPECTED


@pytest.mark.fault(21)
@pytest.mark.parametrize("shared_memory", WAYS)
@pytest.mark.parametrize("cut", ["reset", "silence", "silence one way"])
def test_what_a_lost_worker_had_is_asked_of_another_until_the_two_meet_again(behind, tmp_path, cut, shared_memory):
    proxy = behind.proxy

    def at(count: int) -> None:
        if count == 5:
            {"reset": proxy.cut, "silence": lambda: proxy.hold(UP, DOWN), "silence one way": lambda: proxy.hold(DOWN)}[
                cut
            ]()
        if count == len(behind.calm) - 5:
            wait_until(lambda: value(SUSPECTED) >= 1, "it is suspected")
            behind.fleet.worker("far")  # it is not gone, only out of our reach

    with metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value):
        got, gap_s = read_epoch(feed, at)
        assert got == behind.calm
        assert gap_s < TIMEOUT_S + SLACK_S
        proxy.heal()
        built = behind.fleet.worker("far")["built"]
        wait_until(
            lambda: read_epoch(feed)[0] == behind.calm and behind.fleet.worker("far")["built"] > built + 5,
            "it builds for us again",
        )
        assert feed._session.error is None


@pytest.mark.fault(43)
@pytest.mark.parametrize("shared_memory", WAYS)
@pytest.mark.parametrize("side", [UP, DOWN])
def test_a_workers_connection_that_is_reset_on_one_side_is_got_over(behind, tmp_path, side, shared_memory):
    with metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, _):
        got, gap_s = read_epoch(feed, lambda count: behind.proxy.reset(side) if count == 5 else None)
        assert got == behind.calm
        assert gap_s < TIMEOUT_S + SLACK_S
        built = behind.fleet.worker("far")["built"]
        wait_until(
            lambda: read_epoch(feed)[0] == behind.calm and behind.fleet.worker("far")["built"] > built + 5,
            "it builds for us again",
        )


@pytest.mark.fault(43)
@pytest.mark.parametrize("side", [UP, DOWN])
def test_a_coordinators_connection_that_is_reset_on_one_side_is_made_anew(behind: Behind, side: str) -> None:
    with Proxy(behind.fleet.endpoint) as proxy, trainer_client.connect(proxy.endpoint) as feed:
        for batch in feed:
            feed.trained()
            if batch.number == 3:
                proxy.reset(side)
            if batch.number == 6:
                break
        wait_until(lambda: trained(behind.fleet) == [(0, 7)], "the coordinator knows how far we are")
        assert proxy.accepted > 1
        assert feed._session.error is None


@pytest.mark.slow
@pytest.mark.fault(43)
@pytest.mark.parametrize("side", [UP, DOWN])
def test_a_connection_of_sealed_payloads_that_is_reset_on_one_side_is_got_over(tmp_path, side) -> None:
    keys, port = str(tmp_path / "keys"), tmp_path / "port"
    make_keys(keys)
    job = write_job(tmp_path, samples=400, transforms=SLOW, job=f'{BEATS}\nkeys = "keys"')
    with Proxy() as proxy, fleet(job) as one:
        one.join("sealed", odd=(f"sealed={proxy.endpoint.rpartition(':')[2]}:{port}",))
        proxy.target = f"tcp://127.0.0.1:{port.read_text()}"
        with trainer_client.connect(one.endpoint, keys=keys, stream="dev", shared_memory=False) as feed:
            calm, _ = read_epoch(feed)
            came = proxy.ways[DOWN].came
            assert came > 100_000  # this is the way that they take
            got, gap_s = read_epoch(feed, lambda count: proxy.reset(side) if count == 5 else None)
            assert got == calm
            assert gap_s < 2 * TIMEOUT_S + SLACK_S
            wait_until(lambda: read_epoch(feed)[0] == calm and proxy.ways[DOWN].came > 3 * came, "they take it again")
            assert proxy.accepted > 1


@pytest.mark.fault(21)
@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_connection_whose_one_way_is_closed_is_made_anew(behind, tmp_path, way):
    with metered(behind.fleet.endpoint, tmp_path) as (feed, _):
        before = behind.proxy.accepted
        got, gap_s = read_epoch(feed, lambda count: behind.proxy.half_close(way) if count == 5 else None)
        assert got == behind.calm
        assert gap_s < TIMEOUT_S + SLACK_S
        wait_until(lambda: behind.proxy.accepted > before, "there is a new connection")


@pytest.mark.fault(23)
@pytest.mark.parametrize("shared_memory", WAYS)
def test_batches_from_before_a_short_cut_are_dropped_and_counted_if_others_came_meanwhile(tmp_path, shared_memory):
    """A cut that is shorter than the heartbeat timeout: what is under way stays so, and the head is asked twice."""
    job = write_job(tmp_path, samples=300, transforms=SLOW, job='heartbeat_timeout = "10 s"')
    with (
        fleet(job, "near") as one,
        one.join_behind_proxy("far") as proxy,
        metered(one.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value),
    ):
        calm, _ = read_epoch(feed)
        while value(ASKED) < WANTS_PER_HEDGE * (value(HEDGED) + 3):  # on a busy machine many were asked twice
            assert read_epoch(feed)[0] == calm
        before: dict[str, float] = {}
        read, held = [0], proxy.ways[DOWN]

        def is_too_late() -> bool:
            pushed = [one for parts in held.seen or () for one in messages_of(parts) if isinstance(one, m.Pushed)]
            return any(one.number < read[0] for one in pushed)

        def heal() -> None:
            wait_until(lambda: value(HEDGED) > before["hedged"], "the head was asked twice")
            wait_until(is_too_late, "what is held back came from the other meanwhile")
            proxy.heal()

        healer = threading.Thread(target=heal)

        def at(count: int) -> None:
            read[0] = count
            if count == 5:
                proxy.hold(DOWN)
                held.seen = []
                before.update(hedged=value(HEDGED), stale=value(STALE_BATCHES))
                healer.start()

        assert read_epoch(feed, at)[0] == calm
        healer.join()
        wait_until(lambda: value(STALE_BATCHES) > before["stale"], "what was under way has come")
        assert read_epoch(feed)[0] == calm
        assert value(SUSPECTED) == 0
