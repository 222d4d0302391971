"""Queue mode as a user meets it: feeds that share a stream's batches, through the public API, on real loaders."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections import Counter

import pytest
from rich.console import Console

import trainer_client
from loader_server.commands import status
from shared.errors import RefusedError, SettingsError
from tests.support.loaders import running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets, total
from trainer_client.given_batches import GivenBatches

QUEUE = 'mode = "queue"\nlease_timeout = "{}"\ntries = 2'


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queue")
    with running(write_queue(folder), workers=1) as loaders:
        yield loaders


def write_queue(folder, lease_timeout="30 s"):
    """Nobody who is slow because the machine is loses anything meanwhile."""
    return write_job(
        folder, samples=60, budget="2 s", stream=QUEUE.format(lease_timeout), job='heartbeat_timeout = "2 s"'
    )


@pytest.fixture
def fresh(loaders):
    """Nothing is done yet, whatever the test before did."""
    with trainer_client.connect(loaders.endpoint) as feed:
        feed.restore(feed.state() | {"epochs": [[0, 0, []]]})
    return loaders


def table(loaders, stream="train", work="train"):
    return status.ask(loaders.endpoint)["streams"][stream]["queue"][work]


def read(feed, into, epochs):
    for _ in range(feed.epoch, epochs):
        for batch in feed:
            into.append((batch.epoch, batch.number))


def read_together(feeds, epochs):
    got = [[] for _ in feeds]
    threads = [threading.Thread(target=read, args=(feed, into, epochs)) for feed, into in zip(feeds, got, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    return Counter(one for some in got for one in some)


@pytest.fixture(autouse=True)
def opened():
    """Close what `connect` opened: feeds that a test left open would hold batches that the next ones wait for."""
    yield
    while OPENED:
        OPENED.pop().close()


OPENED = []


def connect(loaders, count, **how):
    feeds = [trainer_client.connect(loaders.endpoint, **how) for _ in range(count)]
    OPENED.extend(feeds)
    return feeds


@pytest.mark.heritage("D1")
@pytest.mark.heritage("D4")
@pytest.mark.heritage("D15")
@pytest.mark.heritage("E2")
@pytest.mark.heritage("E9")
def test_feeds_share_epochs_each_batch_comes_once_and_the_end_is_told(fresh):
    feeds = connect(fresh, 3, epochs=2)
    count = status.ask(fresh.endpoint)["streams"]["train"]["batches"]
    batches = read_together(feeds, 2)
    assert batches == {(epoch, number): 1 for epoch in range(2) for number in range(count)}
    after = table(fresh)
    assert (after["epoch"], after["open"], after["leased"], after["done"], after["dead"]) == (2, 0, 0, count, 0)


def printed(report):
    """What `loader-server status` prints, with single spaces and without frames."""
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(status.tables(report))
    return " ".join(console.export_text().replace("│", " ").split())


class Watch:
    """Whoever asks how far a job of two trainers is, and knows it."""

    def __init__(self, loaders, targets, feeds):
        self.loaders, self.targets, self.feeds = loaders, targets, feeds
        self.batches = self.stream()["batches"]
        #: How many batches of each epoch are done.
        self.done = Counter()

    def stream(self):
        return status.ask(self.loaders.endpoint)["streams"]["train"]

    def place(self):
        """The first epoch that is not done, and how many batches of it are."""
        at = next(epoch for epoch in range(len(self.done) + 2) if self.done[epoch] < self.batches)
        return at, self.done[at]

    def metered(self):
        (address,) = [one["address"] for one in read_targets(self.targets).values() if one["role"] == "coordinator"]
        found = fetch_metrics(address)
        return tuple(int(total(found, f"stoker_trained_{name}")) for name in ("epoch", "batch_number"))

    def look(self):
        at, number = self.place()
        wait_until(
            lambda: (self.stream()["epoch"], self.stream()["number"]) == (at, number), f"{at}, {number} is shown"
        )
        report = status.ask(self.loaders.endpoint)
        train = report["streams"]["train"]
        queue = train["queue"]["train"]
        first, last = queue["epochs"]
        counts = [queue[state] for state in ("open", "leased", "done")]
        assert sum(counts) == (last + 1 - first) * self.batches
        assert queue["done"] == sum(self.done[epoch] for epoch in range(first, last + 1))
        assert {trainer["rank"] for trainer in train["trainers"]} <= {None}
        text = printed(report)
        assert f"train {at} {number} {self.batches} - " in text
        assert f"train train {first}{f' to {last}' if last > first else ''} {' '.join(map(str, counts))} 0 0 " in text
        assert "rank 0" not in text
        wait_until(lambda: self.metered() == (at, number), "metrics say the same")
        epochs = pytest.approx(sum(self.done.values()) / self.batches)
        for feed in self.feeds:
            wait_until(lambda feed=feed: feed._session.cursor.epochs_done()[0] == epochs, "and so does a progress line")


def test_all_that_is_said_of_a_queue_of_two_trainers_and_four_epochs_is_true(tmp_path):
    job, targets = write_queue(tmp_path), tmp_path / ".stoker/tones/targets"
    metered = {"metrics_port": 0, "metrics_targets": targets}
    with (
        running(job, workers=1) as loaders,
        trainer_client.connect(loaders.endpoint, epochs=4, **metered) as quick,
        trainer_client.connect(loaders.endpoint, epochs=4) as slow,
    ):
        assert [one["rank"] for one in read_targets(targets).values() if one["role"] == "trainer"] == ["none"]
        watch = Watch(loaders, targets, [quick, slow])
        # The slow trainer has a batch of the first epoch in hand, while the other goes on to the second.
        held, looked = next(iter(slow)), 0
        while quick.epoch < 4:
            for batch in quick:
                batch.done()
                watch.done[batch.epoch] += 1
                if slow in watch.feeds and batch.epoch == 1 and watch.done[1] > 3:
                    watch.look()
                    assert watch.place()[0] == 0
                    held.done()
                    watch.done[0] += 1
                    watch.feeds.remove(slow)
                    slow.close()
                if sum(watch.done.values()) % 9 == 0:
                    watch.look()
                    looked += 1
        watch.look()
        assert {epoch: count for epoch, count in watch.done.items() if count} == dict.fromkeys(range(4), watch.batches)
        assert looked > 3


def test_two_feeds_of_one_stream_in_one_process_are_told_apart(tmp_path):
    job, targets = write_queue(tmp_path), tmp_path / ".stoker/tones/targets"
    metered = {"metrics_port": 0, "metrics_targets": targets}

    def found():
        return {one["trainer"]: one["address"] for one in read_targets(targets).values() if one["role"] == "trainer"}

    name = f"train-{os.uname().nodename}-{os.getpid()}"
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, **metered) as first:
        with trainer_client.connect(loaders.endpoint, **metered):
            assert found().keys() == {name, f"{name}-2"}
            assert len({*found().values()}) == 2
            report = status.ask(loaders.endpoint)
            trainers = [trainer["name"] for trainer in report["streams"]["train"]["trainers"]]
            assert sorted(trainers) == [(own := f"{os.uname().nodename}:{os.getpid()}"), f"{own}:2"]
            first.close()
            assert found().keys() == {f"{name}-2"}
            with trainer_client.connect(loaders.endpoint, **metered):
                assert found().keys() == {name, f"{name}-2"}
        assert found() == {}


def test_status_and_metrics_say_how_far_a_queue_is(tmp_path):
    job = write_queue(tmp_path)

    def shown():
        stream = status.ask(loaders.endpoint)["streams"]["train"]
        return stream["epoch"], stream["number"], stream["batches"]

    def metered():
        targets = read_targets(tmp_path / ".stoker/tones/targets").values()
        (address,) = [target["address"] for target in targets if target["role"] == "coordinator"]
        found = fetch_metrics(address)
        return [int(total(found, f"stoker_{name}")) for name in ("trained_epoch", "trained_batch_number")]

    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=2) as feed:
        (_, _, count) = shown()
        assert (shown(), metered()) == ((0, 0, count), [0, 0])
        for read_before, batch in enumerate(feed):
            if batch.number == 3:
                wait_until(lambda: shown()[1] >= 2, "what is done is shown")
                assert shown()[:2] <= (0, read_before)
        wait_until(lambda: shown() == (1, 0, count), "an epoch is done")
        wait_until(lambda: metered() == [1, 0], "and so do metrics")


@pytest.mark.heritage("D9")
def test_the_next_epoch_opens_while_a_straggler_finishes(fresh):
    slow, fast = connect(fresh, 2, epochs=2)
    held = iter(slow)
    straggling = next(held)
    got = []
    reader = threading.Thread(target=read, args=(fast, got, 2))
    reader.start()
    wait_until(lambda: any(epoch == 1 for epoch, _ in got), "the next epoch is read")
    assert (straggling.epoch, table(fresh)["epoch"]) == (0, 0)
    straggling.done()
    slow.close()
    reader.join(100)
    assert (straggling.epoch, straggling.number) not in got
    assert table(fresh)["epoch"] == 2


@pytest.mark.heritage("E3")
def test_what_failed_comes_again_and_is_given_up_visibly_after_its_tries(fresh, capsys):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        seen = Counter()
        for batch in feed:
            seen[batch.number] += 1
            if batch.number in (1, 2) and (batch.number == 2 or seen[1] == 1):
                batch.failed()
    assert {number: count for number, count in seen.items() if count > 1} == {1: 2, 2: 2}
    assert table(fresh)["dead_letters"] == [{"epoch": 0, "number": 2, "failures": 2, "reason": "no reason given"}]
    Console().print(status.tables(status.ask(fresh.endpoint, timeout_s=60.0)))
    assert "2 of epoch 0" in " ".join(capsys.readouterr().out.split())


@pytest.mark.heritage("E4")
def test_a_batch_that_takes_too_long_goes_to_another(tmp_path):
    with running(write_queue(tmp_path, "1 s"), workers=1) as loaders:
        slow, fast = connect(loaders, 2, epochs=1)
        stuck = next(iter(slow))
        got = read_together([fast], 1)
        assert (stuck.epoch, stuck.number) in got
        assert table(loaders)["expired"] > 0


@pytest.mark.slow
@pytest.mark.heritage("E4")
def test_a_deadline_is_three_times_what_the_slowest_batch_took(tmp_path):
    """A trainer that is slow, but was as slow before, keeps its batch beyond the shortest deadline."""
    with running(write_queue(tmp_path, "2 s"), workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        for batch, takes_s in zip(feed, (1.4, 3.2, 0), strict=False):
            time.sleep(takes_s)
            batch.done()
        assert (table(loaders)["expired"], table(loaders)["done"]) == (0, 3)


def test_a_loop_that_is_left_gets_its_last_batch_again(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        first = next(iter(feed)).number
        assert next(iter(feed)).number == first


def test_a_checkpoint_holds_what_is_done_and_restoring_it_rewinds(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        before = []
        for batch in feed:
            before.append(batch.number)
            if len(before) == 3:
                batch.done()
                state = json.loads(json.dumps(feed.state()))
            if len(before) == 6:
                break
        feed.restore(state)
        after = [batch.number for batch in feed]
        assert not feed._session.leases.is_taken_back, "by another"
    assert set(before[:3]).isdisjoint(after)
    assert set(before[3:]) <= set(after)
    assert len(after) == len(set(after)) == status.ask(fresh.endpoint)["streams"]["train"]["batches"] - 3


def test_a_trainer_knows_that_another_one_took_the_queue_back(fresh):
    with trainer_client.connect(fresh.endpoint) as first, trainer_client.connect(fresh.endpoint) as second:
        reading = iter(first)
        next(reading).done()
        second.restore(second.state() | {"epochs": [[0, 0, []]]})
        for batch in reading:
            batch.done()
            if first._session.leases.is_taken_back:
                break
        assert first._session.leases.is_taken_back


def test_evaluating_and_predicting_are_shared_the_same_way(loaders):
    for work in ("evaluate", "predict"):
        feeds = connect(loaders, 2, stream="dev", work=work)
        got = read_together(feeds, feeds[0].epoch + 1)
        assert set(got.values()) == {1}
        assert len(got) == table(loaders, "dev", work)["done"]
        for feed in feeds:
            feed.close()


def test_an_evaluation_that_was_left_is_no_part_of_the_next(loaders):
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        batches = iter(feed)
        first = [next(batches).number for _ in range(3)]
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        numbers = [batch.number for batch in feed]
    assert set(first) < set(numbers)
    assert sorted(numbers) == list(range(status.ask(loaders.endpoint)["streams"]["dev"]["batches"]))


def test_whoever_read_only_a_share_of_an_evaluation_is_told_so(loaders, caplog):
    def warnings():
        return [one.fields for one in caplog.records if "only a share of the evaluation" in one.getMessage()]

    batches = status.ask(loaders.endpoint)["streams"]["dev"]["batches"]
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        assert sum(1 for _ in feed) == batches
        assert warnings() == []
        with trainer_client.connect(loaders.endpoint, stream="dev", prefetch=1) as other:
            next(iter(other)).done()
            other.state()  # it is on the coordinator's disk
        assert sum(1 for _ in feed) == batches - 1
    (told,) = warnings()
    assert (told["batches"], told["of"]) == (batches - 1, batches)


def test_what_only_lockstep_has_is_refused_by_name(loaders):
    with trainer_client.connect(loaders.endpoint) as feed:
        with pytest.raises(SettingsError, match="queue mode"):
            feed.rounds_left()
        with pytest.raises(SettingsError, match="in queue mode"):
            feed.restore({**feed.state(), "work": None})
    with pytest.raises(RefusedError, match="one replica"):
        trainer_client.connect(loaders.endpoint, replicas=2)


def finish_together(feeds, work):
    """What each of them is told, and what went wrong in it."""
    told, threads = [None] * len(feeds), []

    def run(at, feed):
        try:
            told[at] = feed.finish(work)
        except ZeroDivisionError as error:
            told[at] = error

    for at, feed in enumerate(feeds):
        threads.append(threading.Thread(target=run, args=(at, feed)))
        threads[-1].start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    return told


@pytest.mark.heritage("E1")
def test_after_training_evaluating_and_predicting_one_trainer_does_what_comes_once_at_the_end(fresh):
    feeds, done = connect(fresh, 3, epochs=1), []
    waiting = threading.Thread(target=feeds[0].finish, args=(lambda: done.append("once"),))
    waiting.start()
    for _ in feeds[1]:
        assert not done, "an epoch is not over before its last batch is done"
    waiting.join(100)
    assert done == ["once"]
    assert finish_together(feeds[1:], lambda: done.append("again")) == [False, False]
    for work in ("evaluate", "predict"):
        with trainer_client.connect(fresh.endpoint, stream="dev", work=work) as other:
            assert sum(1 for _ in other) == table(fresh, "dev", work)["done"]
            with pytest.raises(SettingsError, match="expected a feed that trains"):
                other.finish(print)
    assert table(fresh, work="train-end")["done"] == 1


def test_what_fails_at_the_end_is_tried_by_another(fresh):
    feeds = connect(fresh, 2, epochs=1)
    read_together(feeds, 1)
    tries = []

    def fail_once():
        tries.append(1)
        return 1 // (len(tries) - 1)

    told = finish_together(feeds, fail_once)
    assert sorted(map(str, told)) == ["True", "integer division or modulo by zero"]
    assert len(tries) == 2


def test_what_failed_for_all_trainers_is_never_said_to_be_done(fresh):
    """More often than a batch may fail (`tries`)."""
    feeds = connect(fresh, 3, epochs=1)
    read_together(feeds, 1)
    told = finish_together(feeds, lambda: 1 // 0)
    assert [type(one) for one in told] == [ZeroDivisionError] * 3
    assert feeds[0].finish(lambda: None)
    assert finish_together(feeds[1:], print) == [False, False]


@pytest.mark.heritage("D17")
def test_evaluation_alone_of_one_batch_and_the_next_one_is_given_with_what_is_done(loaders, tmp_path):
    job = write_job(tmp_path, samples=2, budget="20 s", stream=QUEUE.format("30 s"))
    with running(job, workers=1) as small, trainer_client.connect(small.endpoint, stream="dev") as feed:
        assert [batch.number for batch in feed] == [0]
        assert [table(small, "dev", "evaluate")[what] for what in ("epoch", "done")] == [1, 1]
        assert table(small)["done"] == 0
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        for read_before, _ in enumerate(feed):
            wait_until(lambda before=read_before: table(loaders, "dev", "evaluate")["done"] >= before, "they are done")


def test_in_lockstep_nobody_is_asked_who_finishes(tmp_path):
    job = write_job(tmp_path, samples=8)
    refused = pytest.raises(SettingsError, match="is_master")
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed, refused:
        feed.finish(print)


def test_an_epoch_that_there_is_not_is_refused_instead_of_waited_for(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        assert len([batch.number for batch in feed]) > 0
        with pytest.raises(SettingsError, match=r"expected to read one of the 1 epochs .* got epoch 1"):
            next(iter(feed))


def test_a_frameworks_loop_says_done_by_asking_for_the_next_batch_or_for_its_state(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        given = GivenBatches(feed, list, "here")
        batches = iter(given)
        next(batches)
        given.state()
        assert table(fresh)["done"] == 1
        next(batches).failed()
        rest = list(batches)
        count = status.ask(fresh.endpoint)["streams"]["train"]["batches"]
        assert len(rest) == count - 1  # the one that failed came again
        after = table(fresh)
    assert (after["done"], after["dead"]) == (count, 0)
