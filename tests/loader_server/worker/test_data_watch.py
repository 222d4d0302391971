"""A worker's looks at its data, in a thread: what is said of missing files, and when they are back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from loader_server.sources.files.presence import MissingFiles
from loader_server.worker.data_watch import DataWatch

ALL = MissingFiles(path="/data/x", reason="missing", missing=3, looked_at=3)
FEW = MissingFiles(path="/data/x", reason="missing", missing=1, looked_at=100)


class Stream:
    """In a stream's place: each look finds the next of these, and the last again and again."""

    def __init__(self, *finds: MissingFiles | None) -> None:
        self._finds = list(finds)
        self.looks = 0

    def find_missing(self, _time_s: float) -> MissingFiles | None:
        self.looks += 1
        return self._finds.pop(0) if len(self._finds) > 1 else self._finds[0]


class Watch:
    def __init__(self, **streams: Stream) -> None:
        self._woken = threading.Semaphore(0)
        self.data = DataWatch("w0", Path("/job.toml"), streams, self._woken.release)
        self.data.start()

    def take(self) -> bool:
        assert self._woken.acquire(timeout=60)
        return self.data.take()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("loader_server.worker.data_watch._FIRST_PAUSE_S", 0.01)


def test_until_the_first_look_nobody_knows_and_then_it_does_not_look_again():
    stream = Stream(None)
    watch = Watch(train=stream)
    assert watch.take()
    assert watch.data.is_known
    assert (watch.data.lacking, watch.data.failing()) == ({}, None)
    watch.data.close()
    assert stream.looks == 1


def test_what_is_missing_is_looked_for_again_and_told_once(caplog):
    caplog.set_level("INFO")
    there, away = Stream(None), Stream(ALL, ALL, None)
    watch = Watch(dev=there, train=away)
    assert watch.take()
    assert watch.data.lacking == {"train": ALL}
    failing = watch.data.failing()
    assert failing is not None
    assert failing.got == "no data for stream train: /data/x missing (3 of 3 files looked at)"
    assert (failing.worker, failing.where) == ("w0", "/job.toml, streams train")
    assert not watch.take(), "nothing new"
    assert watch.take()
    assert (watch.data.lacking, watch.data.failing()) == ({}, None)
    watch.data.close()
    assert (there.looks, away.looks) == (1, 3)
    said = caplog.text
    assert said.count("no data: the stream is not served until they are there") == 1
    assert "/data/x" in said
    assert said.count("data are there: the stream is served") == 1


def test_a_stream_that_lacks_a_few_files_is_served_with_a_warning(caplog):
    stream = Stream(FEW)
    watch = Watch(train=stream)
    assert watch.take()
    assert watch.data.lacking == {}
    watch.data.close()
    assert stream.looks == 1
    assert "some data are missing" in caplog.text


def test_it_can_be_closed_before_it_began_and_while_it_looks():
    DataWatch("w0", Path("/job.toml"), {}, bool).close()
    watch = Watch(train=Stream(ALL))
    watch.take()
    watch.data.close()
    assert not watch.data._thread.is_alive()
