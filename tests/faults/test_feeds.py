"""A feed attacked from its own side: cursors moved at once, signals at any instruction, nothing but bad samples."""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.support.loaders import running, wait_until, write_job
from trainer_client.core.slot_states import SlotState

if TYPE_CHECKING:
    from pathlib import Path

#: Counting its batches takes a second, the first time.
_PACKED = """
[job]
name = "packed"
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "synthetic"
samples = 800000
length = "tokens"
budget = "8192 tokens"
packing = "1024 tokens"
"""


@pytest.mark.fault(37)
def test_a_cursor_that_is_restored_at_once_holds_though_the_first_answer_comes_late(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(_PACKED)
    index_streams(JobFile(job), ["train"], processes=1)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        state = feed.state() | {"epoch": 2, "number": 37}
        feed.restore(state)
        assert (feed.epoch, feed.number) == (2, 37)
        with feed.open() as reading:
            batch = next(reading)
        assert (batch.epoch, batch.number) == (2, 37)
        assert feed.state() == state


@pytest.mark.fault(45)
def test_a_job_whose_samples_all_fail_stops_with_the_first_reasons(tmp_path: Path) -> None:
    transforms = ("tests.support.transforms:always_raises", "logmel", "characters")
    with (
        running(write_job(tmp_path, samples=60, transforms=transforms)) as loaders,
        trainer_client.connect(loaders.endpoint) as feed,
    ):
        with pytest.raises(trainer_client.DataError, match="max_bad") as caught:
            for _ in feed:
                pass
        assert "nothing is good enough" in caught.value.got
        assert "quarantine.jsonl" in caught.value.remedy
        assert feed.number == 0


@pytest.mark.fault(45)
def test_max_bad_decides(tmp_path: Path) -> None:
    transforms = ("tests.support.transforms:raises", "logmel", "characters")
    for share, stops in (("0.01", True), ("0.9", False)):
        folder = tmp_path / share
        folder.mkdir()
        job = write_job(folder, samples=60, transforms=transforms, job=f"max_bad = {share}")
        with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
            if stops:
                with pytest.raises(trainer_client.DataError, match=r"at most 1 % of the rows.*transform"):
                    list(feed)
            else:
                assert sum(batch.masked for batch in feed) > 0


class Interrupted(Exception):
    """What a user's own handler raises."""


class _Alarm:
    """Raises, and knows that it did: what is raised in a finaliser goes no further."""

    rang = False

    def __call__(self, _number: int, _frame: object) -> None:
        self.rang = True
        raise Interrupted


@pytest.mark.fault(51)
def test_signals_at_any_instruction_lose_no_slot_and_give_none_out_twice(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # what is raised in finalisers is not kept by pytest
    alarm, turns = _Alarm(), 150
    with (
        running(write_job(tmp_path, samples=240), workers=1) as loaders,
        trainer_client.connect(loaders.endpoint) as feed,
    ):
        calm = [(batch.number, batch.digest) for batch in feed]
        feed._session.cursor.rewind()
        before = signal.signal(signal.SIGALRM, alarm)
        try:
            interrupted = sum(_is_interrupted(feed, alarm, 0.0005 + 0.00015 * turn, calm) for turn in range(turns))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert interrupted > turns / 2
        gc.collect()
        slots = feed._session.receiver.stream.slots
        wait_until(lambda: slots.count(SlotState.OUT) == 0, "no slot is with a consumer")
        assert feed._session.error is None
        assert [(batch.number, batch.digest) for batch in feed] == calm


def _is_interrupted(feed: trainer_client.Feed, alarm: _Alarm, after_s: float, calm: list[tuple[int, int]]) -> bool:
    """Read from the cursor, time and again, until the signal comes; whether what it raised came out."""
    alarm.rang = False
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        while not alarm.rang:
            with feed.open() as reading:
                for got, expected in zip(reading, calm, strict=True):
                    assert (got.number, got.digest) == expected
    except Interrupted:
        return True
    return False
