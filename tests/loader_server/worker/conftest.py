"""A worker in this process, trainers that ask it, and memory that they share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zmq

from shared.memory import SlotMemory
from tests.support import transforms
from tests.support.askers import Asker, a_worker, digest_of, write_synthetic

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loader_server.worker.service import Worker


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stream = 'transforms = ["tests.support.transforms:gate"]'
    return write_synthetic(tmp_path_factory.mktemp("job"), samples=400, length=20, budget=400, stream=stream)


@pytest.fixture
def worker(job: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.syspath_prepend(str(job.parent))
    with a_worker(job) as worker:
        yield worker
        transforms.GATE.set()


@pytest.fixture
def ask(job: Path, worker: Worker) -> Iterator[Callable[..., Asker]]:
    askers: list[Asker] = []
    plan = digest_of(job)
    with zmq.Context() as context:

        def make(**how: Any) -> Asker:
            askers.append(Asker(context, worker.endpoint, plan, **how))
            return askers[-1]

        yield make
        transforms.GATE.set()
        for one in askers:
            one.close()


@pytest.fixture
def memory() -> Iterator[SlotMemory]:
    memory = SlotMemory(8, 400 * 330)
    yield memory
    memory.close()


@pytest.fixture
def closed() -> Iterator[threading.Event]:
    """Whatever is begun does not end before this is set."""
    transforms.GATE.clear()
    transforms.AT_GATE.clear()
    yield transforms.GATE
    transforms.GATE.set()
