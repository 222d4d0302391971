"""Too many bad samples stop a job; a few, or a single batch, do not."""

from __future__ import annotations

import pytest

from shared.bad_limit import BadLimit
from tests.support.lone_core import LoneCore, pushed
from trainer_client.core import instructions as i
from trainer_client.core.asking.bad_row_limit import BadRowLimit

pytestmark = pytest.mark.fault(45)


def rows(most, *batches, at_the_end=False, laps=()):
    limit = most if isinstance(most, BadLimit) else BadLimit(most)
    book = BadRowLimit(limit)
    for number, (good, bad) in enumerate(batches):
        lap = laps[number] if laps else 0
        book.count(lap=lap, good=good, bad=bad, reasons=[(f"why{bad % 2}", bad)], first=f"r{bad}" if bad else "")
    return book.verdict(at_the_end=at_the_end)


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


def test_the_first_reasons_are_named_once_each():
    error = rows(0.1, (0, 50), (0, 50), (0, 51), (0, 52), (0, 53))
    assert error.got == "256 of the first 256 (152 why0, 104 why1): r50; r51; r52"
    assert "at most 10 % of the rows" in error.expected


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


def test_the_feed_fails_before_the_last_batch_of_an_epoch_can_be_taken():
    from tests.support.lone_core import address

    lone, wants = fed(3, workers=[address(1)])
    lone.say(1, pushed(wants[2], rows=0, masked=2, reason="why"))
    lone.say(1, pushed(wants[0], rows=0, masked=2, reason="why"))
    assert lone.ordered(i.Fail) == []
    lone.say(1, pushed(wants[1], rows=0, masked=2, reason="why"))
    kinds = [type(one) for one in lone.orders if isinstance(one, i.Fail | i.Offer)]
    assert kinds == [i.Fail, i.Offer]
