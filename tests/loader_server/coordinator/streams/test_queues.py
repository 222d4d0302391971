"""Streams in queue mode behind the coordinator's door: attaching, leases, calls, the end of training, kills."""

from __future__ import annotations

import pytest

from loader_server.coordinator.events import EndOrdered, Excused, Keep, Received, Send, Ticked, Warn
from loader_server.leases.lease_book import BookAdvanced, EpochOpened, NumberOut
from loader_server.leases.lease_table import LeaseRules
from shared.wire import messages as m
from shared.wire.message_parts import BookMark, Cursor, DoneSet, EpochDone, Failure, Lease
from tests.support.coordinator import View, attach, coordinator, kept, progress, refused, replies

RULES = LeaseRules(floor_s=30.0, tries=1)


def queue():
    return coordinator(View(leases=RULES))


def outcomes(who=1000, serial=1, **other):
    told = {
        "stream": "train", "work": "train", "incarnation": who, "serial": serial, "book": None, "generation": 1,
        "done": (), "failed": (), "returned": (), "in_hand": None, "wanted": 0, "before": 1, "snapshot": False,
    }  # fmt: skip
    return m.Outcomes(**{**told, **other})


def joined(*who):
    state = queue()
    for one in who:
        assert isinstance(replies(state, attach(incarnation=one))[0], m.Attached)
    return state


class TestAttaching:
    def test_it_comes_in_at_the_first_epoch_that_is_not_settled(self):
        (answer,) = replies(queue(), attach())
        assert (answer.work, answer.cursor, answer.batches) == ("train", Cursor(0, 0, 1, "plan-1"), 100)

    def test_any_number_of_trainers_come_in_side_by_side(self):
        state = joined(1, 2, 3)
        assert state.report(0.0)["streams"]["train"]["attached"] == 3
        assert state.counts.superseded == 0

    def test_a_stream_for_evaluation_is_evaluated_and_may_be_predicted_on(self):
        state = coordinator(View(evaluation=True, leases=RULES))
        assert replies(state, attach())[0].work == "evaluate"
        assert replies(state, attach(incarnation=5, work="predict"))[0].work == "predict"

    def test_a_cursor_and_several_replicas_are_for_lockstep(self):
        code, expected, got, remedy = refused(queue(), attach(at=(0, 3)))
        assert (code, got) == ("mode", "a cursor")
        assert "train is in queue mode" in expected
        assert 'mode = "lockstep"' in remedy
        assert refused(queue(), attach(1, 4, replicas=2))[2] == "one of 2"
        assert isinstance(replies(queue(), attach(1, 4))[0], m.Attached)

    def test_nobody_comes_in_under_the_number_that_stands_for_nobody(self):
        """Its leases would count as given back, and go to others as well."""
        code, expected, got, remedy = refused(queue(), attach(incarnation=0))
        assert (code, got) == ("mode", "0")
        assert expected == "an incarnation above 0: train is in queue mode"
        assert "another incarnation" in remedy
        assert isinstance(replies(coordinator(), attach(incarnation=0))[0], m.Attached)

    def test_leases_are_for_queue_mode(self):
        code, expected, got, remedy = refused(coordinator(), attach(work="predict"))
        assert (code, got) == ("mode", "work=predict")
        assert "train is in lockstep" in expected
        assert 'mode = "queue"' in remedy
        assert refused(coordinator(), attach(done=DoneSet(())))[0] == "mode"

    def test_who_evaluates_is_kept_from_streams_that_are_trained_on(self):
        state = coordinator()
        assert isinstance(replies(state, attach())[0], m.Attached)
        code, _, got, remedy = refused(state, attach(incarnation=5, work="evaluate"))
        assert (code, got) == ("mode", "work=evaluate")
        assert "evaluation = true" in remedy
        assert isinstance(replies(coordinator(View(evaluation=True)), attach(work="evaluate"))[0], m.Attached)

    def test_it_waits_while_batches_are_counted(self):
        view = View(leases=RULES, counting=True)
        assert isinstance(replies(coordinator(view), attach())[0], m.Wait)

    @pytest.mark.parametrize(
        "epochs",
        [(), (EpochDone(0, 101, ()),), (EpochDone(0, 5, (3, 2)),), (EpochDone(1, 0, ()), EpochDone(0, 0, ()))],
    )
    def test_a_checkpoint_that_is_not_of_this_plan_is_refused(self, epochs):
        assert refused(queue(), attach(done=DoneSet(epochs)))[0] == "cursor"


class TestLeases:
    def test_leases_are_kept_before_they_are_promised(self):
        state = joined(1000)
        orders = state.handle(Received(b"me", outcomes(wanted=2)), 0.0)
        assert [type(one) for one in orders] == [Keep] * (len(orders) - 1) + [Send]
        facts = [one.fact for one in orders[:-1]]
        assert facts[-2:] == [EpochOpened("train", "train", 0, 100, 2, 2), BookAdvanced(1, 1)]
        assert orders[-1].message.book == BookMark(1, 1)
        assert [one.number for one in facts if isinstance(one, NumberOut)] == [0, 1]

    def test_a_trainer_that_is_not_attached_is_told_so(self):
        (answer,) = replies(queue(), outcomes(wanted=1))
        assert (answer.code, answer.remedy) == ("unknown", "Attach again.")

    def test_a_report_of_what_was_never_leased_is_counted_and_logged(self):
        state = joined(1000)
        orders = state.handle(Received(b"me", outcomes(done=(Lease(0, 7, 1),))), 0.0)
        (warning,) = [one for one in orders if isinstance(one, Warn)]
        assert "never leased" in warning.event
        about = {"stream": "train", "trainer": "host:0", "run": f"{1000:016x}"}
        assert warning.fields == {**about, "work": "train", "epoch": 0, "number": 7}
        assert state.report(0.0)["streams"]["train"]["queue"]["train"]["unknown"] == 1

    def test_whoever_waits_is_called_when_another_leaves(self):
        state = joined(1, 2)
        replies(state, outcomes(1, wanted=64))
        replies(state, outcomes(2, wanted=64))
        orders = state.handle(Received(b"1", m.Detach(stream="train", rank=0, incarnation=1)), 0.0)
        assert [(one.peer, one.message) for one in orders if isinstance(one, Send)] == [(b"2", m.Recalled())]
        assert replies(state, progress(0, 0, 0, incarnation=2), peer=b"2")[0] == m.Recalled()
        replies(state, outcomes(2, 2, wanted=64))
        assert m.Recalled() not in replies(state, progress(0, 0, 0, incarnation=2), peer=b"2")

    def test_what_was_given_up_is_in_the_report_and_in_the_log(self):
        state = joined(1000)
        (answer,) = replies(state, outcomes(wanted=1))
        orders = state.handle(Received(b"me", outcomes(serial=2, failed=(Failure(answer.leases[0], "NaN"),))), 0.0)
        (warning,) = [one for one in orders if isinstance(one, Warn)]
        assert "given up" in warning.event
        assert warning.fields["reason"] == "NaN"
        report = state.report(0.0)["streams"]["train"]["queue"]["train"]
        assert report["dead_letters"] == [{"epoch": 0, "number": 0, "failures": 1, "reason": "NaN"}]
        assert report["reasons"] == {"NaN": 1}
        assert report["dead"] == 1

    def test_a_silent_trainers_leases_go_to_others(self):
        state = joined(1, 2)
        replies(state, outcomes(1, wanted=1))
        replies(state, progress(0, 0, 0, incarnation=2), now_s=10.5)
        state.handle(Ticked(), 10.6)
        (answer,) = replies(state, outcomes(2, wanted=1), now_s=10.7)
        assert answer.leases == (Lease(0, 0, 2),)

    def test_nobody_expires_for_a_stall_of_ours(self):
        state = joined(1)
        replies(state, outcomes(1, wanted=1))
        state.handle(Excused(), 1000.0)
        state.handle(Ticked(), 1000.1)
        assert state.report(1000.1)["streams"]["train"]["queue"]["train"]["leased"] == 1

    def test_restoring_rewinds_once_however_often_it_is_asked(self):
        state = joined(1000)
        replies(state, outcomes(wanted=2))
        again = attach(serial=2, done=DoneSet((EpochDone(0, 1, ()),)))
        for _ in range(2):
            replies(state, again)
        (answer,) = replies(state, outcomes(serial=2, wanted=1))
        assert (answer.generation, answer.leases) == (2, (Lease(0, 1, 1),))

    def test_an_evaluation_that_was_left_is_no_part_of_the_next(self):
        state = coordinator(View(evaluation=True, leases=RULES))
        for one in (1, 2):
            replies(state, attach(incarnation=one))
            (answer,) = replies(state, outcomes(one, work="evaluate", wanted=1))
            assert answer.leases == (Lease(0, one - 1, 1),), "who joins an evaluation shares it"
        replies(state, outcomes(1, 2, work="evaluate", done=(Lease(0, 0, 1),)))
        for one in (1, 2):
            state.handle(Received(b"me", m.Detach(stream="train", rank=0, incarnation=one)), 0.0)
        replies(state, attach(serial=2, incarnation=1))
        (answer,) = replies(state, outcomes(1, 3, work="evaluate", wanted=1))
        assert (answer.generation, answer.leases) == (1, (Lease(0, 1, 2),)), "it was only unknown for a while"
        state.handle(Received(b"me", m.Detach(stream="train", rank=0, incarnation=1)), 0.0)
        replies(state, attach(incarnation=3))
        (answer,) = replies(state, outcomes(3, work="evaluate", wanted=1))
        assert (answer.generation, answer.leases) == (2, (Lease(0, 0, 1),))

    def test_a_prediction_that_was_left_goes_on(self):
        state = coordinator(View(evaluation=True, leases=RULES))
        replies(state, attach(incarnation=1, work="predict"))
        (answer,) = replies(state, outcomes(1, work="predict", wanted=1))
        replies(state, outcomes(1, 2, work="predict", done=answer.leases))
        state.handle(Received(b"me", m.Detach(stream="train", rank=0, incarnation=1)), 0.0)
        replies(state, attach(incarnation=2, work="predict"))
        assert replies(state, outcomes(2, work="predict", wanted=1))[0].leases == (Lease(0, 1, 1),)

    def test_what_comes_once_after_training_goes_to_one_trainer_and_not_before(self):
        state = joined(1, 2)
        end = {"work": "train-end", "wanted": 1, "before": 1}
        assert replies(state, outcomes(1, **end))[0].leases == ()
        replies(state, attach(incarnation=9, done=DoneSet((EpochDone(1, 0, ()),))))
        (mine,) = replies(state, outcomes(1, 2, **end))
        assert mine.leases == (Lease(0, 0, 1),)
        assert replies(state, outcomes(2, **end))[0].leases == ()
        told = {**end, "wanted": 0, "generation": mine.generation}
        replies(state, outcomes(1, 3, **told, done=mine.leases))
        assert replies(state, outcomes(2, 2, **end))[0].unsettled == 1

    def test_what_comes_once_after_training_is_never_given_up_for_that_would_pass_for_done(self):
        state = joined(1, 2)
        replies(state, attach(incarnation=9, done=DoneSet((EpochDone(1, 0, ()),))))
        end = {"work": "train-end", "before": 1}
        for serial in range(1, 6):
            (mine,) = replies(state, outcomes(1, 2 * serial, wanted=1, **end))
            assert [(lease.epoch, lease.number) for lease in mine.leases] == [(0, 0)]
            failed = {"wanted": 0, "generation": mine.generation, "failed": (Failure(mine.leases[0], ""),)}
            assert replies(state, outcomes(1, 2 * serial + 1, **end, **failed))[0].unsettled == 0
        assert state.report(0.0)["streams"]["train"]["queue"]["train-end"]["dead"] == 0


def test_what_was_promised_is_known_after_a_kill():
    state, facts = joined(1, 2), []
    for message in (outcomes(1, wanted=3), outcomes(2, wanted=1), outcomes(1, 2, done=(Lease(0, 1, 1),))):
        facts += [one.fact for one in state.handle(Received(b"x", message), 0.0) if isinstance(one, Keep)]
    again = queue()
    for fact in facts:
        again.recover(fact)
    assert again.queues.incomplete() == []
    replies(again, attach(incarnation=1))
    (answer,) = replies(again, outcomes(1, 3))
    assert [lease.number for lease in answer.leases] == [0, 2]


class TestBook:
    def test_it_is_told_when_a_trainer_attaches_and_with_all_leases(self):
        state = queue()
        assert replies(state, attach(incarnation=1))[0].book == BookMark(1, 0)
        assert replies(state, outcomes(1, wanted=1))[0].book == BookMark(1, 1)
        assert replies(state, outcomes(1, 2, wanted=1, book=BookMark(1, 1)))[0].book == BookMark(1, 1), (
            "nothing changed"
        )
        assert replies(coordinator(), attach(0, 4))[0].book is None, "in lockstep there is none"

    def test_a_trainer_of_a_lost_book_gets_nothing_and_others_get_what_it_has(self):
        state = joined(1, 2)
        replies(state, outcomes(1, wanted=2))
        (answer,) = replies(state, outcomes(1, 2, wanted=2, done=(Lease(0, 0, 1),), book=BookMark(99, 1)))
        assert (answer.leases, answer.done, answer.book.identity) == ((), None, 1)
        table = state.report(0.0)["streams"]["train"]["queue"]["train"]
        assert (table["done"], table["leased"]) == (0, 0)

    def test_that_is_in_the_log(self):
        state = joined(1)
        orders = state.handle(Received(b"me", outcomes(1, book=BookMark(99, 1))), 0.0)
        (warning,) = [one for one in orders if isinstance(one, Warn)]
        assert "lost journal" in warning.event
        assert warning.fields == {"stream": "train", "trainer": "host:0", "run": "0000000000000001"}

    def test_after_a_restart_it_is_the_same_and_goes_on(self):
        before = joined(1)
        facts = kept(before, outcomes(1, wanted=2))
        after = coordinator(View(leases=RULES), first_version=500)
        for fact in [BookAdvanced(1, 0), *facts]:
            after.recover(fact)
        replies(after, attach(incarnation=1))
        (answer,) = replies(after, outcomes(1, 2, wanted=2, book=BookMark(1, 1)))
        assert (answer.book, len(answer.leases)) == (BookMark(1, 1), 2)

    def test_a_journal_that_went_back_in_time_is_another_book_for_all(self):
        state = joined(1, 2)
        replies(state, outcomes(1, wanted=1, book=BookMark(1, 0)))
        orders = state.handle(Received(b"2", outcomes(2, wanted=1, book=BookMark(1, 7))), 0.0)
        assert [one.fact for one in orders if isinstance(one, Keep)][-1] == BookAdvanced(2, 1)
        assert "journal lacks leases" in next(one.event for one in orders if isinstance(one, Warn))
        sent = [one.message for one in orders if isinstance(one, Send)]
        assert m.Recalled() in sent, "whoever has leases is to say so, and hears of it"
        (answer,) = [message for message in sent if isinstance(message, m.Leases)]
        assert (answer.leases, answer.book.identity) == ((), 2)
        (other,) = replies(state, outcomes(1, 2, book=BookMark(1, 1)))
        assert (other.leases, other.book.identity) == ((), 2)

    def test_whoever_restores_a_checkpoint_is_of_the_new_book(self):
        state = joined(1)
        replies(state, outcomes(1, wanted=1, book=BookMark(99, 1)))
        done = DoneSet((EpochDone(0, 3, ()),))
        (attached,) = replies(state, attach(incarnation=1, serial=2, done=done))
        (answer,) = replies(state, outcomes(1, 2, wanted=1, generation=2, book=attached.book))
        assert [lease.number for lease in answer.leases] == [3]

    def test_all_work_on_all_streams_is_in_one_book(self):
        state = joined(1)
        replies(state, outcomes(1, wanted=1))
        answers = replies(state, outcomes(1, 2**47, work="train-end", wanted=1, book=BookMark(1, 9)))
        assert [answer.book.identity for answer in answers if isinstance(answer, m.Leases)] == [2]


def test_leases_of_which_facts_are_missing_are_named():
    state = queue()
    state.recover(EpochOpened("train", "train", 3, 100, 7, 2))
    assert state.queues.incomplete() == ["train (train), epoch 3"]


def test_nothing_is_leased_any_more_once_the_job_was_ended_by_order():
    state = joined(1000)
    (before,) = replies(state, outcomes(wanted=2))
    state.handle(EndOrdered(drains=True), 0.0)
    (after,) = replies(state, outcomes(serial=2, wanted=4))
    assert (len(before.leases), after.leases) == (2, before.leases)
