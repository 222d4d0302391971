"""Whether a restart would make another worker: looks in the background, on a clock of the test's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.worker.restart_watch import RestartWatch, builder_on_disk
from shared.errors import DataError
from shared.logs import Log
from tests.support.loaders import wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path


class Looks:
    """What the disk says, and the watch that looks at it."""

    def __init__(self):
        self.says = "b1"
        self.woken = threading.Event()
        self.watch = RestartWatch(self.look, "b1", self.woken.set, Log("worker", worker="w"))

    def look(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def find(self, now_s):
        """Look once; whether a restart would help."""
        self.woken.clear()
        self.watch.begin(now_s)
        assert self.woken.wait(60)
        found = []
        wait_until(lambda: found.append(self.watch.take(now_s)) or self.watch._under_way is None, "the look has ended")
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


def test_looks_that_fail_are_counted_and_each_reason_is_logged_once(looks, caplog):
    looks.says = DataError(expected="an index", got="none", where="here", remedy="Make it.")
    for now_s in (10.0, 20.0):
        assert not looks.find(now_s)
    looks.says = ValueError("raised by a module of the user's")
    for now_s in (30.0, 40.0):
        assert not looks.find(now_s)
    assert looks.watch.failed == 4
    assert [record.fields["reason"] for record in caplog.records] == [
        str(DataError(expected="an index", got="none", where="here", remedy="Make it.")),
        "raised by a module of the user's",
    ]


@pytest.fixture
def hanging():
    """Looks that wait until they are let go, as in a file system that does not answer."""
    looks, going = Looks(), threading.Event()
    looks.watch = RestartWatch(lambda: str(going.wait(60)), "b1", looks.woken.set, Log("worker", worker="w"))
    looks.let_go = going.set
    yield looks
    going.set()


def test_nothing_is_found_before_a_look_has_ended(looks, hanging):
    assert not looks.watch.take(10.0)
    watch = hanging.watch
    watch.begin(10.0)
    assert not watch.take(69.0)
    assert not watch.is_due(69.0), "one look at a time"
    hanging.let_go()
    assert hanging.woken.wait(60)
    wait_until(lambda: watch.take(69.0), "the look has ended")


def test_a_look_that_hangs_is_given_up_and_no_more_than_three_hang(hanging, caplog):
    watch, now_s = hanging.watch, 10.0
    for _ in range(3):
        assert watch.is_due(now_s)
        watch.begin(now_s)
        assert not watch.take(now_s + 60.0)
        assert not watch.is_due(now_s + 60.0), "the pause is as long as after any long look"
        now_s += 700.0
    assert watch.given_up == 3
    assert [record.fields["reason"] for record in caplog.records] == ["no answer for 60 s"]
    assert not watch.is_due(now_s)
    hanging.let_go()
    wait_until(lambda: watch.is_due(now_s), "those that hung have ended")
    assert not watch.take(now_s), "what they found may be old"


def test_the_disk_is_read_anew_each_time(tmp_path: Path):
    job = write_job(tmp_path, samples=12)
    index_missing(JobFile(job))
    before = builder_on_disk(job)
    assert builder_on_disk(job) == before
    job.write_text(job.read_text().replace("bands = 40", "bands = 20"))
    assert builder_on_disk(job) != before
