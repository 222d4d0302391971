"""Queue mode while processes are killed, messages lost and clocks moved: each batch is done once, and work goes on."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from shared.wire import messages as m
from shared.wire.message_parts import Lease
from tests.faults.queue_chaos import Place
from tests.support.coordinator import attach
from tests.support.forked import start_code
from tests.support.loaders import Loaders, ask, running, wait_until, write_job
from tests.support.moved_clock import clock_in
from tests.support.peer import peers
from tests.support.proxy import DOWN, UP, Parts, Proxy, kinds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.wire.message_parts import BookMark

JOB = 'heartbeat_timeout = "700 ms"'
STREAM = 'mode = "queue"\nlease_timeout = "20 s"'


@pytest.mark.fault(12)
@pytest.mark.fault(17)
def test_leases_survive_the_coordinator_and_those_of_a_killed_trainer_go_to_another(tmp_path):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=4) as feed:
        victim = Place(60.0, tmp_path, loaders.endpoint, 1)
        victim.start()
        wait_until(lambda: victim.logs[0].stat().st_size, "the other trainer has a batch in hand")
        got, is_killed = Counter(), threading.Event()
        for batch in feed:
            got[batch.number] += 1
            if not is_killed.is_set():
                is_killed.set()
                loaders.coordinator().kill()
                victim.kill()
        train = ask(loaders.endpoint)["streams"]["train"]
        assert got == dict.fromkeys(range(train["batches"]), 1)
        table = train["queue"]["train"]
        assert (table["epoch"], table["dead"], table["unknown"], table["expired"]) == (1, 0, 0, 0)


@pytest.mark.fault(22)
@pytest.mark.parametrize(("way", "kind"), [(UP, m.Outcomes), (DOWN, m.Leases)])
def test_what_is_said_of_leases_and_lost_one_way_is_said_again_and_counts_once(tmp_path, way, kind):
    seen = itertools.count(1)

    def lose(parts: Parts) -> Iterable[Parts]:
        return [] if kind in kinds(parts) and next(seen) % 3 == 0 else [parts]

    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    with running(job, workers=1) as loaders, Proxy(loaders.endpoint) as proxy:
        proxy.ways[way].change = lose
        with trainer_client.connect(proxy.endpoint, epochs=2, prefetch=2) as feed:
            got = [Counter(batch.number for batch in feed) for _ in range(2)]
        train = ask(loaders.endpoint)["streams"]["train"]
    assert got == [dict.fromkeys(range(train["batches"]), 1)] * 2
    assert next(seen) > 6
    table = train["queue"]["train"]
    assert [table[what] for what in ("epoch", "dead", "unknown", "failed", "expired")] == [2, 0, 0, 0, 0]


@pytest.mark.fault(27)
def test_a_moved_clock_lets_no_lease_expire_and_keeps_none_alive(tmp_path):
    move = clock_in(tmp_path)
    job = write_job(tmp_path, samples=120, budget="2 s", job=JOB, stream=STREAM)
    with running(job, workers=1) as loaders:
        trainer, victim = (Place(step_s, tmp_path, loaders.endpoint, 1) for step_s in (0.02, 60.0))
        victim.start()
        wait_until(lambda: victim.lines()[0], "it has a batch in hand")
        trainer.start()
        for lines, offset_s in ((6, 3600), (12, -3600), (18, 0)):
            wait_until(lambda lines=lines: len(trainer.lines()[0]) >= lines, "some more is done")
            move(offset_s)
        victim.kill()
        assert trainer.process.wait(100) == 0
        train = ask(loaders.endpoint)["streams"]["train"]
    done = Counter(number for _, what, _, number in trainer.lines()[0] if what == "done")
    assert done == dict.fromkeys(range(train["batches"]), 1)
    table = train["queue"]["train"]
    assert [table[what] for what in ("epoch", "dead", "unknown", "failed", "expired")] == [1, 0, 0, 0, 0]


#: It trains on as many batches as each line says, and tells which these were and what is done by then.
_SHARER = """
import json, sys, trainer_client
epochs = int(sys.argv[2])
with trainer_client.connect(sys.argv[1], epochs=epochs, prefetch=3) as feed:
    for state in sys.argv[3:]:
        feed.restore(json.loads(state))
    batches = (batch for _ in range(feed.epoch, epochs) for batch in feed)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        trained = []
        while len(trained) < int(line) and (batch := next(batches, None)) is not None:
            trained.append((batch.epoch, batch.number))
            batch.done()
        print(json.dumps([trained, feed.state()]), flush=True)
"""


class Sharer:
    """A trainer in a process of its own."""

    def __init__(self, loaders: Loaders, epochs: int, *states: dict[str, Any]) -> None:
        self.process = start_code(_SHARER, loaders.endpoint, str(epochs), *map(json.dumps, states))
        assert self.hear() == "ready"

    def tell(self, batches: int) -> None:
        print(batches, file=self.process.stdin, flush=True)

    def hear(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def _train(sharers: list[Sharer], batches: int) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """What all of them train on, and what is done once each of them has said so."""
    for sharer in sharers:
        sharer.tell(batches)
    told = [sharer.hear() for sharer in sharers]
    sharers[0].tell(0)
    return [tuple(one) for trained, _ in told for one in trained], sharers[0].hear()[1]


@pytest.mark.fault(12)
@pytest.mark.timeout(300)
def test_in_the_model_of_a_checkpoint_each_batch_counts_once_though_all_are_killed_after_it(tmp_path):
    """The model is the list of what it was trained on. The chief saves it with what is done, when all have said so."""
    job = write_job(tmp_path, samples=240, budget="2 s", job=JOB, stream=STREAM)
    with running(job, workers=1) as loaders:
        model, saved = [], ()
        for round_number in range(4):
            chief = Sharer(loaders, 2, *saved)  # first, so that nobody trains on what the model has not seen
            sharers = [chief, Sharer(loaders, 2)]
            trained, state = _train(sharers, 7 if round_number < 3 else 10**6)
            model, saved = [*model, *trained], (state,)
            if round_number < 3:
                assert len(_train(sharers, 3)[0]) == 6, "done by the journal, and not in the model"
            if round_number == 1:
                loaders.coordinator().kill()
            for sharer in sharers:
                sharer.tell(10**6)
                sharer.kill()
        train = ask(loaders.endpoint)["streams"]["train"]
    assert Counter(model) == dict.fromkeys(itertools.product(range(2), range(train["batches"])), 1)
    assert train["queue"]["train"]["generation"] == 4


@pytest.mark.heritage("D5")
@pytest.mark.fault(12)
def test_reports_that_nobody_knows_of_are_counted_and_logged_and_training_goes_on(tmp_path):
    """Another trainer says that batches are done which it was never given, of the very book that all lease from."""
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    with (
        running(job, workers=1) as loaders,
        peers() as make,
        trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2) as feed,
    ):
        stray = make(loaders.endpoint)
        book = stray.ask(attach(job="tones", incarnation=9)).book
        got = Counter()
        for batch in feed:
            got[batch.number] += 1
            if got.total() in (3, 5):
                unknown = (Lease(0, batch.number, 1), Lease(0, batch.number, 70), Lease(7, 0, 1))
                answer = stray.ask(_done(unknown, book, serial=got.total()))
                assert (answer.book.identity, answer.leases) == (book.identity, ())
        train = ask(loaders.endpoint)["streams"]["train"]
    assert train["queue"]["train"]["unknown"] == 6
    assert "never leased to this trainer" in loaders.text()
    assert got == dict.fromkeys(range(train["batches"]), 1)


def _done(leases: tuple[Lease, ...], book: BookMark, *, serial: int) -> m.Outcomes:
    return m.Outcomes(
        stream="train", work="train", incarnation=9, serial=serial, book=book, generation=1, done=leases, failed=(),
        returned=(), in_hand=None, wanted=0, before=1, snapshot=False,
    )  # fmt: skip


_FINISHER = """
import sys, time, trainer_client
with trainer_client.connect(sys.argv[1], epochs=1) as feed:
    def work():
        print("at work", flush=True)
        time.sleep(600)
    feed.finish(work)
"""


@pytest.mark.fault(17)
def test_what_comes_once_at_the_end_is_done_by_another_if_its_trainer_is_killed_at_it(tmp_path):
    job = write_job(tmp_path, samples=8, budget="2 s", job=JOB, stream='mode = "queue"\nlease_timeout = "100 ms"')
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1) as feed:
        assert len(list(feed)) > 0
        with start_code(_FINISHER, loaders.endpoint) as victim:
            assert victim.stdout.readline() == "at work\n"
            done, told = [], []
            thread = threading.Thread(target=lambda: told.append(feed.finish(lambda: done.append(1))))
            thread.start()
            wait_until(lambda: ask(loaders.endpoint)["streams"]["train"]["queue"]["train-end"]["leased"], "it is had")
            loaders.coordinator().kill()
            victim.kill()
        thread.join(60)
        assert (told, done) == ([True], [1])
