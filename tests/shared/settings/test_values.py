"""Declarations and parsers of settings: what they take, and the wording of what they refuse."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from shared.settings import values
from shared.settings.tables import read_table


def test_the_nearest_is_named_if_any_is_near():
    assert values.nearest("shufled", ("shuffle", "shuffled")) == ', perhaps "shuffled"'
    assert values.nearest("random", ("shuffle", "shuffled")) == ""


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (values.duration_s, "25 ms", 0.025),
        (values.duration_s, " 1.5h ", 5400.0),
        (values.byte_count, "2 GiB", 2**31),
        (values.byte_count, "3 kB", 3000),
        (values.amount("s", "frames"), "300 s", values.Amount(300.0, "s")),
        (values.texts, "a", ("a",)),
        (values.texts, ["a", "b"], ("a", "b")),
        (values.flag, False, False),
        (values.whole(1), 2**40, 2**40),
        (values.number(0.5), 1, 1.0),
        (values.choice("a", "b"), "b", "b"),
        (values.label, "digits-2.1_x", "digits-2.1_x"),
        (values.file, "a.txt", values.FileName("a.txt")),
        (values.by_key(values.text), {"b": "2", "a": "1"}, (("a", "1"), ("b", "2"))),
    ],
)
def test_parsers_take(parse, value, expected):
    assert parse(value) == expected


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (values.texts, ["a", ""], "a list of strings"),
        (values.texts, "", "a string"),
        (values.flag, 1, "true or false"),
        (values.number(0.0, 1.0), float("nan"), "a number from 0.0 to 1.0"),
        (values.number(0.0, 1.0), True, "a number from 0.0 to 1.0"),
        (values.choice("sorted", "shuffled"), "sorteed", 'one of "sorted", "shuffled", perhaps "sorted"'),
        (values.choice("a"), ["a"], 'one of "a"'),
        (values.amount("s", "tokens"), "5 token", 'an amount with its unit, "<number> s" or "<number> tokens", per'),
        (values.amount("s"), 300, 'an amount with its unit, "<number> s"'),
        (values.amount("s"), "1e3 s", 'an amount with its unit, "<number> s"'),
        (values.label, ".hidden", "up to 100 letters"),
        (values.by_key(values.text), {}, "a table such as { text = … }"),
        (values.by_key(values.text), "a", "a table such as { text = … }"),
        (values.by_key(values.text), {"a": 3}, "a table such as { text = … } whose values are each a string"),
        (values.label, "a" * 101, "up to 100 letters"),
    ],
)  # fmt: skip
def test_parsers_refuse(parse, value, expected):
    @dataclasses.dataclass(frozen=True)
    class Settings:
        it: object = values.setting(parse, "it is meant so")

    with pytest.raises(SettingsError) as caught:
        read_table(Settings, {"it": value}, "job.toml")
    assert caught.value.expected.startswith(expected)
    assert caught.value.got == repr(value)
    assert caught.value.where == "job.toml, it"
    assert caught.value.remedy == "It means: it is meant so."


@given(st.floats(0, 1e12).map(lambda value: round(value, 3)), st.sampled_from(["s", "frames"]))
def test_amounts_come_back(value, unit):
    parsed = values.amount("s", "frames")(f"{value:.3f} {unit}")
    assert parsed == values.Amount(value, unit)


def test_an_amount_reads_as_it_was_written():
    assert str(values.amount("s")("300 s")) == "300 s"


def test_what_came_later_counts_only_where_it_is_said():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        path: str = values.setting(values.text, "where")
        rate: int = values.setting(values.whole(0), "how fast", default=3)
        channel: int = values.setting(values.whole(-1), "which", default=-1, later=True)

    assert values.settings_that_count(Settings("a")) == {"path": "a", "rate": 3}
    assert values.settings_that_count(Settings("a", channel=0)) == {"path": "a", "rate": 3, "channel": 0}


@pytest.mark.parametrize("said", ["9" * 16 + " s", "1." + "9" * 16 + " s", "9" * 5000 + " s"])
def test_an_amount_of_very_many_digits_is_refused(said):
    with pytest.raises(values.BadValue, match="of at most 15 digits"):
        values.amount("s")(said)
    assert values.amount("s")("999999999999999.999999999999999 s").value == 1e15


@pytest.mark.parametrize("said", ["9" * 16 + " %", "9" * 5000 + " samples"])
def test_a_limit_of_very_many_digits_is_refused(said):
    with pytest.raises(values.BadValue):
        values.bad_limit(said)


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
    with pytest.raises(values.BadValue, match=expected):
        values.refuse_beyond_bounds(document)


def test_what_settings_take_passes():
    values.refuse_beyond_bounds({"a": {"b": [2**63 - 1, -(2**63), 1.5, "x", True]}, "c": nested(14)})
