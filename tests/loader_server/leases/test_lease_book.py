"""The book of leases: an identity, a revision that grows with what was told, and what a trainer's mark proves."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from loader_server.leases.lease_book import BookAdvanced, LeaseBook, NumberDone
from shared.wire.message_parts import BookMark

CHANGE = NumberDone("train", "train", 0, 0)


def a_book(*facts, first=7):
    kept = []
    book = LeaseBook(partial(next, count(first)), kept.append)
    for fact in facts:
        book.recover(fact)
    return book, kept


def test_it_is_begun_when_somebody_is_told_of_it_first_and_not_again():
    book, kept = a_book()
    assert [book.advance(), book.advance()] == [BookMark(7, 0)] * 2
    assert kept == [BookAdvanced(7, 0)]


def test_changes_between_two_answers_are_one_revision_which_is_kept_behind_them():
    book, kept = a_book()
    book.advance()
    book.keep(CHANGE)
    book.keep(CHANGE)
    assert [book.advance(), book.advance()] == [BookMark(7, 1)] * 2
    assert kept[1:] == [CHANGE, CHANGE, BookAdvanced(7, 1)]


def test_it_goes_on_where_the_journal_has_it():
    book, kept = a_book(BookAdvanced(3, 40), first=9)
    assert book.advance() == BookMark(3, 40)
    book.keep(CHANGE)
    assert book.advance() == BookMark(3, 41)
    assert kept == [CHANGE, BookAdvanced(3, 41)]


@pytest.mark.parametrize(
    ("heard", "is_another", "is_behind"),
    [
        (None, False, False),
        (BookMark(3, 0), False, False),
        (BookMark(3, 40), False, False),
        (BookMark(3, 41), False, True),
        (BookMark(4, 40), True, False),
        (BookMark(4, 99), True, False),
    ],
)
def test_what_a_mark_proves(heard, is_another, is_behind):
    book, _ = a_book(BookAdvanced(3, 40))
    assert (book.is_another(heard), book.is_behind(heard)) == (is_another, is_behind)


def test_one_that_is_renewed_is_another_to_all_that_heard_of_it_before():
    book, kept = a_book(BookAdvanced(3, 40), first=9)
    book.renew()
    assert book.is_another(BookMark(3, 40))
    assert book.advance() == BookMark(9, 40)
    assert kept == [BookAdvanced(9, 40)]


def test_whoever_has_leases_of_a_book_that_is_not_begun_has_them_of_another():
    book, _ = a_book()
    assert book.is_another(BookMark(3, 0))
