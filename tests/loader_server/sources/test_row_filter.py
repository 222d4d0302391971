"""Filters: what they let through, and what they refuse to be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.row_filter import RowFilter
from shared.errors import SettingsError

VALUES = {
    "audio": np.array([0, 40, 100, 250]),
    "text": np.array([3, 4, 0, 100]),
    "speaker": np.array(["ann", "bob", "ann", "eve"], object),
    "snr": np.array(["3", "12.5", "loud", ""], object),
}


def passed(said):
    return RowFilter.read(said, "job").passes(VALUES, 4).tolist()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("audio > 40", [0, 0, 1, 1]),
        ("audio >= 40", [0, 1, 1, 1]),
        ("audio < 100 and text <= 3", [1, 0, 0, 0]),
        ("not audio or audio == 250", None),
        ("not (audio == 0) and text != 4", [0, 0, 1, 1]),
        ("40 <= audio < 250", [0, 1, 1, 0]),
        ("text / audio < 0.3", [0, 1, 1, 0]),  # 3 / 0 is more than anything
        ("audio - 2 * text + 1 > 30", [0, 1, 1, 1]),
        ("-audio > -50 or text == 100", [1, 1, 0, 1]),
        ('speaker == "ann"', [1, 0, 1, 0]),
        ('"bob" != speaker', [1, 0, 1, 1]),
        ('speaker in ["ann", "eve"] and text > 0', [1, 0, 0, 1]),
        ('speaker not in ("ann", "eve")', [0, 1, 0, 0]),
        ("audio in [40, 250]", [0, 1, 0, 1]),
        ("number(snr) > 5", [0, 1, 0, 0]),
        ("number(snr) < 5", [1, 0, 0, 0]),
        ("true", [1, 1, 1, 1]),
        ("false or text == 0", [0, 0, 1, 0]),
        (" audio > 40\n", [0, 0, 1, 1]),
    ],
)
def test_what_passes(said, wanted):
    if wanted is None:
        with pytest.raises(SettingsError, match="got and, or, not of what is neither true nor false in 'not audio or"):
            passed(said)
    else:
        assert passed(said) == [bool(one) for one in wanted]


@given(
    low=st.integers(-5, 300), high=st.integers(-5, 300), values=st.lists(st.integers(0, 300), min_size=1, max_size=9)
)
def test_it_is_what_python_makes_of_each_sample(low, high, values):
    rule = RowFilter.read(f"audio >= {low} and not audio > {high} or audio * 2 == {low}", "job")
    wanted = [(low <= value <= high) or value * 2 == low for value in values]
    assert rule.passes({"audio": np.array(values)}, len(values)).tolist() == wanted


def test_the_names_that_it_asks_for():
    assert RowFilter.read('number(snr) > audio and "x" != speaker or true', "job").names == ("audio", "snr", "speaker")


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ("audio >", "SyntaxError: invalid syntax"),
        ("audio = 3", "SyntaxError"),
        ("__import__('os').system('true')", "Attribute, which is not for filters,|a call of __import__"),
        ("audio.shape", "Attribute, which is not for filters,"),
        ("open('job.toml')", "a call of open"),
        ("number(audio + 1)", "a call of number"),
        ("[x for x in audio]", "ListComp, which is not for filters,"),
        ("lambda: 1", "Lambda, which is not for filters,"),
        ("audio ** 9", "Pow, which is not for filters,"),
        ("audio[0]", "Subscript, which"),
        ("(audio := 3)", "NamedExpr, which"),
        ("audio > 3j", "3j"),
        ("audio in [text]", "a list of nothing, or of other things"),
        ("audio in []", "a list of nothing, or of other things"),
        ("'" + "x" * 10_001 + "'", "10003 characters"),
        ("(" * 5000 + "1" + ")" * 4000, r"SyntaxError|MemoryError|RecursionError"),
    ],
)
def test_what_is_refused_when_it_is_read(said, got):
    with pytest.raises(
        SettingsError, match=rf"job, filter: expected a condition on .*, got ({got}).* Write for instance"
    ):
        RowFilter.read(said, "job")


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ("audio", "a value that is neither true nor false"),
        ("audio + 1", "a value that is neither true nor false"),
        ('speaker + "x" == "annx"', "a calculation with strings"),
        ("-speaker == 3", "a calculation with strings"),
        ("speaker > 3", "speaker > 3, which compares strings with numbers,"),
        ('audio == "3"', "audio == '3', which compares strings with numbers,"),
        ('audio in [1, "3"]', "which compares strings with numbers,"),
        ("audio in 3", "a list without in, or in without a list,"),
        ("audio == [3]", "a list without in, or in without a list,"),
        ("(audio > 3) - (text > 3) > 0", "what cannot be calculated (numpy boolean subtract"),
        ("audio + 99999999999999999999 > 0 and audio * 9999999999999999999999 > 3", "what cannot be calculated ("),
        ("audio > 1" + " + 1" * 2400, "RecursionError|what cannot be calculated ("),
    ],
)
def test_what_is_refused_for_these_columns(said, got):
    with pytest.raises(SettingsError) as caught:
        passed(said)
    assert any(words in caught.value.got for words in got.split("|"))


def test_a_column_that_is_not_there_is_named_with_the_nearest():
    rule = RowFilter.read('speakr == "ann"', "job")
    with pytest.raises(
        SettingsError,
        match=r'job, filter: expected a length or column of train.csv, perhaps "speaker", got "speakr". '
        r"It has audio, snr, speaker, text\.",
    ):
        rule.refuse_unknown(VALUES, "train.csv")
