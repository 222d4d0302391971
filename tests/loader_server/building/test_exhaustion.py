from __future__ import annotations

import errno

import pytest

from loader_server.worker.exhaustion import is_exhaustion
from shared.errors import ReadError


def caused_by(cause):
    error = ReadError(expected="a", got="b", where="c", remedy="d")
    error.__cause__ = cause
    return error


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        caused_by(OSError(errno.EMFILE, "Too many open files", "a.wav")),
        caused_by(caused_by(MemoryError())),
    ],
)
def test_what_a_fresh_process_would_have_again(error):
    assert is_exhaustion(error)


@pytest.mark.parametrize(
    "error",
    [None, OSError(errno.EIO, "I/O error"), OSError("no number"), ValueError("x"), caused_by(OSError(errno.EIO, "x"))],
)
def test_what_is_the_datas_or_the_disks_fault(error):
    assert not is_exhaustion(error)
