"""What the system refuses, as errors that say what to do; and limits that are too low."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.errors import MachineError
from shared.system import system_errors
from shared.system.system_errors import system_error
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from collections.abc import Callable


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


FREE = resource.RLIM_INFINITY


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def allow(files: int = FREE, memory: int = FREE, *, hard_files: int = FREE) -> None:
        found = {resource.RLIMIT_NOFILE: (files, hard_files), resource.RLIMIT_AS: (memory, FREE)}
        monkeypatch.setattr(resource, "getrlimit", found.__getitem__)

    return allow


def test_a_server_needs_some_files_and_memory(allow: Callable[..., None]) -> None:
    for files, memory in ((FREE, FREE), (256, 2**30)):
        allow(16, memory, hard_files=files)  # it raises the other one
        system_errors.refuse_small_limits()
    allow(255, hard_files=255)
    with pytest.raises(MachineError, match=r"at least 256 open files \(ulimit -n\), got a limit of 255\. Raise "):
        system_errors.refuse_small_limits()
    allow(memory=2**30 - 1)
    with pytest.raises(MachineError, match=r"at least 1024 MiB of address space \(ulimit -v\), got a limit of 1023"):
        system_errors.refuse_small_limits()


def test_a_client_needs_some_more_than_its_process_has_taken(
    allow: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_errors, "_files_in_use", lambda: 100)
    monkeypatch.setattr(system_errors, "_memory_in_use", lambda: 2**30)
    allow(132, 2**30 + 2**27)
    system_errors.refuse_small_limits_of_client()
    allow(131)
    with pytest.raises(MachineError, match=r"at least 132 open files \(ulimit -n\), got a limit of 131"):
        system_errors.refuse_small_limits_of_client()
    allow(memory=2**30 + 2**27 - 1)
    with pytest.raises(MachineError, match=r"at least 1152 MiB of address space \(ulimit -v\), got a limit of 1151"):
        system_errors.refuse_small_limits_of_client()


def test_what_is_in_use_is_counted() -> None:
    before = system_errors._files_in_use()
    with Path("/dev/null").open():
        assert system_errors._files_in_use() == before + 1
    assert system_errors._memory_in_use() > 2**20


@pytest.mark.parametrize(
    ("command", "limit"),
    [("run", "-n 40"), ("run", "-n 56"), ("run", "-v 100000"), ("coordinator", "-v 300000"), ("worker", "-n 48")],
)
def test_servers_refuse_them_in_a_sentence(command: str, limit: str, tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=1)
    line = f"ulimit {limit} && exec {sys.executable} -m loader_server {command} {job} --log-level error"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended
    assert ended.stderr.startswith("loader-server: this process: expected at least "), ended
    assert ended.stderr.count("\n") == 1
    assert "served" not in ended.stdout
