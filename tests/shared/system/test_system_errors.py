"""What the system refuses, in our words."""

from __future__ import annotations

import errno

import pytest

from shared.errors import MachineError
from shared.system.system_errors import system_error


@pytest.mark.parametrize(
    ("error", "where", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/a/b"),
            "",
            "/a/b: expected the system to do what it was asked for, got No space left on device. Make room on that",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "index /a", "index /a: expected the system"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "/a", None, "/b"), "", "/a and /b: expected"),
        (OSError("12 requested and 4 written"), "", "this machine: expected the system to do what it was asked for, "),
        (OSError(errno.EACCES, "Permission denied", "/a"), "", "got Permission denied. Give this user the right to it"),
        (OSError(errno.EMFILE, "Too many open files"), "", "Allow more open files: ulimit -n."),
        (MemoryError(), "", "this machine: expected the system to do what it was asked for, got no memory left. Give"),
        (OSError(errno.EIO, "Input/output error", "/a"), "", "--log-level debug says where in the code it was."),
    ],
)
def test_it_says_where_and_what_to_do(error: OSError, where: str, said: str) -> None:
    made = system_error(error, where)
    assert isinstance(made, MachineError)
    assert said in str(made)
