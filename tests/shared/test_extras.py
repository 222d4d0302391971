"""A library that is not there is named with what it is for, and how to get it."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.extras import MissingLibraryError, library, pip_install


def test_a_library_that_is_there_is_given() -> None:
    assert library("json", extra="any", use="for nothing") is json


def test_a_missing_one_says_what_it_is_for_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_format.reader", None)
    with pytest.raises(MissingLibraryError) as raised:
        library("some_format.reader", extra="formats", use="which reads it", where="the stream")
    said, _, remedy = str(raised.value).partition(", got import of some_format.reader halted; None in sys.modules. ")
    assert said == "the stream: expected some-format, which reads it"
    assert remedy == f"Run `{pip_install('formats')}`."
    with pytest.raises(SettingsError, match=r"^this Python: .*Run `pip install .*\[formats\]'`, or wait\.$"):
        library("some_format.reader", extra="formats", use="which reads it", otherwise="or wait")


class Installed:
    """A distribution, with what pip has noted of where it came from."""

    def __init__(self, origin: dict[str, object] | None) -> None:
        self._noted = None if origin is None else json.dumps(origin)

    def read_text(self, name: str) -> str | None:
        return self._noted if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'stoker[hdf5]'"),
        ({"url": "file:///my%20work", "dir_info": {"editable": True}}, "pip install -e '/my work[hdf5]'"),
        ({"url": "file:///work", "dir_info": {}}, "pip install '/work[hdf5]'"),
        (
            {"url": "https://git.host/stoker.git", "vcs_info": {"vcs": "git"}},
            "pip install 'stoker[hdf5] @ git+https://git.host/stoker.git'",
        ),
        (
            {"url": "file:///tmp/stoker-1.whl", "archive_info": {}},
            "pip install 'stoker[hdf5] @ file:///tmp/stoker-1.whl'",
        ),
    ],
)
def test_the_command_that_is_advised_is_one_for_this_installation(monkeypatch, origin, command) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed(origin))
    assert pip_install("hdf5") == command


def test_of_a_checkout_on_the_path_it_names_the_checkout(monkeypatch) -> None:
    def nowhere(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nowhere)
    assert pip_install("hdf5") == f"pip install -e '{Path(__file__).parents[2]}[hdf5]'"
