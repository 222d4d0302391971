"""Connections that send faster than they are read, on real sockets, at a time that the test says."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from shared.fairness import brakes
from shared.fairness.brakes import Brakes, too_fast
from shared.fairness.budget import Patience
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_KB = 1024


class Frame:
    """Knows its connection, as frames of libzmq do."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def get(self, name: str) -> str:
        assert name == "__fd"
        return str(self._fd)


class Port:
    """Connections to one listening socket, and their brakes; what comes is never read, and kept by the kernel."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 2**20)
        self.accepted: list[socket.socket] = []
        self.brakes = Brakes(lambda: [one.fileno() for one in self.accepted if one.fileno() >= 0])

    def connect(self) -> socket.socket:
        client = self._stack.enter_context(socket.create_connection(self._listener.getsockname()))
        self.accepted.append(self._stack.enter_context(self._listener.accept()[0]))
        return client

    def received(self, number: int) -> float:
        return brakes._received(self.accepted[number].fileno()) or 0.0

    def send(self, client: socket.socket, number: int, nbytes: int) -> None:
        """Send so much, and wait until the kernel has it."""
        before = self.received(number)
        client.sendall(bytes(nbytes))
        wait_until(lambda: self.received(number) == before + nbytes, "it has come")

    def turn(self, now_s: float, *suspects: int, is_behind: bool = True) -> None:
        for number in suspects:
            for _ in range(brakes._MOST_USELESS + 1):
                self.brakes.note_useless(Frame(self.accepted[number].fileno()))  # type: ignore[arg-type]
        self.brakes.turn(now_s, is_behind=is_behind)


@pytest.fixture
def port() -> Iterator[Port]:
    with contextlib.ExitStack() as stack:
        yield Port(stack)


@pytest.mark.fault(58)
def test_one_that_floods_is_stopped_and_goes_on_later(port: Port) -> None:
    """What it sends meanwhile does not come, and is not lost."""
    flooder, other = port.connect(), port.connect()
    port.turn(0.0, 0)
    port.send(flooder, 0, 700 * _KB)
    port.send(other, 1, 10 * _KB)
    port.turn(0.1, 0)
    assert port.brakes.stops == 1
    assert port.brakes.are_on()
    before = port.received(0)
    flooder.sendall(bytes(10 * _KB))
    port.send(other, 1, 10 * _KB)
    port.turn(0.2, is_behind=False)
    assert port.received(0) == before
    port.turn(0.4, is_behind=False)
    assert not port.brakes.are_on()
    wait_until(lambda: port.received(0) == before + 10 * _KB, "the rest comes")


@pytest.mark.parametrize("why", ["all was taken in", "its messages were useful", "it sent little", "it sends slowly"])
def test_nobody_is_stopped_who_does_no_harm(port: Port, why: str) -> None:
    client, suspects = port.connect(), [] if why == "its messages were useful" else [0]
    port.turn(0.0, *suspects)
    port.send(client, 0, (60 if why == "it sent little" else 700) * _KB)
    if why == "all was taken in":
        port.turn(0.1, 0, is_behind=False)
    port.turn(20.0 if why == "it sends slowly" else 0.2, *suspects)
    assert port.brakes.stops == 0


@pytest.mark.fault(58)
def test_a_slow_server_stops_those_of_whom_it_sees_few_messages_at_a_time(port: Port) -> None:
    """Patience, which counts by the tenth of a second, would bear with each of them for ever."""
    clients = [port.connect() for _ in range(30)]
    patience: Patience[int] = Patience()
    for turn in range(brakes._MOST_USELESS + 1):
        for number in range(30):
            assert patience.hears(number, float(turn))
            patience.bear(number)
            port.brakes.note_useless(Frame(port.accepted[number].fileno()))  # type: ignore[arg-type]
        port.turn(0.1 * turn)
    assert port.brakes.stops == 0, "nobody has sent much"
    for number, client in enumerate(clients):
        port.send(client, number, 500 * _KB)
    port.turn(0.1 * turn + 0.1)
    assert port.brakes.stops == 30


@pytest.mark.fault(58)
def test_many_share_what_may_wait(port: Port) -> None:
    """Ten times what one alone may send a tenth of."""
    clients = [port.connect() for _ in range(10)]
    port.turn(0.0, *range(10))
    for number, client in enumerate(clients):
        port.send(client, number, 110 * _KB)
    port.turn(0.1, *range(10))
    assert port.brakes.stops == 10


def test_stopped_ones_go_on_one_by_one_and_not_while_messages_are_left_over(port: Port) -> None:
    clients = [port.connect() for _ in range(3)]
    port.turn(0.0, 0, 1, 2)
    for number, client in enumerate(clients):
        port.send(client, number, 500 * _KB)
    port.turn(0.1, 0, 1, 2)
    assert len(port.brakes._stopped) == 3
    port.turn(1.0)
    assert len(port.brakes._stopped) == 3
    for now_s, left in ((1.1, 2), (2.0, 2), (2.1, 1), (3.0, 1), (3.1, 0)):  # of the one that goes on nothing is heard
        port.turn(now_s, is_behind=False)
        assert len(port.brakes._stopped) == left


def test_the_next_goes_on_once_the_one_before_has_been_heard_of(port: Port) -> None:
    """All of them at once would bring as much as a whole flood, because they try again at the same moments."""
    clients = [port.connect() for _ in range(2)]
    port.turn(0.0, 0, 1)
    for number, client in enumerate(clients):
        port.send(client, number, 700 * _KB)
    port.turn(0.1, 0, 1)
    port.turn(1.1, is_behind=False)
    (left,) = port.brakes._stopped
    port.turn(1.2, is_behind=False)
    assert list(port.brakes._stopped) == [left]
    goes_on = next(number for number in range(2) if port.accepted[number].fileno() != left)
    port.send(clients[goes_on], goes_on, 1)
    port.turn(1.3, is_behind=False)
    assert not port.brakes.are_on()


def test_not_even_an_endless_backlog_stops_anybody_for_ever(port: Port) -> None:
    client = port.connect()
    port.turn(0.0, 0)
    port.send(client, 0, 700 * _KB)
    port.turn(0.1, 0)
    for now_s in (1.0, 8.2):
        port.turn(now_s)
        assert port.brakes.are_on()
    port.turn(8.5)
    assert not port.brakes.are_on()


def test_who_was_stopped_for_longer_than_clients_bear_is_hung_up_on(port: Port) -> None:
    """Its client has connected anew, which cannot be heard: each would leave a dead connection behind."""
    clients = [port.connect() for _ in range(3)]
    port.turn(0.0, 0, 1)
    for number, client in enumerate(clients[:2]):
        port.send(client, number, 700 * _KB)
    port.turn(0.1, 0, 1)
    left = {port.accepted[number].fileno(): clients[number] for number in (0, 1)}
    for now_s in (6.2, 6.25):
        port.turn(now_s, is_behind=False)
        (still,) = port.brakes._stopped
    clients[2].settimeout(0.2)
    for fd, client in left.items():
        client.settimeout(10 if fd != still else 0.2)
        with pytest.raises(OSError, match="timed out") if fd == still else contextlib.nullcontext():
            assert client.recv(1) == b""
    port.turn(6.35, is_behind=False)
    assert not port.brakes.are_on()
    with pytest.raises(OSError, match="timed out"):
        clients[2].recv(1)


def test_nobody_is_hung_up_on_who_has_a_stopped_ones_descriptor_now(port: Port) -> None:
    client, other = port.connect(), port.connect()
    port.turn(0.0, 0)
    port.send(client, 0, 700 * _KB)
    port.turn(0.1, 0)
    os.dup2(port.accepted[1].fileno(), port.accepted[0].fileno())
    port.turn(9.0, is_behind=False)
    assert not port.brakes.are_on()
    other.settimeout(0.2)
    with pytest.raises(OSError, match="timed out"):
        other.recv(1)


def test_each_time_it_is_stopped_for_longer_until_that_is_forgotten(port: Port) -> None:
    client, now_s, pauses = port.connect(), 0.0, []
    for wait_s in (0.0, 0.0, 0.0, 40.0):
        now_s += wait_s
        port.turn(now_s, 0)
        port.send(client, 0, 600 * _KB)
        port.turn(now_s + 0.1, 0)
        (until_s,) = port.brakes._stopped.values()
        pauses.append(round(until_s - now_s - 0.1, 6))
        now_s = until_s
        port.turn(now_s, is_behind=False)
    assert pauses == [0.25, 0.5, 1.0, 0.25]


def test_a_new_connection_does_not_pay_for_one_that_had_its_descriptor(port: Port) -> None:
    client = port.connect()
    port.turn(0.0, 0)
    port.send(client, 0, 700 * _KB)
    port.turn(0.1, 0)
    fd = port.accepted[0].fileno()
    client.close()
    port.accepted[0].close()
    port.connect()
    assert port.accepted[1].fileno() == fd
    port.turn(0.2, 1)
    assert not port.brakes.are_on()
    assert not port.brakes._last


def test_a_descriptor_that_is_no_connection_harms_nobody() -> None:
    with open("/dev/null") as other:  # noqa: PTH123 - a descriptor is wanted
        own = Brakes(lambda: [other.fileno(), 10**6])
        own.turn(0.0, is_behind=True)
        assert own.stops == 0


def test_one_alone_may_have_half_and_those_who_send_little_are_never_too_fast() -> None:
    assert too_fast({1: 500 * _KB}) == []
    assert too_fast({1: 600 * _KB}) == [1]
    assert too_fast({1: 900 * _KB, 2: 60 * _KB}) == [1]
    assert too_fast(dict.fromkeys(range(100), 60.0 * _KB)) == []
