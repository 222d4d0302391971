"""Fetching ahead: each once, in order, in few threads, and no error stops it."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from loader_server.sources.remote.remote_files import FetchAhead
from shared.errors import ReadError


def test_what_is_expected_is_fetched_once_in_order_and_again_later() -> None:
    fetched: SimpleQueue[int] = SimpleQueue()
    go_on = threading.Event()

    def fetch(one: int) -> None:
        assert go_on.wait(60)
        fetched.put(one)

    ahead = FetchAhead(fetch, 1)
    ahead.expect([3, 1, 3])
    ahead.expect([1, 2])
    go_on.set()
    assert [fetched.get(timeout=60) for _ in range(3)] == [3, 1, 2]
    ahead.expect([4])
    assert fetched.get(timeout=60) == 4
    ahead.close()


def test_it_goes_on_after_it_was_closed() -> None:
    fetched: SimpleQueue[int] = SimpleQueue()
    ahead = FetchAhead(fetched.put, 1)
    for one in (1, 2):
        ahead.expect([one])
        assert fetched.get(timeout=60) == one
        ahead.close()


def test_errors_are_left_to_whoever_needs_it() -> None:
    fetched: SimpleQueue[int] = SimpleQueue()

    def fetch(one: int) -> None:
        fetched.put(one)
        if one == 1:
            raise ReadError(expected="a", got="b", where="c", remedy="d")
        if one == 2:
            raise OSError("disk")

    ahead = FetchAhead(fetch, 1)
    ahead.expect([1, 2, 3])
    assert [fetched.get(timeout=60) for _ in range(3)] == [1, 2, 3]
    ahead.close()


def test_threads_are_as_many_as_there_is_work_for_and_end() -> None:
    go_on, came = threading.Event(), SimpleQueue()

    def fetch(one: int) -> None:
        came.put(threading.current_thread())
        assert go_on.wait(60)

    FetchAhead(fetch, 0).expect([1])
    ahead = FetchAhead(fetch, 3)
    ahead.expect([1, 2])
    threads = {came.get(timeout=60) for _ in range(2)}
    ahead.expect(range(3, 9))
    threads.add(came.get(timeout=60))
    assert (len(threads), came.empty()) == (3, True)
    ahead.close()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert came.empty(), "what was not begun is dropped"
