from __future__ import annotations

import pytest

from shared.silence import Silence


@pytest.mark.fault(43)
def test_silence_is_borne_for_a_timeout_and_then_for_longer_each_time():
    silence, now_s, gaps = Silence(), 100.0, []
    while len(gaps) < 6:
        began_s = now_s
        while not silence.lose_patience(now_s, 0.5):
            now_s += 0.01
        gaps.append(now_s - began_s)
    assert gaps == pytest.approx([0.5, 1, 2, 4, 4, 4], abs=0.03)
    silence.hear(now_s)
    assert not silence.lose_patience(now_s + 0.5, 0.5)
    assert silence.lose_patience(now_s + 0.51, 0.5)


def test_it_begins_with_the_first_look():
    silence = Silence()
    assert silence.due_s(2.0) == float("inf")
    assert not silence.lose_patience(100.0, 2.0)
    assert silence.due_s(2.0) == 102.0


def test_what_is_excused_counts_anew_and_for_as_long():
    silence = Silence()
    silence.hear(100.0)
    assert silence.lose_patience(102.1, 2.0)
    silence.excuse(110.0)
    assert silence.due_s(2.0) == 114.0


def test_a_long_silence_begins_once_and_ends_with_its_length():
    silence = Silence()
    assert silence.hear(100.0) is None
    assert silence.hear(101.0) is None
    assert silence.lose_patience(103.1, 2.0)
    assert silence.begins()
    assert silence.lose_patience(107.2, 2.0)
    assert not silence.begins()
    assert silence.hear(111.0) == 10.0
    assert silence.hear(112.0) is None
    assert silence.lose_patience(115.0, 2.0)
    assert silence.begins()


def test_who_was_never_heard_does_not_fall_silent():
    silence = Silence()
    silence.lose_patience(100.0, 2.0)
    assert silence.lose_patience(102.1, 2.0)
    assert not silence.begins()
    assert silence.hear(200.0) is None
