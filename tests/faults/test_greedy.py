"""A client that asks for far too much and reads nothing: it alone is held up, and the worker's memory stays bounded."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

import trainer_client
from shared.memory import SlotMemory
from shared.wire.codec import encode
from tests.support.askers import Asker, digest_of, write_synthetic
from tests.support.behind import SLACK_S
from tests.support.loaders import Loaders, ask, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil

#: Batches have 2 MB, and 16 of them fit.
_JOB = {"length": 100, "budget": 6500, "job": 'queue_bytes = "32 MiB"'}
_QUEUE_BYTES = 32 * 2**20
#: Wants, and about as many bytes as libzmq takes for each that is not read yet.
_FLOOD, _UNREAD_BYTES = 200_000, 400


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    with running(write_synthetic(tmp_path, samples=4000, **_JOB), workers=1) as loaders:
        yield loaders


@contextlib.contextmanager
def _peak(process: psutil.Process) -> Iterator[list[int]]:
    """The most memory of its own that a process takes up during a block, in bytes."""

    def own() -> int:
        taken = process.memory_info()
        return taken.rss - taken.shared

    most, done = [own()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def _read_epoch(loaders: Loaders) -> float:
    began_s = time.monotonic()
    with trainer_client.connect(loaders.endpoint, shared_memory=False) as feed:
        assert sum(1 for _ in feed) > 20
    return time.monotonic() - began_s


def _flood(hog: Asker) -> Iterator[bytes]:
    """Wants for one slot, each with a generation above the last one's; to encode each would take seconds."""
    first = 2**16  # from here on all generations take as many bytes
    before, after = encode(hog.want(45, first)).split(msgpack.packb(first))
    for generation in range(first, first + _FLOOD):
        yield before + msgpack.packb(generation) + after


@pytest.mark.fault(42)
@pytest.mark.fault(18)
@pytest.mark.parametrize(("by", "at_once"), [("TCP", 1000), ("shared memory", 1)])
def test_who_reads_nothing_is_held_up_alone(tmp_path: Path, loaders: Loaders, by: str, at_once: int) -> None:
    """First 40 wants for 40 slots, then 200 000 for one, in as many messages or in fewer."""
    usual_s = 2 * max(_read_epoch(loaders) for _ in range(2)) + SLACK_S
    endpoint = ask(loaders.endpoint)["workers"][0]["endpoint"]
    plan = digest_of(tmp_path / "job.toml")
    worker = loaders.workers()[0]
    memory = SlotMemory(50, 6500 * 330) if by == "shared memory" else None
    with (
        zmq.Context() as context,
        _peak(worker) as peak,
        contextlib.closing(Asker(context, endpoint, plan, deaf=True, memory=memory)) as hog,
    ):
        before = peak[0]
        hog.hello()  # and never reads again
        hog.say(*(hog.want(slot, number=slot % 20) for slot in range(40)))
        assert _read_epoch(loaders) < usual_s
        assert peak[0] - before < 2 * _QUEUE_BYTES
        flood = _flood(hog)
        while frames := list(itertools.islice(flood, at_once)):
            hog.dealer.send_multipart(frames)
        assert _read_epoch(loaders) < usual_s
    # What libzmq has taken in and nobody has looked at yet is the whole flood if the worker has no processor meanwhile.
    assert peak[0] - before < 2 * _QUEUE_BYTES + _FLOOD * _UNREAD_BYTES
    assert "died" not in loaders.text()
    if memory is not None:
        memory.close()
