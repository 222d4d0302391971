"""Spells of waiting: one begins and one ends, whatever wavers in between."""

from __future__ import annotations

import random

from shared.events.spells import Spell, SpellBegan, SpellEnded


def told(shares: list[float], every_s: float = 1.0) -> list[tuple[float, SpellBegan | SpellEnded]]:
    """What is noted at which time, of shares that are looked at this often."""
    spell, found = Spell(), []
    for number, share in enumerate(shares, 1):
        event = spell.note(share, every_s, number * every_s)
        found += [(number * every_s, event)] if event is not None else []
    return found


def test_nothing_is_judged_before_five_seconds_were_seen() -> None:
    assert told([1.0] * 4) == []
    assert told([1.0] * 5) == [(5.0, SpellBegan(1.0))]
    assert told([1.0] * 30) == [(5.0, SpellBegan(1.0))]


def test_it_ends_once_it_has_fallen_well_below_where_it_began() -> None:
    ((at_s, began), (until_s, ended)) = told([0.0] * 10 + [0.6] * 20 + [0.2] * 60 + [0.0] * 30)
    assert (11 < at_s < 20, began.share >= 0.25) == (True, True)
    assert isinstance(ended, SpellEnded)
    assert until_s > 90
    assert (ended.seconds, ended.share <= 0.1) == (until_s - at_s, True)


def test_what_wavers_around_the_mark_is_one_spell() -> None:
    drawn = random.Random(5)
    found = told([drawn.choice((0.15, 0.35)) for _ in range(600)] + [0.0] * 60)
    assert [type(event) for _, event in found] == [SpellBegan, SpellEnded]


def test_no_time_is_no_share() -> None:
    spell = Spell()
    assert spell.note(1.0, 0.0, 5.0) is None
    assert spell.note(1.0, 60.0, 65.0) == SpellBegan(1.0)
    assert spell.note(0.0, 60.0, 125.0) == SpellEnded(60.0, 0.0)


def test_an_average_may_be_known_already() -> None:
    spell = Spell()
    assert [spell.judge(share, at_s) for at_s, share in enumerate((0.2, 0.25, 0.9, 0.11, 0.1, 0.2))] == [
        None, SpellBegan(0.25), None, None, SpellEnded(3, 0.1), None,
    ]  # fmt: skip
