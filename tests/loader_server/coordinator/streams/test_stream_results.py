"""What all ranks came to: whole once every one has told, the same for all, kept before it is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.coordinator.events import Keep, Received, ResultsKept, Send
from loader_server.coordinator.journal import Journal
from loader_server.coordinator.streams import stream_results as module
from loader_server.leases.lease_table import LeaseRules
from shared.wire import messages as m
from shared.wire.message_parts import DoneSet, EpochDone
from tests.support.coordinator import View, attach, coordinator, replies

NOT_YET = (False, 0, ())


def results(rank=0, *, epoch=1, step=10, rows=4, serial=1, stream="train", incarnation=None, **values):
    more = {"ended": values.pop("ended", ""), "aside": values.pop("aside", False)}
    return m.Results(
        stream=stream, incarnation=1000 + rank if incarnation is None else incarnation, serial=serial, epoch=epoch,
        step=step, rows=rows, values=tuple(values.items()), **more,
    )  # fmt: skip


def of_world(world=2, view=None):
    state = coordinator(view)
    for rank in range(world):
        replies(state, attach(rank, world))
    return state


def answers(state, message):
    return [(one.whole, one.rows, one.values) for one in replies(state, message)]


def shown(state, stream="train"):
    return state.report(0.0)["streams"][stream]["results"]


@pytest.mark.heritage("D12")
def test_means_are_weighted_by_rows_and_whole_once_every_rank_has_told():
    state = of_world(3)
    assert answers(state, results(0, rows=30, loss=1.0, accuracy=0.5)) == [NOT_YET]
    assert answers(state, results(2, rows=0, loss=9.0, accuracy=None)) == [NOT_YET]
    assert shown(state) is None
    whole = (True, 40, (("loss", 1.5), ("accuracy", 0.625)))
    orders = state.handle(Received(b"1001", results(1, rows=10, loss=3.0, accuracy=1.0)), 0.0)
    kept, *sent = orders
    assert isinstance(kept, Keep), "before it is told"
    assert sorted(one.peer for one in sent if isinstance(one, Send)) == [b"1000", b"1001", b"1002"]
    assert {(one.message.whole, one.message.rows, one.message.values) for one in sent} == {whole}
    assert shown(state) == {"epoch": 1, "step": 10, "rows": 40, "values": {"loss": 1.5, "accuracy": 0.625}, "ended": ""}


def test_what_ranks_agree_on_is_shown_to_nobody_and_survives_a_restart():
    state = of_world(2)
    for rank in range(2):
        replies(state, results(rank, loss=3.0))
    replies(state, results(0, serial=2, rows=1, aside=True, value=4.0))
    kept, *_ = state.handle(Received(b"1001", results(1, serial=2, rows=1, aside=True, value=6.0)), 0.0)
    assert shown(state)["values"] == {"loss": 3.0}
    again = of_world(2)
    again.recover(kept.fact)
    assert answers(again, results(0, serial=2, rows=1, aside=True, value=4.0)) == [(True, 2, (("value", 5.0),))]
    assert shown(again) is None


def test_what_is_no_number_makes_no_number():
    state = of_world(2)
    replies(state, results(0, loss=None))
    assert answers(state, results(1, loss=1.0)) == [(True, 8, (("loss", None),))]
    assert shown(state)["values"] == {"loss": None}


def test_who_asks_again_is_told_the_same_by_a_restarted_coordinator_too():
    state = of_world(2)
    replies(state, results(0, loss=1.0))
    orders = state.handle(Received(b"1001", results(1, loss=2.0)), 0.0)
    again = of_world(2)
    again.recover(orders[0].fact)
    for one in (state, again):
        for rank in range(2):
            assert answers(one, results(rank, loss=float(rank + 1))) == [(True, 8, (("loss", 1.5),))]
    assert shown(again) == shown(state)


def test_who_trained_it_anew_begins_another_aggregate():
    state = of_world(2)
    replies(state, results(0, loss=1.0))
    replies(state, results(1, loss=2.0))
    assert answers(state, results(0, loss=5.0, serial=2)) == [NOT_YET]
    assert answers(state, results(1, loss=7.0, serial=2)) == [(True, 8, (("loss", 6.0),))]


def test_a_successor_of_a_rank_counts_in_its_place():
    state = of_world(2)
    replies(state, results(0, loss=1.0))
    replies(state, attach(0, 2, incarnation=7))
    assert answers(state, results(0, loss=3.0, incarnation=7)) == [NOT_YET]
    assert answers(state, results(1, loss=5.0)) == [(True, 8, (("loss", 4.0),))]


def test_ranks_may_be_epochs_apart():
    state = of_world(2)
    for epoch in (1, 2):
        assert answers(state, results(0, epoch=epoch, serial=epoch, loss=float(epoch))) == [NOT_YET]
    for epoch in (1, 2):
        whole = answers(state, results(1, epoch=epoch, serial=epoch, loss=float(epoch)))
        assert whole == [(True, 8, (("loss", float(epoch)),))]


def test_no_more_is_kept_than_ranks_can_be_apart():
    state = of_world(2)
    for epoch in range(100):
        replies(state, results(0, epoch=epoch, serial=epoch))
    assert len(state._streams["train"].results._open) == 16


def test_in_queue_mode_whoever_tells_is_counted():
    state = coordinator(View(leases=LeaseRules(floor_s=1.0, tries=3)))
    for one in (1, 2):
        replies(state, attach(incarnation=one))
    assert answers(state, results(incarnation=1, rows=1, loss=1.0)) == [(True, 1, (("loss", 1.0),))]
    assert answers(state, results(incarnation=2, rows=3, loss=2.0)) == [(True, 4, (("loss", 1.75),))]
    assert answers(state, results(incarnation=1, rows=2, serial=2, loss=2.0)) == [(True, 5, (("loss", 2.0),))]


def test_one_that_is_not_attached_is_told_so():
    (answer,) = replies(coordinator(), results())
    assert (type(answer), answer.code) == (m.Refused, "unknown")


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-100, 100)), min_size=1, max_size=6), st.randoms())
def test_in_whatever_order_they_tell_all_get_the_same_mean(parts, random):
    kept = []
    for _ in range(2):
        state, order = of_world(len(parts)), list(range(len(parts)))
        random.shuffle(order)
        for rank in order:
            rows, loss = parts[rank]
            orders = state.handle(Received(b"", results(rank, rows=rows, loss=loss)), 0.0)
        kept.append(orders[0].fact)
    assert isinstance(kept[0], ResultsKept)
    assert kept[0] == kept[1]
    want = sum(rows * loss for rows, loss in parts) / sum(rows for rows, _ in parts)
    assert math.isclose(kept[0].values[0][1], want, rel_tol=1e-9, abs_tol=1e-9)


def test_the_end_of_a_run_leaves_the_last_values_and_the_next_run_clears_it():
    state = of_world(2)
    for rank in range(2):
        replies(state, results(rank, loss=2.0))
    for rank in range(2):
        assert shown(state)["ended"] == ""
        replies(state, results(rank, serial=2, rows=0, ended="1 epochs are reached"))
    assert shown(state) == {"epoch": 1, "step": 10, "rows": 8, "values": {"loss": 2.0}, "ended": "1 epochs are reached"}
    for rank in range(2):
        replies(state, results(rank, serial=3, epoch=2, loss=1.0))
    assert (shown(state)["values"], shown(state)["ended"]) == ({"loss": 1.0}, "")


def test_a_run_that_noted_nothing_comes_to_its_end_as_well():
    state = of_world(1)
    replies(state, results(rows=0, ended="stopped"))
    assert shown(state) == {"epoch": 1, "step": 10, "rows": 0, "values": {}, "ended": "stopped"}


def in_queue(*incarnations, view=None):
    state = coordinator(view or View(leases=LeaseRules(floor_s=1.0, tries=3)))
    for one in incarnations:
        replies(state, attach(incarnation=one))
    return state


def test_a_rank_that_ends_first_leaves_its_results_for_the_others():
    state = of_world(2)
    assert answers(state, results(0, loss=1.0)) == [NOT_YET]
    assert answers(state, results(0, serial=2, rows=0, ended="1 epochs are reached")) == [NOT_YET]
    assert answers(state, results(1, loss=3.0)) == [(True, 8, (("loss", 2.0),))]
    replies(state, results(1, serial=2, rows=0, ended="1 epochs are reached"))
    assert (shown(state)["values"], shown(state)["ended"]) == ({"loss": 2.0}, "1 epochs are reached")


def test_in_queue_mode_too_a_trainer_that_ends_leaves_its_results():
    state = in_queue(1, 2, 3)
    replies(state, results(incarnation=1, rows=1, loss=1.0))
    replies(state, results(incarnation=2, rows=1, loss=3.0))
    replies(state, results(incarnation=1, serial=2, rows=0, ended="1 epochs are reached"))
    assert (shown(state)["values"], shown(state)["ended"]) == ({"loss": 2.0}, "1 epochs are reached")
    assert answers(state, results(incarnation=3, rows=2, loss=4.0)) == [(True, 4, (("loss", 3.0),))]


class Journalled:
    """A coordinator with a real journal, which can be started again."""

    def __init__(self, path, *incarnations):
        self.journal, self.incarnations = Journal(path), incarnations
        self.state = in_queue(*incarnations)

    def tell(self, message):
        """The answer, and what was written for it."""
        orders = self.state.handle(Received(b"%d" % message.incarnation, message), 0.0)
        written = [one.fact for one in orders if isinstance(one, Keep)]
        self.journal.write(written)
        (answer,) = [one.message for one in orders if isinstance(one, Send)]
        return answer, written

    def answer(self, message):
        answer, _ = self.tell(message)
        return answer.whole, answer.rows, answer.values

    def restart(self):
        self.state = in_queue(*self.incarnations)
        for fact in self.journal.read_facts():
            self.state.recover(fact)


@pytest.fixture
def kept(tmp_path):
    one = Journalled(tmp_path / "journal", 1, 2, 3)
    yield one
    one.journal.close()


def test_after_a_restart_a_queue_adds_to_what_was_kept(kept):
    kept.tell(results(incarnation=1, rows=1, loss=1.0))
    kept.tell(results(incarnation=2, rows=1, loss=3.0))
    kept.tell(results(incarnation=1, serial=2, rows=0, ended="over"))
    kept.restart()
    assert shown(kept.state) == {"epoch": 1, "step": 10, "rows": 2, "values": {"loss": 2.0}, "ended": "over"}
    whole = (True, 4, (("loss", 3.0),))
    assert kept.answer(results(incarnation=3, rows=2, loss=4.0)) == whole
    assert kept.answer(results(incarnation=2, rows=1, loss=3.0)) == whole, "told again, counted once"


def test_who_asks_a_queue_again_is_told_the_same_and_nothing_is_written(kept):
    for one in (1, 2):
        kept.tell(results(incarnation=one, rows=1, loss=float(one)))
    for _ in range(2):
        answer, written = kept.tell(results(incarnation=1, rows=1, loss=1.0))
        assert (answer.rows, answer.values, written) == (2, (("loss", 1.5),), [])
        kept.restart()


def test_who_asks_again_about_an_older_epoch_is_told_of_that_one(kept):
    for epoch in (1, 2):
        kept.tell(results(incarnation=1, epoch=epoch, serial=epoch, rows=1, loss=float(epoch)))
    assert kept.answer(results(incarnation=1, epoch=1, serial=1, rows=1, loss=1.0)) == (True, 1, (("loss", 1.0),))


def test_of_more_trainers_than_are_counted_those_that_are_may_tell_anew(kept, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PARTS", 2)
    for one in (1, 2, 3):
        kept.tell(results(incarnation=one, rows=1, loss=1.0))
    assert kept.answer(results(incarnation=2, serial=2, rows=1, loss=3.0)) == (True, 2, (("loss", 2.0),))


def test_after_a_restart_who_alone_told_an_epoch_is_not_counted_twice(kept):
    kept.tell(results(incarnation=1, rows=1, loss=1.0))
    kept.restart()
    assert kept.answer(results(incarnation=1, serial=2, rows=1, loss=5.0)) == (True, 1, (("loss", 5.0),))


def test_after_a_restart_who_tells_an_epoch_anew_is_not_counted_twice(kept):
    kept.tell(results(incarnation=1, rows=1, loss=1.0))
    kept.tell(results(incarnation=2, rows=1, loss=3.0))
    kept.restart()
    assert kept.answer(results(incarnation=1, serial=2, rows=2, loss=6.0)) == (True, 3, (("loss", 5.0),))
    kept.restart()
    assert kept.answer(results(incarnation=3, rows=3, loss=1.0)) == (True, 6, (("loss", 3.0),))


@pytest.mark.parametrize("more", [{"loss": 1.0}, {"ended": "1 epochs are reached"}])
def test_what_is_written_for_a_report_does_not_grow_with_the_trainers(tmp_path, more):
    trainers = range(100, 140)
    kept, sizes = Journalled(tmp_path / "journal", *trainers), []
    kept.tell(results(incarnation=trainers[0], rows=1, loss=1.0))
    for one in trainers:
        _, written = kept.tell(results(incarnation=one, serial=2, rows=1, **more))
        sizes.append(len(repr(written)))
    kept.journal.close()
    assert max(sizes) < 2 * min(sizes)


def test_trainers_that_told_of_older_epochs_only_leave_nothing_in_the_journal(kept):
    for one in (1, 2, 3):
        kept.tell(results(incarnation=one, rows=1, loss=1.0))
    before = list(kept.journal.read_facts())
    kept.tell(results(incarnation=1, epoch=2, serial=2, rows=1, loss=1.0))
    assert len(list(kept.journal.read_facts())) == len(before) - 2
    kept.restart()
    kept.tell(results(incarnation=3, epoch=3, serial=2, rows=1, loss=1.0))
    assert len(list(kept.journal.read_facts())) == len(before) - 2


def test_models_of_several_epochs_that_are_judged_in_turns_are_kept_over_a_restart(tmp_path):
    view = View(leases=LeaseRules(floor_s=1.0, tries=3), evaluation=True)
    kept = Journalled(tmp_path / "journal")
    kept.state = in_queue(1, 2, 3, view=view)
    for serial, (one, epoch) in enumerate([(1, 2), (2, 1), (2, 2), (1, 1), (1, 2)]):
        kept.tell(results(incarnation=one, epoch=epoch, serial=serial, rows=1, loss=float(one)))
    again = in_queue(1, 2, 3, view=view)
    for fact in kept.journal.read_facts():
        again.recover(fact)
    kept.journal.close()
    assert answers(again, results(incarnation=3, epoch=2, rows=1, loss=3.0)) == [(True, 3, (("loss", 2.0),))]


def test_a_journal_that_holds_all_parts_in_one_row_is_read_and_goes_on(kept):
    parts = ((1, 1, 1, (("loss", 1.0),)), (2, 1, 1, (("loss", 3.0),)))
    kept.journal.write([ResultsKept("train", 1, 10, 2, (("loss", 2.0),), ((1, 1), (2, 1)), parts=parts)])
    kept.restart()
    assert kept.answer(results(incarnation=2, rows=1, loss=3.0)) == (True, 2, (("loss", 2.0),))
    assert kept.answer(results(incarnation=3, rows=1, loss=5.0)) == (True, 3, (("loss", 3.0),))
    kept.restart()
    assert kept.answer(results(incarnation=1, serial=2, rows=1, loss=4.0)) == (True, 3, (("loss", 4.0),))


@pytest.mark.parametrize("epochs", [(1, 2), (2,)])  # the first of them may be older than what is shown
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_told_before_a_checkpoint_was_restored_is_in_no_later_mean(kept, is_restarted, epochs):
    said_before = [results(incarnation=one, epoch=2, rows=1, loss=3.0) for one in (2, 3)]
    for said_first in said_before:
        kept.tell(said_first)
    kept.tell(attach(serial=2, incarnation=1, done=DoneSet((EpochDone(1, 0, ()),))))
    if is_restarted:
        kept.restart()
    assert shown(kept.state)["values"] == {"loss": 3.0}
    for said_again in said_before:
        assert kept.answer(said_again) == (True, 2, (("loss", 3.0),))
    for epoch in epochs:
        told = results(incarnation=1, epoch=epoch, serial=1 + epoch, rows=1, loss=float(epoch))
        assert kept.answer(told) == (True, 1, (("loss", float(epoch)),))
        assert shown(kept.state)["epoch"] == epoch
        if is_restarted:
            kept.restart()


def test_in_a_queue_a_slow_trainer_is_answered_and_the_newer_epoch_stays():
    state = in_queue(1, 2)
    replies(state, results(incarnation=1, epoch=1, rows=1, loss=1.0))
    replies(state, results(incarnation=1, epoch=2, serial=2, rows=1, loss=9.0))
    assert answers(state, results(incarnation=2, epoch=1, rows=1, loss=3.0)) == [(True, 2, (("loss", 2.0),))]
    assert (shown(state)["epoch"], shown(state)["values"]) == (2, {"loss": 9.0})


def test_a_queue_that_goes_back_to_a_checkpoint_shows_its_epochs_again():
    state = in_queue(1)
    for epoch in (1, 2):
        replies(state, results(incarnation=1, epoch=epoch, serial=epoch, rows=1, loss=9.0))
    replies(state, attach(serial=2, incarnation=1, done=DoneSet((EpochDone(1, 0, ()),))))
    assert answers(state, results(incarnation=1, epoch=1, serial=3, rows=1, loss=1.0)) == [(True, 1, (("loss", 1.0),))]
    assert (shown(state)["epoch"], shown(state)["values"]) == (1, {"loss": 1.0})


def test_an_older_model_may_be_judged_after_a_newer_one():
    state = in_queue(1, view=View(leases=LeaseRules(floor_s=1.0, tries=3), evaluation=True))
    for serial, epoch in enumerate((2, 1)):
        replies(state, results(incarnation=1, epoch=epoch, serial=serial, loss=float(epoch)))
    assert shown(state)["epoch"] == 1


def test_a_sum_that_is_too_large_is_no_number():
    state = of_world(2)
    replies(state, results(0, loss=1e308))
    assert answers(state, results(1, loss=1e308)) == [(True, 8, (("loss", None),))]


# --- runs that evaluate on one stream at the same step ---


def _states_of(run, rank, value):
    """What a rank of a run adds to the metrics' variables."""
    states = np.asarray([value], "<f8").tobytes()
    return m.Results(
        stream="train", incarnation=rank + (1000 if run == "a" else 2000), serial=1, epoch=1, step=10, rows=1,
        values=(), ended="", aside=True, evaluation=f"run {run}", part=1, states=states,
    )  # fmt: skip


def _sums(state, message):
    return [np.frombuffer(one.states, "<f8").tolist() for one in replies(state, message) if one.whole]


def _two_runs():
    state = coordinator(View(evaluation=True))
    for first in (1000, 2000):
        for rank in range(2):
            replies(state, attach(rank, 2, incarnation=first + rank, work="evaluate"))
    return state


def test_two_runs_that_evaluate_at_one_step_do_not_mix():
    state = _two_runs()
    assert _sums(state, _states_of("a", 0, 1.0)) == []
    assert _sums(state, _states_of("b", 0, 10.0)) == []
    assert _sums(state, _states_of("a", 1, 2.0))[-1] == [3.0]
    assert _sums(state, _states_of("b", 1, 20.0))[-1] == [30.0]
    assert _sums(state, _states_of("a", 0, 1.0)) == [[3.0]], "who asks again is told the same"
    assert _sums(state, _states_of("b", 0, 10.0)) == [[30.0]]


def test_what_each_of_two_runs_came_to_survives_a_restart():
    state, again = _two_runs(), _two_runs()
    for run in ("a", "b"):
        _sums(state, _states_of(run, 0, 1.0))
        peer = b"1001" if run == "a" else b"2001"
        kept, *_ = state.handle(Received(peer, _states_of(run, 1, 2.0)), 0.0)
        again.recover(kept.fact)
    for run in ("a", "b"):
        assert _sums(again, _states_of(run, 0, 1.0)) == [[3.0]]
