"""Who makes room for whom, and when a connection is over."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from shared.metrics.bounded_connections import ANSWERING_S, ASKING_S, BoundedConnections

if TYPE_CHECKING:
    from collections.abc import Iterator


class Crowd:
    """Connections, each with a thread that leaves its place once it is ended."""

    def __init__(self, connections: BoundedConnections, cleanup: contextlib.ExitStack) -> None:
        self._connections, self._cleanup = connections, cleanup

    def come(self, now_s: float = 0.0) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._cleanup.callback(theirs.close)
        self._cleanup.callback(ours.close)
        assert self._connections.admit(ours, now_s)
        thread = threading.Thread(target=self._serve, args=(ours,))
        self._cleanup.callback(thread.join, 60)
        self._cleanup.callback(ours.shutdown, socket.SHUT_RDWR)
        thread.start()
        return ours

    def _serve(self, connection: socket.socket) -> None:
        connection.recv(1)
        self._connections.leave(connection)


def is_ended(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_the_oldest_that_has_not_asked_makes_room_and_then_the_oldest(
    cleanup: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.metrics.bounded_connections._LEAVING_S", 60)
    connections = BoundedConnections(3)
    crowd = Crowd(connections, cleanup)
    first, second, third = (crowd.come() for _ in range(3))
    assert connections.note_asked(first, 0.0)
    fourth = crowd.come()
    assert [is_ended(one) for one in (first, second, third)] == [False, True, False]
    assert connections.note_asked(third, 0.0)
    assert connections.note_asked(fourth, 0.0)
    crowd.come()
    assert [is_ended(one) for one in (first, third, fourth)] == [True, False, False]


def test_where_nobody_leaves_the_newest_gets_no_place_and_an_ended_one_is_not_answered(
    cleanup: contextlib.ExitStack,
) -> None:
    connections = BoundedConnections(1)
    (first, _other), (second, _another) = (
        tuple(map(cleanup.enter_context, map(contextlib.closing, socket.socketpair()))) for _ in range(2)
    )
    assert connections.admit(first, 0.0)
    assert not connections.admit(second, 0.0)
    assert not connections.note_asked(first, 0.0)
    connections.leave(second)  # which has none to give back
    assert not connections.admit(second, 0.0)
    connections.leave(first)
    assert connections.admit(second, 0.0)


def test_who_does_not_ask_or_read_is_ended_when_its_time_is_over(cleanup: contextlib.ExitStack) -> None:
    connections = BoundedConnections(8)
    assert connections.end_overdue(0.0) is None
    crowd = Crowd(connections, cleanup)
    silent, asking, later = crowd.come(0.0), crowd.come(0.5), crowd.come(1.0)
    assert connections.note_asked(asking, 1.0)
    assert connections.end_overdue(1.5) == pytest.approx(ASKING_S - 1.5)
    assert not is_ended(silent)
    assert connections.end_overdue(ASKING_S) == pytest.approx(1.0)
    assert [is_ended(one) for one in (silent, asking, later)] == [True, False, False]
    assert connections.end_overdue(ASKING_S + 1.0) == pytest.approx(ANSWERING_S - ASKING_S)
    assert [is_ended(one) for one in (asking, later)] == [False, True]
    assert connections.end_overdue(ANSWERING_S + 1.0) is None
    assert is_ended(asking)
