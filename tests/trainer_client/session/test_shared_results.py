"""What a trainer tells of its epochs, and how it waits for what others tell."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import trainer_client
from shared.errors import ClosedError, LostError, SettingsError
from shared.wire import messages as m
from shared.wire.message_parts import PIECE_BYTES
from tests.support.ends import Ends
from tests.support.loaders import wait_until
from trainer_client.session.shared_results import MeansOfTrainers

LOGS = {"loss": np.float32(0.5), "bad": math.inf, "one": np.array(1)}
ODD = {"confusion": np.eye(2), "word": "1.5", "non": None}
AT = {"rows": 4, "epoch": 1, "step": 2}


def whole(said):
    return [m.Aggregate(serial=said.serial, whole=True, rows=said.rows, values=said.values)]


@pytest.fixture
def told():
    with Ends() as ends:
        ends.answers[m.Results] = whole
        with trainer_client.connect(ends.endpoint) as feed:
            yield ends, feed


def test_numbers_are_told_and_what_is_none_is_left_out_and_said_once(told, caplog):
    ends, feed = told
    for _ in range(2):
        feed._session.results.share(LOGS | ODD, **AT)
    assert ends.wait_for(m.Results).values == (("loss", 0.5), ("bad", None), ("one", 1.0))
    (line,) = (record for record in caplog.records if "results are not shared" in record.getMessage())
    assert line.fields["names"] == sorted(ODD)


def test_no_more_is_told_than_a_message_holds(told):
    _, feed = told
    many = {"n" * 201: 1.0, **{f"n{one}": float(one) for one in range(65)}}
    shared = feed._session.results.share(many, **AT, wait=True)
    assert shared == {f"n{one}": float(one) for one in range(64)}


@pytest.mark.parametrize(
    "values", [{f"n{one}": 1.0 for one in range(65)}, {"n" * 201: 1.0}, {"loss": np.zeros(2)}, {"loss": "0.5"}]
)
def test_aggregate_refuses_what_it_cannot_tell(told, values):
    ends, feed = told
    with pytest.raises(SettingsError, match="aggregate: expected at most 64 numbers, with names of at most 200"):
        feed.aggregate(values, rows=1)
    assert not any(isinstance(one, m.Results) for one in ends.heard)


def waits(error, end):
    """Others tell nothing; `end` ends the feed while this one waits."""
    with (
        Ends() as ends,
        ThreadPoolExecutor(1) as thread,
        trainer_client.connect(ends.endpoint, lost_timeout_s=2.0) as feed,
    ):
        answer = thread.submit(feed.aggregate, {"loss": 1.0}, rows=1)
        wait_until(lambda: ends.repeats >= 3, "its time as a lost server is over, for it is said each second")
        assert not answer.done()
        end(feed)
        with pytest.raises(error):
            answer.result(60)


def test_others_are_waited_for_until_the_feed_is_closed():
    waits(ClosedError, lambda feed: feed.close())


def test_whoever_waits_gets_the_error_of_the_feed():
    error = LostError(expected="an answer", got="none", where="worker w1", remedy="Start a worker.")
    waits(LostError, lambda feed: feed.interrupt(error))


@pytest.mark.parametrize(
    "wait",
    [
        lambda feed: feed.aggregate({"loss": 1.0}, rows=1),
        lambda feed: feed._session.results.agree(1.0, epoch=0, step=1),
    ],
)
def test_whoever_waits_for_others_hears_that_one_is_gone(wait):
    gone = LostError(expected="all 2 processes", got="one", where="--strategy multi-worker", remedy="Start all again.")

    def refuse_lost():
        raise gone

    with Ends() as ends, trainer_client.connect(ends.endpoint) as feed:
        feed._session.watch_others(refuse_lost)
        with pytest.raises(LostError, match="expected all 2 processes"):
            wait(feed)


def test_who_does_not_wait_gets_no_error_of_a_feed_that_fails(told):
    ends, feed = told
    heard = threading.Event()
    ends.answers[m.Results] = lambda _: heard.set() or []
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(feed._session.results.share, {"loss": 1.0}, **AT)
        assert heard.wait(60)
        feed._session.receiver.fail(LostError(expected="an answer", got="none", where="w1", remedy="Start it."))
        assert answer.result(60) is None
    feed._session.end_run("over", epoch=1, step=2)


def test_the_end_of_an_elastic_run_is_told_once_all_are_there_to_wait_for_each_other():
    """Told before, it would end the world for a member that may still be lost."""
    with Ends() as ends:
        ends.answers[m.Results] = whole
        ends.answers[m.Join] = lambda said: [m.Placed(serial=said.serial, version=1, rank=0, world=1)]
        with trainer_client.connect(ends.endpoint, elastic=(1, 1)) as feed:
            feed._session.ends_later = True
            feed._session.end_run("2 epochs are reached", epoch=2, step=9)
            feed.aggregate({"loss": 1.0}, rows=1)
            feed._session.results.end_together()
    told = [(one.ended, one.epoch, one.step) for one in ends.heard if isinstance(one, m.Results)]
    assert [one for one in told if one[0]] == told[1:] == [("2 epochs are reached", 2, 9)]


def test_states_of_ranks_are_summed_piece_by_piece(told):
    ends, feed = told
    ends.answers[m.Results] = lambda said: [
        m.Aggregate(serial=said.serial, whole=True, rows=1, values=(), states=_doubled(said.states))
    ]
    states = np.arange(PIECE_BYTES // 4, dtype="<f8")
    summed = feed._session.results.sum_states(states.tobytes(), epoch=1, step=2)
    np.testing.assert_array_equal(np.frombuffer(summed, "<f8"), 2 * states)
    pieces = [one for one in ends.heard if isinstance(one, m.Results)]
    assert [(one.part, one.aside, one.epoch, one.step, len(one.states)) for one in pieces] == [
        (part, True, 1, 2, PIECE_BYTES) for part in (1, 2)
    ]


def _doubled(states):
    return (2 * np.frombuffer(states, "<f8")).tobytes()


def test_ranks_with_other_metrics_are_told_so(told):
    ends, feed = told
    ends.answers[m.Results] = lambda said: [m.Aggregate(serial=said.serial, whole=True, rows=1, values=())]
    with pytest.raises(SettingsError, match="expected the same metrics on all ranks"):
        feed._session.results.sum_states(bytes(16), epoch=1, step=2)


def test_results_of_an_epoch_are_waited_for_until_all_who_are_there_have_told(told):
    ends, feed = told
    parts = iter([1, 2])
    ends.answers[m.Results] = lambda said: [
        m.Aggregate(serial=said.serial, whole=True, rows=9, values=(("loss", 0.25),), parts=next(parts), trainers=2)
    ]
    found = feed._session.results.gather({"loss": 0.5}, rows=4, epoch=1)
    assert (found.means, found.rows) == ({"loss": 0.25}, 9)
    assert found.words() == " (9 samples of 2 processes)"


def test_whoever_does_not_tell_is_waited_for_a_while_only(told):
    ends, feed = told
    ends.answers[m.Results] = lambda said: [
        m.Aggregate(serial=said.serial, whole=True, rows=4, values=said.values, parts=1, trainers=2)
    ]
    found = feed._session.results.gather({"loss": 0.5}, rows=4, epoch=1, patience_s=0.3)
    assert (found.means, found.words()) == ({"loss": 0.5}, " (4 samples of 1 of 2 processes)")


@pytest.mark.parametrize(
    ("parts", "trainers", "said"),
    [(1, 1, "1 process"), (2, 2, "2 processes"), (1, 2, "1 of 2 processes"), (2, 1, "2 processes")],
)
def test_the_line_of_an_epoch_says_of_how_many_processes_it_is(parts, trainers, said):
    """One that has told may have left."""
    assert MeansOfTrainers(means={}, rows=9, parts=parts, trainers=trainers).words() == f" (9 samples of {said})"
