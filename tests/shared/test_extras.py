"""A library that is not there is named with what it is for, and how to get it."""

from __future__ import annotations

import json
import sys

import pytest

from shared.errors import SettingsError
from shared.extras import library


def test_a_library_that_is_there_is_given() -> None:
    assert library("json", extra="any", use="for nothing") is json


def test_a_missing_one_says_what_it_is_for_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_format.reader", None)
    with pytest.raises(SettingsError) as raised:
        library("some_format.reader", extra="formats", use="which reads it", where="the stream")
    said, _, remedy = str(raised.value).partition(", got import of some_format.reader halted; None in sys.modules. ")
    assert said == "the stream: expected some-format, which reads it"
    assert remedy == "Run `pip install 'stoker[formats]'`."
    with pytest.raises(SettingsError, match=r"^this Python: .*Run `pip install 'stoker\[formats\]'`, or wait\.$"):
        library("some_format.reader", extra="formats", use="which reads it", otherwise="or wait")
