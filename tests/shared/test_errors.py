"""Errors say expected, got, where and what to do, in bounded length, and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from shared import errors
from shared.errors import shortened

SAID = {"expected": "a duck", "got": "a goose", "where": "pond.toml", "remedy": "Look again."}
MORE = {"SampleError": {"reason": "short"}, "RefusedError": {"code": "world"}}


@pytest.mark.heritage("E17")
@pytest.mark.parametrize("name", [name for name in errors.__all__ if name not in ("require", "shortened")])
def test_every_error_says_all_four_and_can_be_sent(name):
    error = getattr(errors, name)(**SAID, **MORE.get(name, {}))
    assert isinstance(error, errors.StokerError)
    assert str(error) == "pond.toml: expected a duck, got a goose. Look again."
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert vars(twin) == vars(error)
    assert str(twin) == str(error)


def test_whose_fault_it_is():
    assert issubclass(errors.SampleError, errors.DataError)
    assert issubclass(errors.ReadError, errors.DataError)
    for peer in (errors.ProtocolError, errors.RefusedError, errors.LostError):
        assert issubclass(peer, errors.PeerError)
    assert not issubclass(errors.ReadError, errors.SampleError)


def test_what_a_users_file_holds_is_cut_where_nobody_reads_on() -> None:
    said = str(errors.SettingsError(expected="x" * 9999, got="g" * 9999, where="w" * 9999, remedy="r" * 9999))
    assert len(said) < 2300
    assert "g … g" in said


def test_a_traceback_is_cut_later() -> None:
    lines = "line\n" * 500
    assert len(errors.DataError(expected="an element", got=lines, where="w", remedy="Mend it.").got) == len(lines)
    assert len(errors.DataError(expected="an element", got=lines * 9, where="w", remedy="Mend it.").got) == 4000


@pytest.mark.parametrize(
    ("text", "cut"), [("", ""), ("abcdefgh", "abcdefgh"), ("abcdefghi", "abcd … i"), ("a" * 99 + "z", "aaaa … z")]
)
def test_both_ends_stay(text: str, cut: str) -> None:
    assert shortened(text, 8) == cut


def test_it_is_never_longer() -> None:
    assert all(len(shortened("x" * length, most)) == min(length, most) for length in range(60) for most in range(8, 50))
