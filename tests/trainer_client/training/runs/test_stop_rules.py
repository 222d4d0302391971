"""When training stops early, rule by rule."""

from __future__ import annotations

import math

import pytest

from shared.errors import SettingsError
from trainer_client.training.runs.stop_rules import LevelledOff, NoProgress, Worsening, stopping_rule

NAN = math.nan


def stops_at(rule, losses):
    """The evaluation, counted from 1, after which this rule would stop; None if it never would."""
    said = (end for end in range(1, len(losses) + 1) if stopping_rule([rule], losses[:end]))
    return next(said, None)


@pytest.mark.parametrize(
    ("rule", "losses", "at"),
    [
        (NoProgress(2), [5, 4, 3, 3, 3], 5),
        (NoProgress(2), [5, 4, 3, 4, 2, 3, 1, 2], None),
        (NoProgress(1), [5, 5], 2),
        (NoProgress(1), [5], None),
        (NoProgress(2, 0.5), [5, 4.6, 4.4, 4.3, 4.0, 3.9], 5),
        (NoProgress(2, 0.5), [5, 4.6, 4.5, 4.4], 3),
        (NoProgress(2), [NAN, NAN, NAN], 2),
        (NoProgress(2), [NAN, 3, NAN, 4, 2], 4),
        (NoProgress(2, 0.5), [NAN, 3, 2.4, 2.0, 1.8], None),
        (NoProgress(2), [-1, -2, -2, -1], 4),
        (Worsening(), [5, 4, 3, 5.1], 4),
        (Worsening(), [5, 4, 3, 5], None),
        (Worsening(), [9, 1, 2, 3], None),
        (Worsening(), [9, 1, 2, 3, 4], 5),
        (Worsening(2), [1, 2], 2),
        (Worsening(2), [1], None),
        (Worsening(), [1, 2, 3], None),
        (Worsening(), [3, 2, 1, NAN], 4),
        (Worsening(), [3, 2, NAN, NAN], None),
        (LevelledOff(), [3.0, 3.0, 3.0, 3.4], 4),
        (LevelledOff(), [3.0, 3.0, 3.0, 3.5], None),
        (LevelledOff(), [3.0, 3.0, 3.0, 2.5], None),
        (LevelledOff(), [3.0, 3.0, 3.0], None),
        (LevelledOff(), [9.0, 3.0, 3.0, 3.0, 3.0], 5),
        (LevelledOff(), [2.0, 3.0, 4.0, 3.0], None),  # they deviate by 0.82
        (LevelledOff(3, 1.0, 1.0), [2.0, 4.0, 3.0], None),  # by 1
        (LevelledOff(3, 1.0, 1.01), [2.0, 4.0, 3.0], 3),
        (LevelledOff(), [3.0, 3.0, NAN, 3.0], None),
        (LevelledOff(), [3.0, 3.0, 3.0, NAN], None),
    ],
)
def test_when_a_rule_stops(rule, losses, at):
    assert stops_at(rule, losses) == at


def test_the_first_rule_that_holds_is_named():
    rules = [Worsening(3), NoProgress(2), LevelledOff(3)]
    assert stopping_rule(rules, [3, 4, 5]) == Worsening(3)
    assert stopping_rule(rules, [4, 5, 5]) == NoProgress(2)
    assert stopping_rule(rules, [5, 5.25, 5]) == NoProgress(2)
    assert stopping_rule(rules, [5, 4.75, 4.5]) == LevelledOff(3)
    assert stopping_rule(rules, [9, 4, 3]) is None
    assert stopping_rule(rules, []) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: NoProgress(0),
            "NoProgress: expected evaluations of at least 1, got 0. Leave it out for",
        ),
        (lambda: NoProgress(1, -0.1), "NoProgress: expected min_change of at least 0, got -0.1."),
        (lambda: Worsening(1), "Worsening: expected last of at least 2, got 1."),
        (lambda: LevelledOff(1), "LevelledOff: expected last of at least 2, got 1."),
        (lambda: LevelledOff(4, -1), "LevelledOff: expected mean of at least 0, got -1."),
        (lambda: LevelledOff(4, 1, NAN), "LevelledOff: expected deviation of at least 0, got nan."),
    ],
)
def test_a_rule_that_could_never_be_meant_is_refused(make, words):
    with pytest.raises(SettingsError) as caught:
        make()
    assert words in str(caught.value)
