"""Retries of stores: which are tried again, after how long, and what people read."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.remote.retries import PAUSES_S, Retries
from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from collections.abc import Callable


class Answered(Exception):
    """As aiohttp has it."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message


class FileExpired(OSError):
    """As s3fs has it."""


class NoCredentialsError(Exception):
    """As botocore has it."""


def after(*errors: Exception) -> tuple[Callable[[], str], list[Exception]]:
    """What fails so, one by one, and then works."""
    left = list(errors)

    def ask() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return ask, left


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), OSError(errno.EIO, "503"), ConnectionResetError(), EOFError("short"), Answered(503, "Slow Down"),
     Answered(429, "Too many"), OSError(errno.EBUSY, "Slow Down")],
    ids=repr,
)  # fmt: skip
def test_what_may_pass_is_tried_again_with_growing_pauses_and_said_in_the_end(error: Exception) -> None:
    paused: list[float] = []
    retries = Retries(paused.append, lambda: 0.5)
    assert retries.attempt("s3://b/k", after(*[error] * 4)[0]) == "done"
    assert paused == list(PAUSES_S)
    with pytest.raises(
        ReadError, match=r"^s3://b/k: expected to read the file, got .*, at each of 5 attempts\. Check the"
    ):
        retries.attempt("s3://b/k", after(*[error] * 5)[0])


def test_there_are_five_attempts_within_nine_seconds_or_so() -> None:
    assert list(PAUSES_S) == pytest.approx([0.1 * 4**n for n in range(4)])


def test_pauses_differ_by_chance() -> None:
    for drawn, factor in ((0.0, 0.5), (1.0, 1.5)):
        paused: list[float] = []
        Retries(paused.append, lambda drawn=drawn: drawn).attempt("x", after(TimeoutError())[0])
        assert paused == [PAUSES_S[0] * factor]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError("k"), "a file that can be read, got none of this name, or no such bucket"),
        (Answered(404, "Not Found"), "got none of this name"),
        (
            PermissionError("Forbidden"),
            r"expected a file that may be read, got a refusal \(Forbidden\)\. Give the load",
        ),
        (Answered(401, "Unauthorized"), r"got a refusal \(401 Unauthorized\)"),
        (NoCredentialsError("Unable to locate credentials"), r"got a refusal \(Unable to locate credentials\)"),
        (FileExpired("k"), "the file that was indexed, got another one: the file has changed since"),
        (Answered(412, "Precondition Failed"), "the file has changed since"),
        (Answered(400, "Bad Request"), r"got 400 Bad Request\. Check"),
        (OSError(errno.EINVAL, "Bad Request"), r"got .*Bad Request\. Check"),
        (ValueError("no such range"), r"got no such range\. Check"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_will_not_pass_is_said_at_once(error: Exception, said: str) -> None:
    ask, left = after(error, error)
    with pytest.raises(ReadError, match=f"^s3://b/k: .*{said}"):
        Retries(lambda _: pytest.fail("it will not pass")).attempt("s3://b/k", ask)
    assert len(left) == 1


def test_without_patience_there_is_one_attempt() -> None:
    with pytest.raises(ReadError, match=r"got short\. Check"):
        Retries(lambda _: pytest.fail("one attempt")).attempt("x", after(EOFError("short"))[0], patient=False)


def test_our_own_errors_pass_through() -> None:
    own = DataError(expected="a", got="b", where="c", remedy="d")
    with pytest.raises(DataError, match="c: expected a"):
        Retries(lambda _: pytest.fail("ours")).attempt("x", after(own)[0])


def test_no_credential_is_repeated() -> None:
    error = PermissionError("AKIAABCDEFGHIJKLMNOP may not read\nhttps://h/p?X-Amz-Signature=abc")
    with pytest.raises(ReadError) as caught:
        Retries().attempt("https://u:pw@h/p?token=abc", after(error)[0])
    assert str(caught.value).startswith(
        "https://…@h/p?…: expected a file that may be read, got a refusal (… may not read "
    )
    assert not any(secret in str(caught.value) for secret in ("AKIA", "abc", "pw"))


def test_what_fsspec_hides_over_http_is_looked_at() -> None:
    def ask() -> None:
        try:
            raise Answered(403, "Forbidden")
        except Answered as error:
            raise FileNotFoundError("k") from error

    with pytest.raises(ReadError, match="a refusal"):
        Retries().attempt("http://h/k", ask)
    with pytest.raises(ReadError, match="none of this name"):
        Retries().attempt("s3://b/k", ask)
