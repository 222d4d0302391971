"""A real trainer on slow reads: it asks for more ahead where that helps, and its memory follows what it uses."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.loaders import running
from tests.support.slowed.delays import FILE, write_delays
from tests.support.slowed.jobs import job_text
from tests.support.slowed.situations import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Batches of half a megabyte, of which a worker reads four at a time.
SETUP = Setup(right=(), step_s=0.0, prefetch=2, rows=64, workers=2)
READ_S = 0.1 / SETUP.rows


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job whose reads are slow."""
    delays, job = tmp_path / "delays.json", tmp_path / "job.toml"
    write_delays(delays, {})
    monkeypatch.setenv(FILE, str(delays))
    with contextlib.ExitStack() as stack:
        job.write_text(job_text(tmp_path, SETUP, delays, stack))
        loaders = stack.enter_context(running(job, workers=SETUP.workers))
        write_delays(delays, {"read_s": READ_S})
        yield loaders.endpoint


def slots_memory() -> int:
    """Return the bytes of all slots of this process that have memory."""
    total = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(path.readlink()).startswith("/memfd:stoker"):
                total += path.stat().st_blocks * 512
    return total


def resident() -> int:
    """Return the bytes of shared memory that this process has mapped and touched."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


@pytest.mark.slow
def test_slots_have_memory_only_while_they_are_used(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_client.core.asking.prefetch._CALM_S", 0.5)
    monkeypatch.setattr("trainer_client.core.attached_stream._DROP_S", 0.5)
    before = resident()
    with trainer_client.connect(endpoint, prefetch=SETUP.prefetch) as feed:
        slot_bytes = feed._session.receiver.memory.slot_bytes
        made = feed._session.receiver.memory.slots
        prefetch = feed._session.receiver.stream.prefetch
        batches = (batch for _ in range(100) for batch in feed)
        for _ in range(8):
            next(batches)["features"].sum()
        assert made >= 8 * SETUP.prefetch, "there are slots for what it may grow to"
        assert slots_memory() <= (SETUP.prefetch + 6) * slot_bytes
        at_start = resident() - before
        until_s = time.monotonic() + 60
        while prefetch.size < 4 * SETUP.prefetch and time.monotonic() < until_s:
            next(batches)["features"].sum()
        assert prefetch.size >= 4 * SETUP.prefetch, "it grows: eight readers are there, and two batches were asked for"
        for _ in range(4 * prefetch.size):
            next(batches)["features"].sum()
        grown, size = slots_memory(), prefetch.size
        assert grown <= (size + 7) * slot_bytes
        assert resident() - before > at_start
        # A consumer that is slower than the readers needs fewer.
        until_s = time.monotonic() + 60
        while (prefetch.size > size // 2 or slots_memory() >= grown) and time.monotonic() < until_s:
            time.sleep(0.2)
            next(batches)["features"].sum()
        assert prefetch.size <= size // 2
        assert slots_memory() < grown
