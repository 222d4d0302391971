"""A core in queue mode: what it says of its leases, what lies ahead, when a reader ends."""

from __future__ import annotations

import pytest

from shared.errors import LostError
from shared.wire import messages as m
from shared.wire.message_parts import BookMark, DoneSet, EpochDone, Failure, Lease, MetricSums
from tests.support.lone_core import NBYTES, SHAPE, LoneCore, address, attached
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.upcoming import Position

BOOK = BookMark(77, 1)


def queue(*, work="train", **settings):
    """Attached, with one worker, and its first answer (nothing is asked for before there is a reader)."""
    lone = LoneCore(**settings)
    lone.attach(address(1), work=work, book=BookMark(77, 0))
    lone.greet(1)
    answer(lone, (), wanted=0)
    return lone


def reports(lone):
    return [one.message for one in lone.ordered(i.ToCoordinator) if isinstance(one.message, m.Outcomes)]


def open_reader(lone, reader=1, epoch=0, taken=0):
    lone.tell(e.Opened(reader, Position(epoch, 0, 4), taken))
    return reports(lone)


def answer(lone, leases, *, generation=1, unsettled=0, done=None, wanted=None, book=BOOK):
    """To the open message."""
    said = lone.core.stream.leases._open
    assert said is not None
    assert wanted in (None, said.wanted)
    told = m.Leases(
        serial=said.serial, book=book, generation=generation, leases=tuple(leases), unsettled=unsettled, done=done
    )
    return lone.tell(e.CoordinatorSent(told))


def take(lone, want):
    """The batch is built, and a consumer takes it."""
    lone.tell(e.WorkerSent(lone.connection_id(1), pushed(want)))
    (offer,) = lone.ordered(i.Offer)
    lone.tell(e.Took(offer.seq, offer.slot))
    return offer.batch


def pushed(want):
    return m.Pushed(
        ticket=want.ticket, epoch=want.epoch, number=want.number, empty=False, in_slot=True, shape=SHAPE,
        nbytes=NBYTES, digest=0, rows=2, masked=0, reason="", reasons=(), build_us=0, read_us=0, held_us=0, waiting=0,
    )  # fmt: skip


def leased(*numbers, epoch=0):
    return [Lease(epoch, number, 1) for number in numbers]


def test_nothing_is_leased_before_somebody_reads():
    lone = queue()
    assert reports(lone) == []
    (said,) = open_reader(lone)
    assert (said.wanted, said.before, said.done) == (4, 2, ())


def test_leases_are_asked_of_workers_as_any_batch_and_epochs_of_the_plan_follow_the_work():
    lone = queue()
    open_reader(lone)
    answer(lone, [Lease(3, 7, 1)])
    assert [(want.epoch, want.number) for want in lone.wants()] == [(3, 7)]
    lone = queue(work="predict")
    open_reader(lone, epoch=3)
    answer(lone, [Lease(3, 7, 1)])
    assert [(want.epoch, want.number) for want in lone.wants()] == [(0, 7)]


def test_done_is_told_with_what_is_wanted_next():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    batch = take(lone, lone.wants()[0])
    (said,) = reports(lone)
    assert said.in_hand == Lease(0, 0, 1)
    answer(lone, leased(0, 1, 2, 3, 4))
    lone.tell(e.LeaseSettled(batch.lease, 1, done=True))
    (said,) = reports(lone)
    assert (said.done, said.failed, said.in_hand, said.wanted) == ((Lease(0, 0, 1),), (), None, 4)


def test_a_failure_is_told_as_one():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1))
    batch = take(lone, lone.wants()[0])
    answer(lone, leased(0, 1))
    lone.tell(e.LeaseSettled(batch.lease, 1, done=False))
    assert reports(lone)[0].failed == (Failure(Lease(0, 0, 1), ""),)


def test_what_is_given_back_is_no_failure():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1))
    batch = take(lone, lone.wants()[0])
    answer(lone, leased(0, 1))
    lone.tell(e.LeaseSettled(batch.lease, 1, done=False, costs_try=False))
    (said,) = reports(lone)
    assert (said.done, said.failed, said.returned) == ((), (), (Lease(0, 0, 1),))
    lone.tell(e.LeaseSettled(Lease(0, 1, 1), 1, done=False, costs_try=False))
    answer(lone, leased(0, 1))
    assert reports(lone)[-1].wanted == 4, "what was given back meanwhile is not taken for a new lease"


@pytest.mark.fault(22)
def test_a_message_is_repeated_as_it_was_until_it_is_answered():
    lone = queue()
    (said,) = open_reader(lone)
    lone.wait(0.6)
    assert set(reports(lone)) == {said}
    answer(lone, leased(0, 1, 2, 3))
    lone.wait(0.6)
    assert reports(lone) == []


def test_an_answer_to_anything_else_is_a_stray():
    lone = queue()
    open_reader(lone)
    lone.tell(e.CoordinatorSent(m.Leases(serial=99, book=BOOK, generation=1, leases=(), unsettled=0, done=None)))
    assert lone.core.strays == 1


def test_what_is_settled_while_a_message_is_open_is_not_taken_for_a_new_lease():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    batch = take(lone, lone.wants()[0])
    lone.tell(e.LeaseSettled(batch.lease, 1, done=True))
    answer(lone, leased(0, 1, 2, 3))
    assert lone.wants() == []
    assert lone.core.stream.leases._open.done == (Lease(0, 0, 1),)


def test_a_lease_that_is_lost_before_its_batch_was_taken_is_void():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    lone.tell(e.CoordinatorSent(m.Recalled()))
    answer(lone, leased(0, 2, 3))
    assert lone.core.stream.leases.void == {Lease(0, 1, 1)}
    lone.tell(e.LeaseSettled(Lease(0, 1, 1), 1, done=False))
    assert lone.core.stream.leases.void == set()
    assert all(said.failed == () for said in reports(lone))


def test_one_that_is_lost_in_hand_is_still_told_done_and_nothing_is_wanted_meanwhile():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    batch = take(lone, lone.wants()[0])
    answer(lone, [])
    lone.tell(e.CoordinatorSent(m.Recalled()))
    assert reports(lone)[0].wanted == 0
    answer(lone, [])
    lone.tell(e.LeaseSettled(batch.lease, 1, done=True))
    (said,) = reports(lone)
    assert (said.done, said.wanted) == ((Lease(0, 0, 1),), 4)


def test_that_another_trainer_restored_a_checkpoint_is_known_until_this_one_does():
    lone = queue()
    leases = lone.core.stream.leases
    known = []
    for generation, number in ((1, 3), (2, 5), (2, 6)):
        open_reader(lone, reader=number)
        answer(lone, leased(number), generation=generation)
        known.append(leases.is_taken_back)
    leases.rewind(0)
    known.append(leases.is_taken_back)
    open_reader(lone, reader=9)
    answer(lone, leased(7), generation=3)
    assert [*known, leases.is_taken_back] == [False, True, True, False, False]


def test_what_was_settled_of_an_older_generation_is_not_told():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    batch = take(lone, lone.wants()[0])
    answer(lone, leased(5), generation=2)
    lone.tell(e.LeaseSettled(batch.lease, 1, done=True))
    assert all(not said.done for said in reports(lone))
    assert [one.batch.number for one in lone.core.stream.upcoming.entries.values()][-1] == 5


def test_after_a_checkpoint_is_restored_nothing_from_before_is_taken_for_ours():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3), unsettled=0)
    lone.tell(e.AttachAsked(2, None, DoneSet((EpochDone(5, 0, ()),))))
    (asked,) = [one.message for one in lone.ordered(i.ToCoordinator) if isinstance(one.message, m.Attach)]
    lone.tell(e.CoordinatorSent(_attached(asked.serial)))
    assert lone.core.stream.leases.void == set(leased(0, 1, 2, 3))


def test_a_new_reader_gets_again_what_was_taken_and_not_settled():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    take(lone, lone.wants()[0])
    answer(lone, leased(0, 1, 2, 3))
    open_reader(lone, reader=2)
    (restart,) = lone.ordered(i.Restart)
    numbers = [one.batch.number for one in lone.core.stream.upcoming.entries.values()]
    assert (restart.reader, numbers) == (2, [0, 1, 2, 3])


def test_a_reader_of_an_earlier_epoch_begins_anew_where_what_was_read_ahead_is_void():
    """Another trainer took the queue back: a batch of a later epoch at the head would end the reader at once."""
    lone = queue()
    open_reader(lone, epoch=2)
    answer(lone, leased(0, 1, epoch=2), unsettled=2)
    lone.tell(e.StateAsked(7))
    answer(lone, (), generation=2, done=DoneSet((EpochDone(0, 0, ()),)))
    open_reader(lone, reader=2, epoch=0)
    (restart,) = lone.ordered(i.Restart)
    upcoming = lone.core.stream.upcoming
    assert (restart.reader, list(upcoming.entries), lone.core.stream.leases.void) == (2, [], set())


def test_a_new_reader_goes_on_where_all_was_settled():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    open_reader(lone, reader=2)
    assert lone.ordered(i.Serve)[0].reader == 2
    assert lone.ordered(i.Restart) == []


def test_a_reader_ends_when_its_epoch_is_settled_and_not_when_nothing_is_left_to_lease():
    lone = queue()
    open_reader(lone)
    answer(lone, [], unsettled=0)
    assert not any(one.ended for one in lone.ordered(i.Serve))
    lone.wait(1.5)
    answer(lone, [], unsettled=1)
    assert [one.reader for one in lone.ordered(i.Serve) if one.ended] == [1]


@pytest.mark.parametrize(("work", "epochs", "epoch", "before"), [
    ("train", None, 3, 5), ("train", 4, 3, 4), ("train", 9, 3, 5), ("evaluate", None, 3, 4), ("predict", None, 0, 1),
])  # fmt: skip
def test_of_the_next_epoch_something_is_wanted_only_to_train_and_if_there_is_one(work, epochs, epoch, before):
    lone = queue(work=work, epochs=epochs)
    assert open_reader(lone, epoch=epoch)[0].before == before


def test_a_restarted_coordinator_is_told_again_and_joined_without_rewinding():
    lone = queue()
    (said,) = open_reader(lone)
    refusal = m.Refused(code="unknown", expected="a trainer", got="another", remedy="Attach again.")
    lone.tell(e.CoordinatorSent(refusal))
    (asked,) = [one.message for one in lone.ordered(i.ToCoordinator) if isinstance(one.message, m.Attach)]
    assert (asked.cursor, asked.done) == (None, None)
    lone.tell(e.CoordinatorSent(_attached(asked.serial)))
    assert said in reports(lone)


def _attached(serial):
    from tests.support.lone_core import attached  # beside what it is for

    return attached(serial, work="train", workers=(address(1),))


def test_the_state_is_asked_for_after_all_that_was_settled():
    lone = queue()
    open_reader(lone)
    answer(lone, leased(0, 1, 2, 3))
    batch = take(lone, lone.wants()[0])
    answer(lone, leased(0, 1, 2, 3))
    lone.tell(e.LeaseSettled(batch.lease, 1, done=True), e.StateAsked(7))
    (said,) = reports(lone)
    assert (said.done, said.snapshot) == ((Lease(0, 0, 1),), True)
    done = DoneSet((EpochDone(0, 4, (1, 1, 1)),))
    answer(lone, leased(1, 2, 3), done=done)
    assert lone.ordered(i.AnswerState) == [i.AnswerState(7, done)]


# --- evaluations whose metrics are summed ---


def evaluating():
    """In an evaluation, with a reader, before its first answer."""
    lone = queue(work="evaluate")
    lone.tell(e.EvaluationNamed("model 9f", 16))
    (said,) = open_reader(lone)
    assert (said.states.evaluation, said.states.nbytes, said.generation, said.before) == ("model 9f", 16, 0, 1)
    return lone


def sums(lone, *leases, generation=1, unsettled=0, **other):
    said = lone.core.stream.leases._open
    values = {"lost": False, "settled": False, "batches": 0, "given_up": 0, "content": b""} | other
    told = m.Leases(
        serial=said.serial,
        book=BOOK,
        generation=generation,
        leases=leases,
        unsettled=unsettled,
        sums=MetricSums(**values),
        done=None,
    )
    return lone.tell(e.CoordinatorSent(told))


def answers(lone):
    return [(one.sums, one.given_up) for one in lone.ordered(i.AnswerSums)]


def test_a_batch_is_told_done_with_its_states_and_the_sums_are_asked_for_behind_it():
    lone = evaluating()
    (lease,) = leased(0)
    sums(lone, lease)
    lone.tell(e.LeaseSettled(lease, 1, done=True, states=b"a" * 16))
    (said,) = reports(lone)
    assert (said.done, said.states.content, said.states.sums_from) == ((lease,), b"a" * 16, None)
    lone.tell(e.SumsAsked(7))
    sums(lone, settled=True, unsettled=1)
    assert answers(lone) == [], "that answer was to what was told before"
    (said,) = reports(lone)
    assert (said.done, said.states.sums_from) == ((), 0)
    sums(lone, settled=True, given_up=1, content=b"s" * 8, unsettled=1)
    (said,) = reports(lone)
    assert said.states.sums_from == 8
    sums(lone, settled=True, given_up=1, content=b"t" * 8, unsettled=1)
    assert answers(lone) == [(b"s" * 8 + b"t" * 8, 1)]


def test_whoever_asks_for_sums_before_all_is_settled_is_told_to_read_on():
    lone = evaluating()
    sums(lone)
    lone.tell(e.SumsAsked(7))
    sums(lone)
    assert answers(lone) == [(None, 0)]


def test_an_evaluation_that_began_anew_meanwhile_has_no_sums():
    lone = evaluating()
    sums(lone)
    lone.tell(e.SumsAsked(7))
    sums(lone, settled=True, content=b"s" * 16, generation=2)
    assert answers(lone) == [(None, 0)]


def test_what_the_coordinator_lost_the_beginning_of_is_told_again_and_is_no_lease():
    lone = evaluating()
    (lease,) = leased(0)
    sums(lone, lease)
    lone.tell(e.LeaseSettled(lease, 1, done=True, states=b"a" * 16))
    sums(lone, lease, lost=True)
    (said,) = reports(lone)[-1:]
    assert (said.done, said.states.start, said.states.content) == ((lease,), 0, b"a" * 16)


def test_another_evaluation_forgets_the_leases_of_the_last():
    lone = evaluating()
    (lease,) = leased(0)
    sums(lone, lease)
    lone.tell(e.EvaluationNamed("model 8e", 16))
    (said,) = open_reader(lone, reader=2)
    assert (said.states.evaluation, said.generation, said.done, said.returned) == ("model 8e", 0, (), ())
    lone.tell(e.LeaseSettled(lease, 1, done=True, states=b"a" * 16))
    sums(lone, generation=4)
    assert all(not one.done for one in reports(lone))


@pytest.mark.fault(56)
class TestLostBook:
    """The coordinator's journal is lost, so nobody knows what is done."""

    def test_all_that_is_told_goes_with_the_mark_that_was_heard_last(self):
        lone = queue()
        (said,) = open_reader(lone)
        assert said.book == BOOK
        answer(lone, leased(0), book=BookMark(77, 5))
        batch = take(lone, lone.wants()[0])
        answer(lone, leased(0), book=BookMark(77, 5))
        lone.tell(e.LeaseSettled(batch.lease, 1, done=True))
        assert reports(lone)[0].book == BookMark(77, 5)

    def test_another_book_ends_the_feed_once_and_nothing_more_is_told(self):
        lone = queue()
        open_reader(lone)
        answer(lone, (), book=BookMark(78, 0))
        (failed,) = lone.ordered(i.Fail)
        assert (failed.error.code, failed.error.exit_code) == ("lost", 4)
        assert failed.error.expected == "the lease table that this trainer leased its batches from"
        assert failed.error.where == "coordinator, stream train"
        assert "Start all trainers of this stream again: they resume at the last checkpoint, and" in failed.error.remedy
        lone.tell(e.CoordinatorSent(m.Recalled()))
        assert reports(lone) == []
        assert lone.core.stream.leases.due_s == float("inf")

    def test_leases_of_the_other_book_are_not_taken(self):
        lone = queue()
        open_reader(lone)
        answer(lone, leased(0, 1), book=BookMark(78, 0))
        assert lone.wants() == []

    def test_it_names_the_checkpoint_that_was_written_last(self):
        lone = queue()
        open_reader(lone)
        lone.tell(e.Saved("checkpoints/00000003.npz, step 120"))
        answer(lone, (), book=BookMark(78, 0))
        (failed,) = lone.ordered(i.Fail)
        assert "they resume at the last checkpoint, checkpoints/00000003.npz, step 120, and" in failed.error.remedy

    def test_or_the_state_that_the_user_asked_for(self):
        lone = queue()
        open_reader(lone)
        answer(lone, leased(0))
        lone.tell(e.StateAsked(1))
        answer(lone, leased(0), done=DoneSet((EpochDone(2, 9, (3, 4)),)))
        lone.tell(e.CoordinatorSent(m.Recalled()))
        answer(lone, (), book=BookMark(78, 0))
        (failed,) = lone.ordered(i.Fail)
        assert "the state that feed.state() returned last, epoch 2 with 7 batches done" in failed.error.remedy

    @pytest.mark.parametrize(("work", "remedy"), [("evaluate", "Evaluate again"), ("predict", "Predict again")])
    def test_what_to_do_depends_on_the_work(self, work, remedy):
        lone = queue(work=work)
        open_reader(lone)
        answer(lone, (), book=BookMark(78, 0))
        (failed,) = lone.ordered(i.Fail)
        assert remedy in failed.error.remedy

    def test_a_restarted_coordinator_is_told_the_old_mark_also_if_it_says_a_new_one_when_it_attaches(self):
        lone = queue()
        open_reader(lone)
        answer(lone, ())
        lone.tell(e.CoordinatorSent(m.Refused(code="unknown", expected="", got="", remedy="")))
        lone.tell(e.CoordinatorSent(attached(2, work="train", book=BookMark(78, 0))))
        assert not lone.ordered(i.Fail), "nothing is decided on what names no request for leases"
        assert reports(lone)[0].book == BOOK

    def test_after_a_checkpoint_was_restored_the_book_is_whichever_it_was_restored_in(self):
        lone = queue()
        open_reader(lone)
        answer(lone, ())
        done = DoneSet((EpochDone(0, 3, ()),))
        lone.tell(e.AttachAsked(2, None, done))
        lone.tell(e.CoordinatorSent(attached(2, work="train", book=BookMark(78, 0))))
        assert reports(lone)[0].book == BookMark(78, 0)
        answer(lone, (), book=BookMark(78, 1))
        assert not lone.ordered(i.Fail)


# --- a coordinator that leases nothing ---


def _warnings(lone):
    return [log for log in lone.ordered(i.WriteLog) if log.event == "waiting for leases that the coordinator withholds"]


def test_a_reader_that_gets_no_answer_says_so_once_and_ends_after_its_patience():
    lone = queue(lost_timeout_s=20.0)
    open_reader(lone)
    warnings, failures = [], []
    for _ in range(100):
        lone.orders = lone.wait_hearing(0.25, 1)
        warnings += _warnings(lone)
        failures += lone.ordered(i.Fail)
    (warning,) = warnings
    assert "StokerJournalLost" in warning.fields["look_at"]
    assert "state folder" in warning.fields["look_at"]
    (failure,) = failures
    assert isinstance(failure.error, LostError)
    assert "20 s" in failure.error.expected


def test_a_reader_whose_batches_others_have_waits_for_as_long_as_it_takes():
    lone = queue(lost_timeout_s=20.0)
    open_reader(lone)
    for _ in range(200):
        lone.orders = lone.wait_hearing(0.25, 1)
        if lone.core.stream.leases._open is not None:
            answer(lone, ())
        assert not lone.ordered(i.Fail)
        assert not _warnings(lone)


def test_a_reader_with_batches_ahead_waits_for_nobody():
    lone = queue(lost_timeout_s=20.0)
    open_reader(lone)
    answer(lone, leased(0, 1))
    lone.tell(e.StateAsked(1))
    for _ in range(200):
        lone.orders = lone.wait_hearing(0.25, 1)
        assert not _warnings(lone)


def test_time_in_which_the_trainer_stood_still_does_not_count():
    lone = queue(lost_timeout_s=20.0)
    open_reader(lone)
    for _ in range(10):
        lone.tell(after_s=15.0)
        assert not lone.ordered(i.Fail)
        assert not _warnings(lone)
