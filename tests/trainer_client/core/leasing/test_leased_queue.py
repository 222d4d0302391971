"""A core in queue mode after training: what it says of the work that comes once, and whom it answers."""

from __future__ import annotations

import pytest

from shared.wire import messages as m
from shared.wire.message_parts import BookMark, Failure, Lease
from tests.support.lone_core import LoneCore, address
from trainer_client.core import events as e
from trainer_client.core import instructions as i

MINE = Lease(0, 0, 1)
BOOK = BookMark(77, 1)


def queue():
    lone = LoneCore(epochs=3)
    lone.attach(address(1), work="train", book=BookMark(77, 0))
    lone.tell(after_s=0.0)
    return lone


def said(lone):
    return [one.message for one in lone.ordered(i.ToCoordinator)
            if isinstance(one.message, m.Outcomes) and one.message.work == "train-end"]  # fmt: skip


def answer(lone, to, *leases, unsettled=0, generation=1, book=BOOK):
    told = m.Leases(serial=to.serial, book=book, generation=generation, leases=leases, unsettled=unsettled, done=None)
    lone.tell(e.CoordinatorSent(told))
    return [(one.serial, one.is_ours) for one in lone.ordered(i.AnswerEnd)]


def ask(lone, serial=7):
    lone.tell(e.EndAsked(serial))
    (message,) = said(lone)
    return message


def test_it_is_asked_for_once_all_epochs_are_over_and_is_ours():
    lone = queue()
    asked = ask(lone)
    assert (asked.wanted, asked.before, asked.done, asked.failed, asked.in_hand) == (1, 3, (), (), None)
    assert answer(lone, asked, MINE) == [(7, True)]
    lone.wait(60.0)
    assert said(lone) == []


def test_nobody_asks_unless_the_user_does():
    lone = queue()
    lone.wait(10.0)
    assert said(lone) == []


def test_it_is_repeated_as_it_was_until_it_is_answered():
    lone = queue()
    asked = ask(lone)
    lone.wait(1.2)
    assert said(lone) == [asked] * 2
    assert answer(lone, asked, MINE) == [(7, True)]
    strays = lone.core.strays
    assert answer(lone, asked, MINE) == []
    assert lone.core.strays == strays + 1


def test_what_another_has_is_waited_for_until_it_is_done():
    lone = queue()
    assert answer(lone, ask(lone)) == []
    timeout_s = lone.core.stream.spec.heartbeat_timeout_s
    assert lone.core.stream.sharing.end.due_s == pytest.approx(lone.now_s + timeout_s / 2)
    lone.wait(1.2)
    (again, *_) = said(lone)
    assert answer(lone, again, unsettled=1) == [(7, False)]


def test_news_are_looked_at_at_once():
    lone = queue()
    asked = ask(lone)
    answer(lone, asked)
    lone.tell(e.CoordinatorSent(m.Recalled()))
    (again,) = said(lone)
    assert again.serial == asked.serial + 1
    assert answer(lone, again, MINE) == [(7, True)]
    lone.tell(e.CoordinatorSent(m.Recalled()))
    assert said(lone) == []


def test_what_became_of_it_is_told_with_the_generation_of_its_lease():
    for done in (True, False):
        lone = queue()
        answer(lone, ask(lone), MINE, generation=5)
        lone.tell(e.EndSettled(8, done))
        (told,) = said(lone)
        assert (told.done, told.failed) == (((MINE,), ()) if done else ((), (Failure(MINE, ""),)))
        assert (told.wanted, told.generation) == (0, 5)
        assert answer(lone, told, unsettled=int(done)) == [(8, False)]


def test_its_serials_are_not_those_of_batches():
    lone = queue()
    asked = ask(lone)
    assert asked.serial > 2**47
    assert asked.generation == 0, "none of a table's"


@pytest.mark.fault(56)
def test_it_is_nobodys_once_the_journal_is_lost_and_the_feed_ends():
    lone = queue()
    message = ask(lone)
    assert message.book == BookMark(77, 0)
    assert answer(lone, message, MINE, book=BookMark(78, 1)) == []
    assert len(lone.ordered(i.Fail)) == 1
    lone.tell(after_s=60.0)
    assert said(lone) == []


def test_nothing_is_due_once_an_answer_about_batches_shows_that_the_journal_is_lost():
    """Or the receive thread would look for something to send without a pause."""
    lone = queue()
    ask(lone)
    report = lone.core.stream.leases._open
    assert (report.work, lone.core.stream.sharing.due_s < float("inf")) == ("train", True)
    assert answer(lone, report, book=BookMark(78, 1)) == []
    assert len(lone.ordered(i.Fail)) == 1
    lone.tell(after_s=60.0)
    assert lone.core.stream.sharing.due_s == float("inf")
