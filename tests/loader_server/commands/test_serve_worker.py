"""A worker that waits for an index or files that are not there yet; the clock is the event's."""

from __future__ import annotations

from loader_server.commands.serve_worker import open_once_there
from shared.errors import DataError


class Stop:
    """In an event's place: it is set at the so-manieth wait."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.pauses: list[float] = []

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        return len(self.pauses) >= self._at


def absent(got: str) -> DataError:
    return DataError(expected="an index", got=got, where="/x", remedy="Copy it.")


def opener(*results: DataError | str):
    left = list(results)

    def open_it():
        result = left.pop(0)
        if isinstance(result, DataError):
            raise result
        return result

    return open_it


def test_it_opens_once_there_and_says_each_error_once(caplog):
    told, stop = [], Stop(100)
    opened = open_once_there(
        opener(absent("none"), absent("a damaged one"), "worker"), absent("none"), told.append, stop, "w0"
    )
    assert opened == "worker"
    assert [error.got for error in told] == ["none", "none", "a damaged one"]
    assert [record.getMessage().count("no data: this worker") for record in caplog.records] == [1, 1]


def test_pauses_grow_to_some_seconds_and_a_stop_ends_it():
    stop = Stop(6)
    assert open_once_there(opener(*[absent("none")] * 6), absent("none"), lambda _: None, stop, "w0") is None
    assert stop.pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
