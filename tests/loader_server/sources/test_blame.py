"""What a raised exception says of the sample, and how it is put into words."""

from __future__ import annotations

import errno
import gzip

import pytest

from loader_server.sources.blame import error_text, is_the_samples


class _Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ValueError("no"), True),
        (SystemExit(1), True),
        (KeyboardInterrupt(), True),
        (OSError("cannot identify image file"), True),
        (gzip.BadGzipFile("Not a gzipped file"), True),
        (OSError(errno.EINVAL, "a seek to before the start"), True),
        (OSError(1094995529, "Invalid data found when processing input"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), False),
        (MemoryError(), False),
    ],
    ids=repr,
)
def test_only_a_failing_machine_excuses_the_sample(error: BaseException, verdict: bool) -> None:
    assert is_the_samples(error) is verdict


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (_Mute(), "_Mute: (its text raised SystemExit)"),
    ],
)
def test_it_is_told_in_words(error: BaseException, words: str) -> None:
    assert error_text(error) == words


def test_no_words_are_endless() -> None:
    assert len(error_text(ValueError("x" * 10**6))) == 1000
