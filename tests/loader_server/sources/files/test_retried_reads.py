"""Reads that fail for a moment are tried again, from the sample that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files import retried_reads
from loader_server.sources.files.retried_reads import read_patiently
from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retried_reads, "_READ_PAUSES_S", (0.0, 0.0))


def test_a_disk_that_hiccups_is_tried_again() -> None:
    outcomes = [OSError(5, "Input/output error"), OSError(5, "Input/output error"), b"bytes"]

    def read(samples: Sequence[int]) -> Iterator[bytes]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        yield outcome

    assert read_patiently(read, [3], bool) == [b"bytes"]


@pytest.mark.parametrize(
    ("error", "tries", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.wav"), 3, "a.wav: expected to read the sample, got File"),
        (OSError(5, "Input/output error"), 3, "sample 7: expected to read the sample, got OSError"),
        (ReadError(expected="the file", got="another", where="a.wav", remedy="Index."), 1, "a.wav: expected the file"),
    ],
)
def test_a_disk_that_fails_is_an_error_and_another_file_is_one_at_once(error: OSError, tries: int, said: str) -> None:
    tried = []

    def read(samples: Sequence[int]) -> list[bytes]:
        tried.extend(samples)
        raise error

    with pytest.raises(ReadError, match=said):
        read_patiently(read, [7], bool)
    assert tried == [7] * tries


def test_what_was_read_before_the_disk_failed_is_not_read_again_and_each_sample_has_all_tries() -> None:
    asked, begun = list[list[int]](), list[int]()

    def read(samples: Sequence[int]) -> Iterator[bytes]:
        asked.append(list(samples))
        for sample in samples:
            if sample in (4, 5) and len(asked) < 2 * sample - 5:
                raise OSError(5, "Input/output error")
            yield bytes([sample])

    assert read_patiently(read, [3, 4, 5, 6], begun.append) == [b"\3", b"\4", b"\5", b"\6"]
    assert asked == [[3, 4, 5, 6], [4, 5, 6], [4, 5, 6], [5, 6], [5, 6]]
    assert begun == [3, 4, 4, 4, 5, 5, 5, 6]


def test_bytes_are_begun_one_by_one_also_where_they_come_at_once() -> None:
    begun: list[int] = []
    assert read_patiently(lambda samples: [b"x"] * len(samples), [1, 2], begun.append) == [b"x", b"x"]
    assert begun == [1, 2]
    assert read_patiently(lambda samples: [], [], begun.append) == []
