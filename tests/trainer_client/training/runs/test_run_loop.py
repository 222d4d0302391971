"""`Run`: a plain loop from the cursor to a target, counting what was trained on."""

from __future__ import annotations

import json
import re

import pytest

from shared.errors import EndedError, SettingsError
from tests.support.fake_feed import FakeFeed, LeasedCursor
from trainer_client import Run, Until
from trainer_client.training.runs.run_progress import RunProgress
from trainer_client.training.runs.until import RunTotals

EPOCHS = (3, 4, 2)
#: Rows of the batches of these epochs: shapes of 4 and 2 rows take turns.
ROWS = (10, 12, 6)
TIME = r"\d:\d\d:\d\d"


def places(batches):
    return [(batch.epoch, batch.number) for batch in batches]


def test_to_an_absolute_epoch_and_so_many_more_from_there(capsys):
    feed = FakeFeed(epochs=EPOCHS)
    run = Run(feed, Until(epochs=2))
    assert places(run) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert (run.reason, feed.epoch, feed.number) == ("2 epochs are reached", 2, 0)
    assert (run.totals.epochs, run.totals.steps, run.totals.samples) == (2, 7, ROWS[0] + ROWS[1])
    state = json.loads(json.dumps(run.state()))
    more = Run(FakeFeed(epochs=EPOCHS), Until(epochs="+1"))
    more.restore(state)
    assert places(more) == [(2, 0), (2, 1)]
    assert (more.totals.epochs, more.totals.steps, more.totals.samples) == (3, 9, sum(ROWS))
    began, ended, again, end = capsys.readouterr().out.splitlines()
    assert began == "STARTING: training fake from epoch 0, step 0, until 2 epochs"
    assert re.fullmatch(rf"FINISHED: 2 epochs, 7 steps, 22 samples, {TIME}: 2 epochs are reached", ended)
    assert again == "STARTING: training fake from epoch 2, step 7, until 3 epochs"
    assert re.fullmatch(rf"FINISHED: 3 epochs, 9 steps, 28 samples, {TIME}: 3 epochs are reached", end)


def test_so_many_steps_end_inside_an_epoch_and_the_next_run_goes_on_there():
    feed = FakeFeed(epochs=EPOCHS)
    assert places(Run(feed, Until(steps=4))) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert (feed.epoch, feed.number) == (1, 1)
    assert places(Run(feed, Until(steps="+2"))) == [(1, 1), (1, 2)]


def test_a_target_that_is_reached_trains_nothing():
    run = Run(FakeFeed(epochs=EPOCHS), Until(epochs=0))
    assert places(run) == []
    assert run.reason == "0 epochs are reached"


def test_a_stop_waits_for_the_step_in_hand_and_leaving_does_not():
    feed = FakeFeed(epochs=EPOCHS)
    run = Run(feed, Until(epochs=3))
    for batch in run:
        if batch.number == 1:
            run.stop("enough for today")
    assert (feed.epoch, feed.number, run.reason) == (0, 2, "enough for today")
    assert feed.session.ended == [("enough for today", 0, 2)]
    for batch in Run(feed, Until(epochs=3)):
        if (batch.epoch, batch.number) == (1, 1):
            break
    assert (feed.epoch, feed.number) == (1, 1)
    assert len(feed.session.ended) == 1


def test_a_stop_before_the_loop_begins_ends_it_before_its_first_step():
    feed = FakeFeed(epochs=EPOCHS)
    run = Run(feed, Until(epochs=3))
    run.stop("not today")
    assert places(run) == []
    assert (run.reason, feed.session.ended) == ("not today", [("not today", 0, 0)])
    run.stop("it is over already")
    for batch in run:
        if batch.number == 1:
            break
    run.stop("left and not begun again")
    assert places(run) == []
    assert (run.reason, feed.number) == ("left and not begun again", 1)
    assert len(places(run)) == sum(EPOCHS) - 1


def test_a_loop_that_was_left_is_gone_on_with_and_its_totals_stay():
    run = Run(FakeFeed(epochs=EPOCHS, replicas=1), Until(steps=5))
    for batch in run:
        if batch.number == 2:
            break
    assert (run.totals.steps, run.totals.samples, run.state()["run"]["steps"]) == (2, 6, 2)
    assert places(run) == [(0, 2), (1, 0), (1, 1)]
    assert (run.totals.steps, run.totals.samples) == (5, 16)


def test_half_a_step_that_was_left_is_no_step():
    feed = FakeFeed(epochs=EPOCHS, replicas=2)
    run = Run(feed, Until(steps=2))
    next(iter(run))
    assert places(run) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert feed.number == 4


def test_what_was_restored_is_there_before_the_loop_begins():
    run = Run(FakeFeed(epochs=EPOCHS), Until(steps=5))
    run.restore(run.state() | {"run": RunTotals(steps=3, samples=10).state()})
    assert (run.totals.steps, run.state()["run"]["samples"]) == (3, 10)


@pytest.mark.parametrize(
    ("part", "content", "problem"),
    [
        ("run", None, "expected what state() returned, got None"),
        ("run", {"steps": "3"}, "expected steps, a whole number from 0 on, got '3'"),
        ("run", {"steps": -3}, "expected steps, a whole number from 0 on, got -3"),
        ("run", {"seconds": None}, "expected seconds, seconds of at least 0, got None"),
        ("noted", [], r"expected noted sums, each with its number of rows, by name, got \[\]"),
        ("noted", {"loss": [0.5]}, "expected noted sums, .*, got {'loss': "),
        ("feed", {"plan": "q"}, "expected plan p, got q"),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(part, content, problem):
    feed = FakeFeed(epochs=EPOCHS)
    run = Run(feed, Until(steps=5))
    run.restore(run.state() | {"run": RunTotals(steps=3, samples=10).state()})
    elsewhere = run.state() | {"feed": {"plan": "p", "epoch": 2, "number": 1}}
    with pytest.raises(SettingsError, match=problem.replace("()", r"\(\)")):
        run.restore(elsewhere | {part: content})
    assert (run.totals.steps, feed.epoch, feed.number) == (3, 0, 0)


@pytest.mark.parametrize("part", ["feed", "run", "noted"])
def test_a_state_that_was_cut_short_is_refused(part):
    run = Run(FakeFeed(epochs=EPOCHS), Until(steps=5))
    state = run.state()
    del state[part]
    with pytest.raises(SettingsError, match=f"with feed, run, noted, got a state without {part}"):
        run.restore(state)


def test_a_run_ends_with_the_last_epoch_of_the_feed():
    feed = FakeFeed(epochs=EPOCHS)
    feed.session.most_epochs = 1
    run = Run(feed, Until(epochs=2))
    assert places(run) == [(0, 0), (0, 1), (0, 2)]
    assert run.reason == "all 1 epochs of the feed are over"


def test_the_time_is_over_after_the_step_in_hand():
    now_s = [100.0]
    progress = RunProgress(Until(max_time_s=60), prints=False, clock=lambda: now_s[0])
    progress.begin("training", RunTotals(seconds=86_400))
    now_s[0] = 159.9
    assert not progress.count(epochs=0, steps=1)
    now_s[0] = 160.0
    assert progress.count(epochs=0, steps=1)
    assert (progress.reason, progress.totals.seconds) == ("0:01:00 are over", 86_460)


def test_what_is_lost_is_no_reason_to_end():
    progress = RunProgress(Until(epochs=2, steps=5), prints=False)
    progress.begin("training", RunTotals())
    assert progress.count(epochs=1, steps=5)
    progress.go_back(epochs=0, steps=3)
    assert (progress.reason, progress.totals.epochs, progress.totals.steps) == ("", 0, 3)
    progress.go_back(epochs=0, steps=4)
    assert progress.totals.steps == 3, "a worker has not taken the steps of others"
    assert progress.count(epochs=0, steps=2)


def test_saved_after_done_the_step_in_hand_counts():
    feed = FakeFeed(epochs=EPOCHS)
    run = Run(feed, Until(epochs=1))
    for _ in run:
        run.done()
        break
    assert (feed.number, run.state()["run"]["steps"], run.state()["run"]["samples"]) == (1, 1, 4)


def test_with_two_replicas_a_step_is_two_batches():
    feed = FakeFeed(epochs=EPOCHS, replicas=2)
    run = Run(feed, Until(steps=2))
    assert places(run) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert (feed.number, run.totals.samples) == (4, 12)


def test_a_stream_for_evaluation_is_not_trained_on():
    with pytest.raises(SettingsError, match="expected a stream for training, got fake, which is for evaluation"):
        Run(FakeFeed(evaluation=True), Until(epochs=1))


def test_ranks_in_step_go_by_the_time_that_they_agree_on():
    feed, said = FakeFeed(epochs=EPOCHS), []

    def agreed(spent_s, at):
        assert spent_s < 60
        said.append(at["step"])
        return 1.0 if at["step"] < 3 else 7.0

    feed.session.world, feed.session.agreed = 2, agreed
    run = Run(feed, Until(max_time_s=5))
    list(run)
    assert (run.reason, run.totals.steps, said) == ("0:00:05 are over", 3, [1, 3])
    feed.session.cursor = LeasedCursor(feed.session)
    assert sum(1 for _ in Run(feed, Until(steps=2, max_time_s=500))) == 2
    assert said == [1, 3], "nobody has to be asked there"


def test_a_job_that_is_ended_while_ranks_agree_on_the_time_ends_the_run_with_the_step_in_hand(capsys):
    feed = FakeFeed(epochs=EPOCHS)

    def agreed(_spent_s, at):
        if at["step"] == 3:
            raise EndedError(expected="the others", got="an end", where="here", remedy="Start it again.")
        return 1.0

    feed.session.world, feed.session.agreed = 2, agreed
    run = Run(feed, Until(max_time_s=5))
    assert places(run) == [(0, 0), (0, 1), (0, 2)]
    assert (run.reason, feed.epoch, run.totals.epochs, run.totals.steps) == ("the job was ended", 1, 1, 3)
    assert feed.session.ended == [("the job was ended", 1, 3)]
    assert capsys.readouterr().out.splitlines()[-1].endswith(": the job was ended")


def test_what_is_noted_goes_to_the_coordinator_once_an_epoch_is_over_resumed_or_not():
    feed = FakeFeed(epochs=EPOCHS)
    run = Run(feed, Until(steps=4))
    for batch in run:
        run.note(loss=float(batch.number), unit=1.0)
    assert feed.session.reported == [(1, 3, ROWS[0], {"loss": (0 * 4 + 1 * 2 + 2 * 4) / 10, "unit": 1.0})]
    again = FakeFeed(epochs=EPOCHS)
    run_again = Run(again, Until(epochs=2))
    run_again.restore(json.loads(json.dumps(run.state())))
    for batch in run_again:
        run_again.note(loss=float(batch.number))
    # A shape of 4 rows is the first of an epoch, one of 2 the next.
    ((epoch, step, rows, means),) = again.session.reported
    assert (epoch, step, rows) == (2, 7, ROWS[1])
    assert means == {"loss": pytest.approx((0 * 4 + 1 * 2 + 2 * 4 + 3 * 2) / 12), "unit": 1.0}


def test_where_nothing_is_noted_nothing_is_told():
    feed = FakeFeed(epochs=EPOCHS)
    assert len(list(Run(feed, Until(epochs=1)))) == 3
    assert feed.session.reported == []


@pytest.mark.heritage("L12")
def test_first_values_are_given_once_as_the_loop_begins_and_not_to_a_run_that_is_restored(capsys):
    given = []
    run = Run(FakeFeed(epochs=EPOCHS), Until(steps=3), initial=lambda: given.append("given") or print("LOADED"))
    assert given == []
    for batch in run:
        assert given == ["given"]
        if batch.number == 1:
            break
    assert len(places(run)) == 2
    assert given == ["given"]
    assert capsys.readouterr().out.splitlines()[:2] == [
        "LOADED", "STARTING: training fake from epoch 0, step 0, until 3 steps"
    ]  # fmt: skip
    more = Run(FakeFeed(epochs=EPOCHS), Until(steps="+1"), initial=lambda: given.append("again"))
    more.restore(run.state())
    assert len(places(more)) == 1
    assert given == ["given"]
