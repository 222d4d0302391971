"""What a worker answers when it cannot build: whose fault it was, in one word, and the error in its own words."""

from __future__ import annotations

import pytest

from loader_server.building.trial_rule import ExhaustedError
from loader_server.worker.reception import unbuilt_after
from shared.errors import MachineError, ReadError
from shared.wire.codec import decode, encode
from tests.support.in_memory import memory_want

SAID = {"expected": "a", "got": "b", "where": "c", "remedy": "d"}


@pytest.mark.parametrize(
    ("error", "code"),
    [(ReadError(**SAID), "failed"), (MachineError(**SAID), "machine"), (ExhaustedError(**SAID), "exhausted")],
)
def test_an_error_of_ours_crosses_in_its_own_words(error: Exception, code: str) -> None:
    answer = unbuilt_after(memory_want(3), error)
    assert (answer.code, answer.expected, answer.got, answer.where, answer.remedy) == (code, "a", "b", "c", "d")
    assert answer.ticket == memory_want(3).ticket


def test_any_other_error_names_the_batch() -> None:
    answer = unbuilt_after(memory_want(3, epoch=2), SystemExit(5))
    assert (answer.code, answer.got, answer.where) == ("failed", "SystemExit: 5", "batch 3 of epoch 2")


def test_a_long_error_still_crosses() -> None:
    answer = unbuilt_after(memory_want(), MachineError(**{**SAID, "got": "x\n" * 10**6}))
    assert decode(encode(answer)).got.startswith("x\n" * 1000)
