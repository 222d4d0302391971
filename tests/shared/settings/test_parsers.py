"""Declarations and parsers of settings: what they take, and the wording of what they refuse."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from shared.settings import parsers
from shared.settings.tables import read_table


def test_the_nearest_is_named_if_any_is_near():
    assert parsers.nearest("shufled", ("shuffle", "shuffled")) == ', perhaps "shuffled"'
    assert parsers.nearest("random", ("shuffle", "shuffled")) == ""


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (parsers.duration_s, "25 ms", 0.025),
        (parsers.duration_s, " 1.5h ", 5400.0),
        (parsers.byte_count, "2 GiB", 2**31),
        (parsers.byte_count, "3 kB", 3000),
        (parsers.amount("s", "frames"), "300 s", parsers.Amount(300.0, "s")),
        (parsers.texts, "a", ("a",)),
        (parsers.texts, ["a", "b"], ("a", "b")),
        (parsers.flag, False, False),
        (parsers.whole(1), 2**40, 2**40),
        (parsers.number(0.5), 1, 1.0),
        (parsers.choice("a", "b"), "b", "b"),
        (parsers.label, "digits-2.1_x", "digits-2.1_x"),
        (parsers.file, "a.txt", parsers.FileName("a.txt")),
        (parsers.by_key(parsers.text), {"b": "2", "a": "1"}, (("a", "1"), ("b", "2"))),
        (parsers.wholes(2, 1, 9), [1, 9], (1, 9)),
    ],
)
def test_parsers_take(parse, value, expected):
    assert parse(value) == expected


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (parsers.texts, ["a", ""], "a list of strings"),
        (parsers.texts, "", "a string"),
        (parsers.flag, 1, "true or false"),
        (parsers.number(0.0, 1.0), float("nan"), "a number from 0.0 to 1.0"),
        (parsers.number(0.0, 1.0), True, "a number from 0.0 to 1.0"),
        (parsers.choice("sorted", "shuffled"), "sorteed", 'one of "sorted", "shuffled", perhaps "sorted"'),
        (parsers.choice("a"), ["a"], 'one of "a"'),
        (parsers.amount("s", "tokens"), "5 token", 'an amount with its unit, "<number> s" or "<number> tokens", per'),
        (parsers.amount("s"), 300, 'an amount with its unit, "<number> s"'),
        (parsers.amount("s"), "1e3 s", 'an amount with its unit, "<number> s"'),
        (parsers.label, ".hidden", "up to 100 letters"),
        (parsers.by_key(parsers.text), {}, "a table such as { text = … }"),
        (parsers.by_key(parsers.text), "a", "a table such as { text = … }"),
        (parsers.by_key(parsers.text), {"a": 3}, "a table such as { text = … } whose values are each a string"),
        (parsers.label, "a" * 101, "up to 100 letters"),
        (parsers.wholes(2, 1, 9), [1], "a list of 2 whole numbers from 1 to 9"),
        (parsers.wholes(2, 1, 9), [1, 2, 3], "a list of 2 whole numbers from 1 to 9"),
        (parsers.wholes(2, 1, 9), [0, 9], "a list of 2 whole numbers from 1 to 9"),
        (parsers.wholes(2, 1, 9), [1, 10], "a list of 2 whole numbers from 1 to 9"),
        (parsers.wholes(2, 1, 9), [1, True], "a list of 2 whole numbers from 1 to 9"),
        (parsers.wholes(2, 1, 9), 5, "a list of 2 whole numbers from 1 to 9"),
    ],
)  # fmt: skip
def test_parsers_refuse(parse, value, expected):
    @dataclasses.dataclass(frozen=True)
    class Settings:
        it: object = parsers.setting(parse, "it is meant so")

    with pytest.raises(SettingsError) as caught:
        read_table(Settings, {"it": value}, "job.toml")
    assert caught.value.expected.startswith(expected)
    assert caught.value.got == repr(value)
    assert caught.value.where == "job.toml, it"
    assert caught.value.remedy == "It means: it is meant so."


@given(st.floats(0, 1e12).map(lambda value: round(value, 3)), st.sampled_from(["s", "frames"]))
def test_amounts_come_back(value, unit):
    parsed = parsers.amount("s", "frames")(f"{value:.3f} {unit}")
    assert parsed == parsers.Amount(value, unit)


def test_an_amount_reads_as_it_was_written():
    assert str(parsers.amount("s")("300 s")) == "300 s"


def test_what_came_later_counts_only_where_it_is_said():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        path: str = parsers.setting(parsers.text, "where")
        rate: int = parsers.setting(parsers.whole(0), "how fast", default=3)
        channel: int = parsers.setting(parsers.whole(-1), "which", default=-1, later=True)

    assert parsers.settings_that_count(Settings("a")) == {"path": "a", "rate": 3}
    assert parsers.settings_that_count(Settings("a", channel=0)) == {"path": "a", "rate": 3, "channel": 0}


@pytest.mark.parametrize("said", ["9" * 16 + " s", "1." + "9" * 16 + " s", "9" * 5000 + " s"])
def test_an_amount_of_very_many_digits_is_refused(said):
    with pytest.raises(parsers.BadValue, match="of at most 15 digits"):
        parsers.amount("s")(said)
    assert parsers.amount("s")("999999999999999.999999999999999 s").value == 1e15


@pytest.mark.parametrize("said", ["9" * 16 + " %", "9" * 5000 + " samples"])
def test_a_limit_of_very_many_digits_is_refused(said):
    with pytest.raises(parsers.BadValue):
        parsers.bad_limit(said)


def nested(deep):
    made = 1
    for _ in range(deep):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"a": {"b": [1, 2**63]}}, "an integer of at most 64 bits for a.b"),
        ({"a": -(2**63) - 1}, "an integer of at most 64 bits for a"),
        ({"a": {"b": ["x", "a\0b"]}}, "no character NUL in a.b"),
        ({"a\0": 1}, r"no character NUL in a\\0"),
        ({"a": nested(15)}, "at most 16 brackets within each other"),
    ],
)
def test_what_no_setting_takes_is_refused_wherever_it_is(document, expected):
    with pytest.raises(parsers.BadValue, match=expected):
        parsers.refuse_beyond_bounds(document)


def test_what_settings_take_passes():
    parsers.refuse_beyond_bounds({"a": {"b": [2**63 - 1, -(2**63), 1.5, "x", True]}, "c": nested(14)})
