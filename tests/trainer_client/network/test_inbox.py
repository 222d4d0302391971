from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.network.inbox import Inbox


@pytest.mark.fault(24)
@given(st.permutations(range(8)))
def test_whatever_order_they_come_in_they_come_out_in_turn(order):
    inbox: Inbox[str] = Inbox(head=5)
    out = []
    for seq in order:
        inbox.put(5 + seq, f"batch {seq}")
        while inbox.peek() is not None:
            out.append(inbox.take())
    assert out == [f"batch {seq}" for seq in range(8)]
    assert (inbox.head, len(inbox)) == (13, 0)


@pytest.mark.fault(24)
def test_a_number_that_came_already_is_a_defect():
    inbox: Inbox[str] = Inbox()
    inbox.put(0, "a")
    with pytest.raises(AssertionError, match="number 0 came twice; the head is 0"):
        inbox.put(0, "b")
    inbox.take()
    with pytest.raises(AssertionError, match="number 0 came twice; the head is 1"):
        inbox.put(0, "c")


def test_one_that_is_retracted_may_come_again():
    inbox: Inbox[str] = Inbox()
    inbox.put(1, "early")
    assert inbox.retract(1) == "early"
    assert inbox.retract(1) is None
    inbox.put(1, "again")
    inbox.put(0, "first")
    assert [inbox.take(), inbox.take()] == ["first", "again"]


def test_a_restart_returns_what_was_left():
    inbox: Inbox[str] = Inbox()
    inbox.put(1, "one")
    inbox.put(3, "three")
    assert sorted(inbox.restart(7)) == ["one", "three"]
    assert (inbox.head, len(inbox), inbox.peek()) == (7, 0, None)
    inbox.put(7, "seven")
    assert inbox.take() == "seven"
