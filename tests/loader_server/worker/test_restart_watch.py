"""Whether a restart would make another worker: looks in the background, on a clock of the test's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.worker.restart_watch import RestartWatch, builder_on_disk
from shared.errors import DataError
from tests.support.loaders import wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path


class Looks:
    """What the disk says, and the watch that looks at it."""

    def __init__(self):
        self.says = "b1"
        self.woken = threading.Event()
        self.watch = RestartWatch(self.look, "b1", self.woken.set)

    def look(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def find(self, now_s):
        """Look once; whether a restart would help."""
        self.woken.clear()
        self.watch.begin()
        assert self.woken.wait(60)
        found = []
        wait_until(lambda: found.append(self.watch.take(now_s)) or self.watch._thread is None, "the thread has ended")
        return found[-1]


@pytest.fixture
def looks():
    return Looks()


@pytest.mark.fault(68)
def test_it_says_so_once_the_disk_says_something_else(looks):
    assert not looks.find(10.0)
    looks.says = "b2"
    assert looks.find(20.0)


@pytest.mark.fault(68)
def test_what_cannot_be_opened_now_is_no_reason_to_restart(looks):
    looks.says = "b2"
    assert looks.find(10.0)
    looks.says = DataError(expected="an index", got="none", where="here", remedy="Make it.")
    assert not looks.find(20.0)
    looks.says = FileNotFoundError()
    assert not looks.find(30.0)


def test_pauses_grow_up_to_a_limit_and_begin_anew_once_the_worker_is_taken_in(looks):
    now_s, pauses = 10.0, []
    assert looks.watch.is_due(now_s)
    for _ in range(7):
        looks.find(now_s)
        began_s = now_s
        while not looks.watch.is_due(now_s):
            now_s += 0.01
        pauses.append(now_s - began_s)
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 8, 8], abs=0.1)
    looks.find(now_s)
    looks.watch.calm()
    assert looks.watch.is_due(now_s)


def test_nothing_is_found_before_a_look_has_ended(looks):
    assert not looks.watch.take(10.0)
    going = threading.Event()
    watch = RestartWatch(lambda: str(going.wait(60)), "b1", looks.woken.set)
    watch.begin()
    assert not watch.take(10.0)
    assert not watch.is_due(1000.0), "one look at a time"
    going.set()
    assert looks.woken.wait(60)
    wait_until(lambda: watch.take(11.0), "the look has ended")


def test_the_disk_is_read_anew_each_time(tmp_path: Path):
    job = write_job(tmp_path, samples=12)
    index_missing(JobFile(job))
    before = builder_on_disk(job)
    assert builder_on_disk(job) == before
    job.write_text(job.read_text().replace("bands = 40", "bands = 20"))
    assert builder_on_disk(job) != before
