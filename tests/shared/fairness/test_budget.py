"""Nobody takes all the room, and a peer that sends too much in vain is ignored for a moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.fairness.budget import Budget, Patience


def fill(budget, *holders):
    """All take one after the other, as long as each has room."""
    while any(budget.has_room(one) for one in holders):
        for one in holders:
            if budget.has_room(one):
                budget.take(one, 1)


@pytest.mark.fault(42)
@pytest.mark.parametrize(("holders", "each"), [("a", 30), ("ab", 20), ("abcde", 10)])
def test_all_get_the_same_and_as_much_is_left_for_a_newcomer(holders, each):
    budget = Budget(60)
    fill(budget, *holders)
    assert [budget.held(one) for one in holders] == [each] * len(holders)
    assert budget.total == each * len(holders)
    assert budget.has_room("newcomer")


def test_what_is_given_back_makes_room_again():
    budget = Budget(10)
    fill(budget, "a")
    assert not budget.has_room("a")
    budget.give_back("a", 2)
    assert (budget.held("a"), budget.total) == (3, 3)
    assert budget.has_room("a")


def test_nobody_has_room_in_nothing():
    budget = Budget(10)
    budget.take("a", 10)
    assert not budget.has_room("b")
    budget.give_back("a", 1)
    assert budget.has_room("b")


def test_what_was_not_taken_cannot_be_given_back():
    with pytest.raises(KeyError):
        Budget(10).give_back("a", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans())))
def test_the_total_is_what_all_hold_and_goes_beyond_by_one_amount_at_most(script):
    budget, held = Budget(20), []
    for holder, amount, back in script:
        if back and held:
            budget.give_back(*held.pop())
        elif not back and budget.has_room(holder):
            budget.take(holder, amount)
            held.append((holder, amount))
        assert budget.total == sum(amount for _, amount in held) < 20 + 9
        for one in "abc":
            assert budget.held(one) == sum(amount for other, amount in held if other == one)
    for one in held:
        budget.give_back(*one)
    assert (budget.total, budget._held) == (0, {})


def say(patience: Patience[str], who: str, now_s: float) -> int:
    """How much one says in vain until it is not heard any more."""
    count = 0
    while patience.hears(who, now_s):
        patience.bear(who)
        count += 1
    return count


@pytest.mark.fault(42)
def test_who_says_too_much_in_vain_is_not_heard_until_the_moment_is_over() -> None:
    patience: Patience[str] = Patience()
    assert say(patience, "a", 5.0) == 8 + 256
    assert not patience.hears("a", 5.09)
    assert patience.hears("b", 5.09), "others are"
    assert patience.hears("a", 5.1)


@pytest.mark.fault(58)
def test_many_share_what_is_borne_of_all() -> None:
    """In turn, as messages come from the socket. A newcomer is still heard."""
    patience, peers = Patience[str](), [f"peer {number}" for number in range(30)]
    counts = dict.fromkeys(peers, 0)
    while heard := [who for who in peers if patience.hears(who, 1.0)]:
        for who in heard:
            patience.bear(who)
            counts[who] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    assert 8 < min(counts.values()) <= 8 + 512 // 30
    assert sum(counts.values()) <= 30 * 8 + 512 + 30
    assert say(patience, "newcomer", 1.0) >= 8


def test_a_moment_begins_with_the_first_look_after_the_last() -> None:
    patience: Patience[str] = Patience()
    assert patience.hears("a", 1.0)
    assert patience.hears("a", 7.0)
    say(patience, "a", 7.0)
    assert not patience.hears("a", 7.05)
    assert patience.hears("a", 7.1)


def test_nobody_is_remembered_for_longer() -> None:
    patience: Patience[int] = Patience()
    for who in range(1000):
        assert patience.hears(who, who)
        patience.bear(who)
    assert len(patience._few) == 1
