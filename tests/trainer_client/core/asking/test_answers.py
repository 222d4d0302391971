"""What workers answer, and what counts of it, through the core's one door; and too many bad samples."""

from __future__ import annotations

import pytest

from shared.bad_limit import BadLimit
from tests.support.lone_core import LoneCore, address, pushed
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.asking.answers import BadRowLimit


def test_the_first_valid_answer_is_offered_and_an_unasked_one_is_not():
    lone = LoneCore()
    want, *_ = lone.with_workers(1)
    lone.push(want)
    (offer,) = lone.ordered(i.Offer)
    assert (offer.seq, offer.slot, offer.batch.number) == (0, want.ticket.slot, 0)
    lone.push(want)
    assert lone.ordered(i.Offer) == []
    assert lone.stream.answers.stale == 1


def test_a_payload_is_written_before_it_counts():
    lone = LoneCore()
    want, *_ = lone.with_workers(1, shared=False)
    lone.say(1, pushed(want), "payload")
    (write,) = lone.ordered(i.Write)
    assert (write.header.ticket, write.payload) == (want.ticket, "payload")
    assert lone.ordered(i.Offer) == []
    lone.tell(e.Checked(write.connection_id, write.header, valid=True))
    assert len(lone.ordered(i.Offer)) == 1


def test_what_is_in_its_slot_is_looked_at_where_that_is_wanted():
    lone = LoneCore(verify=True)
    want, *_ = lone.with_workers(1)
    lone.say(1, pushed(want))
    (check,) = lone.ordered(i.Check)
    lone.tell(e.Checked(check.connection_id, check.header, valid=True))
    assert len(lone.ordered(i.Offer)) == 1


def test_a_frame_whose_slot_went_to_somebody_else_meanwhile_counts_for_nothing():
    lone = LoneCore()
    want, *_ = lone.with_workers(1, shared=False)
    lone.say(1, pushed(want), "payload")
    (write,) = lone.ordered(i.Write)
    lone.tell(e.ConnectionDown(lone.connection_id(1)), e.Checked(write.connection_id, write.header, valid=True))
    assert lone.ordered(i.Offer) == []
    assert lone.stream.answers.stale == 1


def rows(most, *batches, at_the_end=False, laps=()):
    limit = most if isinstance(most, BadLimit) else BadLimit(most)
    book = BadRowLimit(limit)
    for number, (good, bad) in enumerate(batches):
        lap = laps[number] if laps else 0
        book.count(lap=lap, good=good, bad=bad, reasons=[(f"why{bad % 2}", bad)], first=f"r{bad}" if bad else "")
    return book.verdict(at_the_end=at_the_end)


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    ("most", "batches", "at_the_end", "stops"),
    [
        (0.5, [(0, 200)], False, False),  # a single batch never decides
        (0.5, [(0, 200)], True, False),
        (0.5, [(0, 50), (0, 50)], False, True),
        (0.5, [(0, 50), (0, 49)], False, False),  # too few to say
        (0.5, [(0, 50), (0, 49)], True, True),
        (0.5, [(25, 25), (25, 25)], False, False),  # at most so many is borne
        (0.5, [(25, 25), (24, 26)], False, True),
        (1.0, [(0, 100), (0, 100)], True, False),  # switched off
        (0.0, [(99, 1), (100, 0)], False, True),
        (0.5, [(0, 0), (0, 0)], True, False),
    ],
)
def test_the_share_decides_once_there_is_enough(most, batches, at_the_end, stops):
    assert (rows(most, *batches, at_the_end=at_the_end) is not None) == stops


@pytest.mark.fault(45)
def test_the_first_reasons_are_named_once_each():
    error = rows(0.1, (0, 50), (0, 50), (0, 51), (0, 52), (0, 53))
    assert error.got == "256 of the first 256 (152 why0, 104 why1): r50; r51; r52"
    assert "at most 10 % of the rows" in error.expected


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    ("most", "batches", "laps", "stops"),
    [
        (3, [(90, 3), (5, 0)], [], False),
        (3, [(0, 4)], [], True),  # a single batch decides
        (3, [(90, 2), (90, 2)], [0, 0], True),
        (3, [(90, 2), (90, 2)], [0, 1], False),  # the same ones, in the next epoch
        (0, [(1000, 0), (1000, 1)], [], True),
        (0, [(1000, 0)], [], False),
    ],
)
def test_a_number_decides_at_once_within_an_epoch(most, batches, laps, stops):
    error = rows(BadLimit(samples=most), *batches, laps=laps)
    assert (error is not None) == stops
    assert error is None or f"at most {most} samples of the rows to be unusable (max_bad)" in error.expected


def fed(batches, **said):
    """A core whose workers deliver these batches of two rows, all bad, in this order."""
    lone = LoneCore(prefetch=8, slots=20)
    lone.attach(*said.pop("workers"), max_bad=0.5, batches=batches)
    lone.greet(1)
    return lone, lone.wants()


@pytest.mark.fault(45)
def test_the_feed_fails_before_the_last_batch_of_an_epoch_can_be_taken():
    lone, wants = fed(3, workers=[address(1)])
    lone.say(1, pushed(wants[2], rows=0, masked=2, reason="why"))
    lone.say(1, pushed(wants[0], rows=0, masked=2, reason="why"))
    assert lone.ordered(i.Fail) == []
    lone.say(1, pushed(wants[1], rows=0, masked=2, reason="why"))
    kinds = [type(one) for one in lone.orders if isinstance(one, i.Fail | i.Offer)]
    assert kinds == [i.Fail, i.Offer]
