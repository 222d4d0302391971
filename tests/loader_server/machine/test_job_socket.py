"""How a command reaches the machine that serves a job: over a real socket in a state folder."""

from __future__ import annotations

import os
import select
import socket
import tempfile
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.machine.job_socket import JobSocket, ask_machine
from shared.errors import LostError, SettingsError, StokerError
from tests.support.unheard import expect_unheard_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.machine.job_socket import Caller


def wait_for(one: JobSocket | Caller) -> None:
    assert select.select([one], [], [], 60)[0]


@contextmanager
def asked(job_socket: JobSocket, state: Path, answers: list[Any], **request: Any) -> Iterator[Caller]:
    """Somebody's caller, whose answer or error is there after the block."""

    def ask() -> None:
        try:
            answers.append(ask_machine(state, **request))
        except StokerError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(job_socket)
    (caller,) = job_socket.take_in()
    wait_for(caller)
    assert caller.read() == request
    yield caller
    thread.join(60)
    assert not thread.is_alive()


def test_a_question_is_answered_when_what_it_asks_for_is_done(tmp_path: Path) -> None:
    answers: list[Any] = []
    with closing(JobSocket(tmp_path)) as job_socket:
        with asked(job_socket, tmp_path, answers, do="add", job="b.toml") as caller:
            assert answers == []
            caller.answer(job="b")
        assert list(job_socket.take_in()) == []
    assert answers == [{"job": "b"}]


def test_a_refusal_comes_in_the_same_words(tmp_path: Path) -> None:
    answers: list[Any] = []
    error = SettingsError(expected="a name", got="none", where="here", remedy="Write one.")
    with closing(JobSocket(tmp_path)) as job_socket, asked(job_socket, tmp_path, answers, do="add") as caller:
        caller.refuse(error)
    assert str(answers[0]) == str(error)
    assert not isinstance(answers[0], LostError)


def test_the_end_of_the_machine_is_no_answer(tmp_path: Path) -> None:
    answers: list[Any] = []
    with closing(JobSocket(tmp_path)) as job_socket, asked(job_socket, tmp_path, answers, do="end") as caller:
        caller.close()
    assert isinstance(answers[0], LostError)
    with pytest.raises(LostError, match="that serves this job, and answers, got nobody"):
        ask_machine(tmp_path, do="end")
    with pytest.raises(LostError):
        ask_machine(tmp_path / "never", do="end")


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root is let in everywhere; everybody else to where the mode says so."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("closed", ["state/machine.sock", "."])
def test_another_user_is_told_who_may_ask(closed: str) -> None:
    with tempfile.TemporaryDirectory() as above:  # pytest's own folders are closed to others
        Path(above).chmod(0o755)
        state = Path(above) / "parent" / "state"
        state.mkdir(parents=True)
        with closing(JobSocket(state)):
            shut = state.parent / closed
            shut.chmod(0)
            try:
                with (
                    as_another_user(),
                    pytest.raises(SettingsError, match=r"Permission denied.* as the user who started it"),
                ):
                    ask_machine(state, do="jobs")
            finally:
                shut.chmod(0o700)


def test_a_machine_that_is_stopped_is_not_waited_for_longer_than_said(tmp_path: Path) -> None:
    with closing(JobSocket(tmp_path)), pytest.raises(LostError, match=r"answer within 0\.05 s, got no answer"):
        ask_machine(tmp_path, timeout_s=0.05, do="jobs")


def test_ctrl_c_just_before_it_waits_is_heeded(tmp_path: Path) -> None:
    with closing(JobSocket(tmp_path)):
        expect_unheard_ctrl_c(lambda: ask_machine(tmp_path, do="jobs"))


@pytest.mark.parametrize(
    ("said", "read"), [(b"", {}), (b"{", {}), (b"\xff", {}), (b"[1]", {}), (b"[" * 3000, {}), (b'{"do": 1}', {"do": 1})]
)
def test_who_says_something_else_asks_for_nothing(tmp_path: Path, said: bytes, read: dict[str, Any]) -> None:
    with closing(JobSocket(tmp_path)) as job_socket, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as command:
        command.connect(str(tmp_path / "machine.sock"))
        (caller,) = job_socket.take_in()
        assert caller.read() is None, "nothing was said yet, and nobody waits for it"
        command.send(said) if said else command.close()
        wait_for(caller)
        assert caller.read() == read
        caller.close()


def test_a_long_path_and_what_a_killed_process_left_are_no_matter(tmp_path: Path) -> None:
    state = tmp_path / ("s" * 120)
    state.mkdir()
    (state / "machine.sock").write_text("left behind")
    answers: list[Any] = []
    with closing(JobSocket(state)) as job_socket, asked(job_socket, state, answers, do="jobs") as caller:
        caller.answer(jobs=[])
    assert answers == [{"jobs": []}]
    assert list(state.iterdir()) == []
