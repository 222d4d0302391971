from __future__ import annotations

import pytest

from shared.fairness.patience import Patience


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
