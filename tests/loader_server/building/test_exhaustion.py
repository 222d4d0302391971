from __future__ import annotations

import errno

import pytest

from loader_server.building.exhaustion import ExhaustedError, exhausted
from loader_server.sources.blame import find_exhaustion
from shared.errors import MachineError, ReadError


def caused_by(cause):
    error = ReadError(expected="a", got="b", where="c", remedy="d")
    error.__cause__ = cause
    return error


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    "ran_out",
    [
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda error: error, caused_by, lambda error: caused_by(caused_by(error))])
def test_what_ran_out_is_found_however_it_is_wrapped(ran_out, wrap):
    assert find_exhaustion(wrap(ran_out)) is ran_out


@pytest.mark.parametrize(
    "error",
    [None, OSError(errno.EIO, "I/O error"), OSError("no number"), ValueError("x"), caused_by(OSError(errno.EIO, "x"))],
)
def test_what_is_the_datas_or_the_disks_fault(error):
    assert find_exhaustion(error) is None
    assert exhausted(error, "a sample", "here") is None


def test_the_error_names_what_was_in_hand_and_what_ran_out():
    named = exhausted(caused_by(OSError(errno.EMFILE, "Too many open files", "a.wav")), "batch 3", "stream train")
    assert isinstance(named, ExhaustedError)
    assert str(named).startswith(
        "stream train: expected enough memory and descriptors to build a batch, got batch 3 in"
    )
    assert "batch 3 in hand: OSError: [Errno 24] Too many open files: 'a.wav'. Look at that sample" in str(named)


def test_what_names_something_already_goes_on_naming_it():
    named = exhausted(MemoryError(), "clips/7.wav", "here")
    assert exhausted(named, "batch 3", "there") is named
    failed = MachineError(expected="a child", got="none for clips/7.wav", where="here", remedy="Look.")
    failed.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert str(exhausted(failed, "batch 3", "there")) == str(failed)
