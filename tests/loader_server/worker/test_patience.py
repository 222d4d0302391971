from __future__ import annotations

import pytest

from loader_server.worker.patience import Patience


@pytest.mark.fault(42)
def test_who_says_too_much_in_vain_is_not_heard_until_the_moment_is_over():
    patience = Patience()
    for _ in range(256):
        assert patience.hears("a", 5.0)
        patience.bear("a")
    assert not patience.hears("a", 5.0)
    assert not patience.hears("a", 5.09)
    assert patience.hears("b", 5.09), "others are"
    assert patience.hears("a", 5.1)


def test_a_moment_begins_with_the_first_look_after_the_last():
    patience = Patience()
    assert patience.hears("a", 1.0)
    assert patience.hears("a", 7.0)
    for _ in range(256):
        patience.bear("a")
    assert not patience.hears("a", 7.05)
    assert patience.hears("a", 7.1)


def test_nobody_is_remembered_for_longer():
    patience = Patience()
    for who in range(1000):
        assert patience.hears(who, who)
        patience.bear(who)
    assert len(patience._said) == 1
