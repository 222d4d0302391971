"""Which batches are in the servers' variables, against plain sets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.wire.message_parts import DoneSet, EpochDone
from trainer_client.training.servers.applied import AppliedBatches, merged

NOTHING = DoneSet((EpochDone(0, 0, ()),))
BATCH = st.tuples(st.integers(0, 3), st.integers(0, 9))


def applied(*batches, start=NOTHING):
    found = AppliedBatches(start)
    for batch in batches:
        found.add(*batch)
    return found


def held(done):
    """The batches of ten epochs in a set that crossed the wire."""
    there = AppliedBatches(done)
    return {(epoch, number) for epoch in range(10) for number in range(12) if there.has(epoch, number)}


@settings(max_examples=200, deadline=None)
@given(st.sets(BATCH))
def test_what_was_added_and_nothing_else_is_there_also_after_it_crossed(batches):
    found = applied(*batches)
    assert held(found.done_set()) == batches
    for epoch in range(5):
        for number in range(11):
            assert found.has(epoch, number) == ((epoch, number) in batches)


def test_epochs_before_those_under_way_are_whole():
    found = applied((5, 0), start=DoneSet((EpochDone(3, 4, (1, 1)), EpochDone(5, 0, ()))))
    assert found.done_set() == DoneSet((EpochDone(3, 4, (1, 1)), EpochDone(5, 1, ())))
    assert [found.has(2, 7), found.has(4, 7), found.has(3, 1), found.has(3, 3)] == [True, True, False, True]


def test_what_is_settled_costs_nothing_any_more():
    found = applied(*((epoch, 0) for epoch in range(30)))
    found.forget_before(29)
    assert found.done_set() == DoneSet((EpochDone(29, 1, ()),))
    assert found.has(12, 5)


@settings(max_examples=200, deadline=None)
@given(st.sets(BATCH), st.sets(BATCH), st.integers(0, 3), st.integers(0, 3))
def test_two_accounts_of_one_run_make_one(one, other, settled, known):
    """Each knows some epochs to be over."""
    left, right = applied(*one), applied(*other)
    left.forget_before(settled)
    right.forget_before(known)
    whole = {(epoch, number) for epoch in range(max(settled, known)) for number in range(12)}
    late = {batch for batch in one | other if batch[0] >= max(settled, known)}
    assert held(merged(left.done_set(), right.done_set())) == whole | late
