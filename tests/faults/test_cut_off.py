"""A trainer and a worker that lose each other and nobody else, and what is under way then: lost, late, twice."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from loader_server.commands.status import ask
from shared.keys import make_keys
from shared.metrics import names
from shared.wire import messages as m
from tests.support.fleet import Fleet, fleet
from tests.support.loaders import wait_until, write_job
from tests.support.proxy import DOWN, UP, Parts, Proxy, kinds, said
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_TIMEOUT_S = 0.5
_BEATS = f'heartbeat_timeout = "{_TIMEOUT_S * 1000:g} ms"'

#: One build, and a machine that is busy with other tests.
_SLACK_S = 3.0

_SLOW = ("tests.support.transforms:slow", "tests.support.transforms:noise", "logmel", "characters")

_WAYS = [pytest.param(True, id="shared memory"), pytest.param(False, id="tcp")]


@dataclass
class Behind:
    """Two workers: `near` is reached directly, `far` through a relay."""

    fleet: Fleet
    proxy: Proxy
    calm: list[tuple[int, int]]


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    job = write_job(
        tmp_path_factory.mktemp("job"),
        samples=400,
        transforms=_SLOW,
        job=_BEATS,
    )
    with fleet(job, "near") as one, one.join_behind_proxy("far") as proxy:
        with trainer_client.connect(one.endpoint, stream="dev") as feed:
            calm = [(batch.number, batch.digest) for batch in feed]
        assert len(calm) > 25
        yield Behind(one, proxy, calm)


@pytest.fixture(autouse=True)
def _as_before(behind: Behind) -> Iterator[None]:
    yield
    behind.proxy.heal()
    for way in behind.proxy.ways.values():
        way.change, way.seen = lambda parts: [parts], None


@contextmanager
def _metered(endpoint: str, folder: Path, **how: Any) -> Iterator[tuple[trainer_client.Feed, Callable[..., float]]]:
    """A feed of the evaluation stream, whose epochs are alike, and how to look a metric of it up."""
    with trainer_client.connect(endpoint, stream="dev", metrics_port=0, metrics_targets=folder, **how) as feed:
        (target,) = read_targets(folder).values()

        def value(declared: Any) -> float:
            return sum(value for (name, _), value in fetch_metrics(target["address"]).items() if name == declared.name)

        yield feed, value


def _read(
    feed: trainer_client.Feed, at: Callable[[int], object] = lambda _count: None
) -> tuple[list[tuple[int, int]], float]:
    """An epoch, and the longest wait for a batch; `at` is called with how many there were."""
    got, arrived_s = [], [time.monotonic()]
    for batch in feed:
        got.append((batch.number, batch.digest))
        arrived_s.append(time.monotonic())
        at(len(got))
    return got, max(after - before for before, after in itertools.pairwise(arrived_s))


def _trained(one: Fleet) -> list[tuple[int, int]]:
    """How far the coordinator knows each trainer to be."""
    trainers = ask(one.endpoint)["streams"]["train"]["trainers"]
    return [(trainer["epoch"], trainer["number"]) for trainer in trainers]


# --- lost to each other ---


@pytest.mark.fault(21)
@pytest.mark.parametrize("shared_memory", _WAYS)
@pytest.mark.parametrize("cut", ["reset", "silence", "silence one way"])
def test_what_a_lost_worker_had_is_asked_of_another_until_the_two_meet_again(behind, tmp_path, cut, shared_memory):
    proxy = behind.proxy

    def at(count: int) -> None:
        if count == 5:
            {"reset": proxy.cut, "silence": lambda: proxy.hold(UP, DOWN), "silence one way": lambda: proxy.hold(DOWN)}[
                cut
            ]()
        if count == len(behind.calm) - 5:
            assert sorted(behind.fleet.members()) == ["far", "near"]  # it is not gone, only out of our reach
            assert value(names.SUSPECTED) >= 1

    with _metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value):
        got, gap_s = _read(feed, at)
        assert got == behind.calm
        assert gap_s < _TIMEOUT_S + _SLACK_S
        proxy.heal()
        built = behind.fleet.worker("far")["built"]
        wait_until(
            lambda: _read(feed)[0] == behind.calm and behind.fleet.worker("far")["built"] > built + 5,
            "it builds for us again",
        )
        assert feed._session.error is None


@pytest.mark.fault(43)
@pytest.mark.parametrize("shared_memory", _WAYS)
@pytest.mark.parametrize("side", [UP, DOWN])
def test_a_workers_connection_that_is_reset_on_one_side_is_got_over(behind, tmp_path, side, shared_memory):
    with _metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, _):
        got, gap_s = _read(feed, lambda count: behind.proxy.reset(side) if count == 5 else None)
        assert got == behind.calm
        assert gap_s < _TIMEOUT_S + _SLACK_S
        built = behind.fleet.worker("far")["built"]
        wait_until(
            lambda: _read(feed)[0] == behind.calm and behind.fleet.worker("far")["built"] > built + 5,
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
        wait_until(lambda: _trained(behind.fleet) == [(0, 7)], "the coordinator knows how far we are")
        assert proxy.accepted > 1
        assert feed._session.error is None


@pytest.mark.fault(43)
@pytest.mark.parametrize("side", [UP, DOWN])
def test_a_connection_of_sealed_payloads_that_is_reset_on_one_side_is_got_over(tmp_path, side) -> None:
    keys, port = str(tmp_path / "keys"), tmp_path / "port"
    make_keys(keys)
    job = write_job(tmp_path, samples=400, transforms=_SLOW, job=f'{_BEATS}\nkeys = "keys"')
    with Proxy() as proxy, fleet(job) as one:
        one.join("sealed", odd=(f"sealed={proxy.endpoint.rpartition(':')[2]}:{port}",))
        proxy.target = f"tcp://127.0.0.1:{port.read_text()}"
        with trainer_client.connect(one.endpoint, keys=keys, stream="dev", shared_memory=False) as feed:
            calm, _ = _read(feed)
            came = proxy.ways[DOWN].came
            assert came > 100_000  # this is the way that they take
            got, gap_s = _read(feed, lambda count: proxy.reset(side) if count == 5 else None)
            assert got == calm
            assert gap_s < 2 * _TIMEOUT_S + _SLACK_S
            wait_until(lambda: _read(feed)[0] == calm and proxy.ways[DOWN].came > 3 * came, "they take it again")
            assert proxy.accepted > 1


@pytest.mark.fault(21)
@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_connection_whose_one_way_is_closed_is_made_anew(behind, tmp_path, way):
    with _metered(behind.fleet.endpoint, tmp_path) as (feed, _):
        before = behind.proxy.accepted
        got, gap_s = _read(feed, lambda count: behind.proxy.half_close(way) if count == 5 else None)
        assert got == behind.calm
        assert gap_s < _TIMEOUT_S + _SLACK_S
        wait_until(lambda: behind.proxy.accepted > before, "there is a new connection")


# --- answers that never come ---


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

        wait_until(lambda: _trained(behind.fleet) == [(0, 7)], "the coordinator knows how far we are")
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
            return [one for parts in proxy.ways[UP].seen for one in said(parts) if isinstance(one, m.Register)]

        wait_until(lambda: left == [0] and len(asked()) >= 3, "it has asked again")
        assert sorted(behind.fleet.members()) == ["far", "near", "unanswered"]
        assert len(set(asked())) == 1
        worker.terminate()
        assert worker.wait(20) == 0
        wait_until(lambda: sorted(behind.fleet.members()) == ["far", "near"], "it has left")


@pytest.mark.fault(22)
@pytest.mark.parametrize("shared_memory", _WAYS)
@pytest.mark.parametrize(("way", "kind"), [(UP, m.Want), (DOWN, m.Pushed)])
def test_wants_and_batches_that_are_lost_are_noticed_and_each_counts_once(behind, tmp_path, way, kind, shared_memory):
    seen = itertools.count(1)

    def lose(parts: Parts) -> Iterable[Parts]:
        return [] if kind in kinds(parts) and next(seen) % 3 == 0 else [parts]

    behind.proxy.ways[way].change = lose
    with _metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value):
        for _ in range(2):
            assert _read(feed)[0] == behind.calm
        assert value(names.LOST_WANTS) > 0
        assert next(seen) > 3


# --- what comes when nobody expects it any more ---


@pytest.mark.fault(23)
@pytest.mark.parametrize("shared_memory", _WAYS)
def test_batches_from_before_a_short_cut_are_dropped_and_counted_if_others_came_meanwhile(tmp_path, shared_memory):
    """A cut that is shorter than the heartbeat timeout: what is under way stays so, and the head is asked twice."""
    job = write_job(tmp_path, samples=300, transforms=_SLOW, job='heartbeat_timeout = "10 s"')
    with (
        fleet(job, "near") as one,
        one.join_behind_proxy("far") as proxy,
        _metered(one.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value),
    ):
        calm, _ = _read(feed)
        before = value(names.HEDGED), value(names.STALE_BATCHES)
        healer = threading.Thread(
            target=lambda: (
                wait_until(lambda: value(names.HEDGED) > before[0], "the head was asked twice"),
                proxy.heal(),
            )
        )

        def at(count: int) -> None:
            if count == 5:
                proxy.hold(DOWN)
                healer.start()

        assert _read(feed, at)[0] == calm
        healer.join()
        wait_until(lambda: value(names.STALE_BATCHES) > before[1], "what was under way has come")
        assert _read(feed)[0] == calm
        assert value(names.SUSPECTED) == 0


@pytest.mark.fault(23)
@pytest.mark.fault(24)
@pytest.mark.parametrize("shared_memory", _WAYS)
def test_batches_that_are_sent_once_more_later_are_dropped_and_counted(behind, tmp_path, shared_memory):
    behind.proxy.ways[DOWN].seen = []
    with _metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, value):
        assert _read(feed)[0] == behind.calm
        old = [parts for parts in behind.proxy.ways[DOWN].seen if m.Pushed in kinds(parts)]
        assert old
        before = value(names.STALE_BATCHES)

        def at(count: int) -> None:
            if count % 4 == 1:
                behind.proxy.inject(DOWN, old)

        assert _read(feed, at)[0] == behind.calm
        wait_until(lambda: value(names.STALE_BATCHES) >= before + len(old), "they were counted")


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
        return sum(
            value for (name, _), value in fetch_metrics(far["address"]).items() if name == names.STALE_WANTS.name
        )

    with _metered(behind.fleet.endpoint, tmp_path) as (feed, _):
        assert _read(feed)[0] == behind.calm
        old = [parts for parts in behind.proxy.ways[UP].seen if m.Want in kinds(parts)]
        assert old
        before = stale()
        assert _read(feed, lambda count: behind.proxy.inject(UP, old) if count == 3 else None)[0] == behind.calm
        wait_until(lambda: stale() >= before + len(old), "they were counted")
        assert _read(feed)[0] == behind.calm


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
        threading.Event().wait(_TIMEOUT_S * (1.5 if rare else 0.1 * self._chance.random()))
        return [parts]


_CHANGES = {"twice": lambda: _twice, "swapped": _Swapped, "late": _Late}


@pytest.mark.fault(24)
@pytest.mark.parametrize("shared_memory", _WAYS)
@pytest.mark.parametrize("change", _CHANGES)
def test_messages_of_a_worker_that_come_twice_swapped_or_late_change_nothing(behind, tmp_path, change, shared_memory):
    for way in behind.proxy.ways.values():
        way.change = _CHANGES[change]()
    with _metered(behind.fleet.endpoint, tmp_path, shared_memory=shared_memory) as (feed, _):
        built = behind.fleet.worker("far")["built"]
        for _ in range(2):
            assert _read(feed)[0] == behind.calm
        wait_until(lambda: behind.fleet.worker("far")["built"] > built, "it had part in this")


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
            wait_until(lambda: _trained(behind.fleet) == [(2, 0)], "the coordinator knows that two epochs are done")
