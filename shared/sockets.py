"""ZeroMQ as Stoker uses it: one context a process, the same options everywhere, and a way to wake a poll loop.

Rules: a socket is made, used and closed in one thread. ROUTERs are mandatory and never block, because by default they
drop silently at their high-water mark and for unknown peers. There is one DEALER per peer, and it queues only on
completed connections. Nothing lingers: whatever is unsent at close was answered for or will be asked again. libzmq's
own heartbeats only notice dead connections; our pings show whether Python is still running.
"""

from __future__ import annotations

import contextlib
import os
import socket as posix
import stat
import struct
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import at_any_port, at_port, is_loopback
from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shared.keys import ClientKeys, ServerKeys

__all__ = [
    "MAX_PAYLOAD",
    "MOST_WAITING",
    "Waker",
    "bind_router",
    "bind_sealed_router",
    "connect_dealer",
    "connect_sealed_dealer",
    "connect_watched_dealer",
    "descriptors_by_port",
    "read_connection_events",
    "read_events",
    "read_waiting",
    "send_if_up",
    "send_now",
]

#: A payload frame may be as long as the largest slot; headers are bounded by the codec.
MAX_PAYLOAD = 2**31

#: Requests to a server are short; its answers may be longer.
MAX_REQUEST = 2**16

#: First frame of a monitor's message: the event, and its value.
_EVENT = struct.Struct("=Hi")

#: Most frames taken in by one read of a socket, and kept of one message: a peer may send very many at once.
_MOST_FRAMES = 4096

#: Messages read in one turn by default.
MOST_WAITING = 256

#: Send buffer on loopback, small enough for data in flight to stay in the processor's cache. Measured with 10 MB
#: batches: 280 a second, against 222 with the system's choice; receive buffers are best left to the system; with 32 KiB
#: loopback stalls. Between hosts the system's choice grows with the distance, and a fixed size would be a limit.
_LOOPBACK_SEND_BUFFER = 384 * 1024

#: Receive buffer of servers: more than a well-behaved peer sends at once, and not larger, because that would only let a
#: flood in faster than Python can take it. With 4 KiB, which a burst of wants fills, we saw pauses of 0.2 and 0.4 s,
#: which a sender's kernel makes before it probes a full window, and once small batches at a quarter of their rate.
_SERVER_RECEIVE_BUFFER = 128 * 1024

#: Options of all sockets.
_COMMON = {
    zmq.LINGER: 0,
    # No high-water mark: the lent slots bound what is in flight.
    zmq.SNDHWM: 0,
    # libzmq 4.3.5 stops reading from a connection that has reached a limit. If that connection is then reset, a PING
    # that was read with the last messages fails an assertion once reading resumes: any client could end our process.
    zmq.RCVHWM: 0,
}

#: Options of servers' ROUTERs.
_SERVER = {
    # Sending to a peer that is gone fails; by default the message vanishes, and nobody learns of it.
    zmq.ROUTER_MANDATORY: 1,
    # A client that reconnects replaces its old connection at once.
    zmq.ROUTER_HANDOVER: 1,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.RCVBUF: _SERVER_RECEIVE_BUFFER,
    # TCP notices within 25 s that a client's machine is gone, even before its first heartbeat.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}

#: Options of clients' DEALERs.
_CLIENT = {
    # Queue only on completed connections: sending fails while the connection is down.
    zmq.IMMEDIATE: 1,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 1000,
    # TCP's own pauses grow while a server lets nobody in.
    zmq.CONNECT_TIMEOUT: 1000,
    zmq.MAXMSGSIZE: MAX_PAYLOAD,
    # On DEALERs only: the TTL ends dead connections for both sides.
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 5000,
    zmq.HEARTBEAT_TTL: 10000,
}

# Plain numbers, because combining pyzmq's enumerations takes longer than sending a small frame.
_NOW = int(zmq.DONTWAIT)
_NOW_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ServerKeys | None, most: int = MAX_REQUEST
) -> zmq.Socket[bytes]:
    """Return a ROUTER bound to `endpoint` that accepts frames of up to `most` bytes; `LAST_ENDPOINT` has its port.

    Raise SettingsError if it cannot be bound: it is no endpoint, is taken, or is no address of this machine.
    """
    router = _make_router(context, endpoint)
    router.setsockopt(zmq.MAXMSGSIZE, most)
    if keys is not None:
        keys.serve(router)
    try:
        router.bind(endpoint)
    except zmq.ZMQError as error:
        router.close()
        raise SettingsError(
            expected=f"{endpoint} to be free, and an address of this machine",
            got=str(error),
            where="bind",
            remedy="Another loader may run there: stop it, or change `listen`.",
        ) from None
    return router


def bind_sealed_router(
    context: zmq.Context[zmq.Socket[bytes]], beside: str, port: int | None = None
) -> zmq.Socket[bytes]:
    """Return a ROUTER for payloads that are sealed already, at the address of `beside` and the given port.

    It takes any free port if `port` is None or taken, and raises zmq.ZMQError if that fails, or SettingsError if
    `beside` is no endpoint. The context's guard lets in only clients that show an identity announced in a Hello.
    Whatever clients send here has to be read and dropped, because nothing else bounds it. A new connection replaces one
    of the same identity that may still seem to be up, or a trainer could never reconnect. A thief of an identity gets
    payloads that it cannot open, until the trainer that misses them reconnects.
    """
    router = _make_router(context, beside)
    router.setsockopt(zmq.MAXMSGSIZE, 256)
    router.setsockopt(zmq.PLAIN_SERVER, 1)
    try:
        router.bind(at_any_port(beside) if port is None else at_port(beside, port))
    except zmq.ZMQError:
        if port is None:
            router.close()
            raise
        router.bind(at_any_port(beside))
    return router


def _make_router(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """Return a ROUTER with a server's options, not yet bound; raise SettingsError if `endpoint` is not one."""
    router = context.socket(zmq.ROUTER)
    with _close_on_failure(router):
        _set_options(router, endpoint, _SERVER)
    return router


def connect_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None, identity: bytes
) -> zmq.Socket[bytes]:
    """Return a DEALER to one peer, under an identity that only this incarnation has.

    Without an endpoint, because the peer's address is not known yet, it connects to nobody, and nothing can be sent on
    it. Raise SettingsError if the endpoint is no TCP endpoint, or zmq.ZMQError if its port is `*`.
    """
    with _new_dealer(context, endpoint, keys, identity) as dealer:
        if endpoint:
            dealer.connect(endpoint)
    return dealer


def connect_sealed_dealer(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, identity: bytes) -> zmq.Socket[bytes]:
    """Return a DEALER to a ROUTER for sealed payloads, under an identity that the other side learnt elsewhere.

    Raise SettingsError if the endpoint is no TCP endpoint, or zmq.ZMQError if its port is `*`.
    """
    with _new_dealer(context, endpoint, None, identity) as dealer:
        dealer.setsockopt(zmq.PLAIN_USERNAME, identity.hex().encode())
        dealer.connect(endpoint)
    return dealer


def connect_watched_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None, identity: bytes
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Return a DEALER to one peer, and a monitor socket for `read_connection_events`.

    Watching begins before connecting: a loopback handshake is over before a busy thread could look. Raise SettingsError
    if the endpoint is no TCP endpoint, or zmq.ZMQError if its port is `*`.
    """
    with _new_dealer(context, endpoint, keys, identity) as dealer:
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        with _close_on_failure(monitor):
            dealer.connect(endpoint)
    return dealer, monitor


@contextlib.contextmanager
def _new_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None, identity: bytes
) -> Iterator[zmq.Socket[bytes]]:
    """Yield a DEALER with a client's options, not yet connected; close it if the block raises.

    Raise SettingsError if `endpoint` is neither empty nor a TCP endpoint.
    """
    dealer = context.socket(zmq.DEALER)
    with _close_on_failure(dealer):
        _set_options(dealer, endpoint, _CLIENT)
        dealer.setsockopt(zmq.ROUTING_ID, identity)
        if keys is not None:
            keys.use(dealer)
        yield dealer


@contextlib.contextmanager
def _close_on_failure(socket: zmq.Socket[bytes]) -> Iterator[None]:
    """Close the socket if the block raises.

    An error keeps its stack frames alive, and these the socket: unless it is closed, its context never ends.
    """
    try:
        yield
    except BaseException:  # re-raised; even a KeyboardInterrupt would keep the socket alive
        socket.disable_monitor()
        socket.close(linger=0)
        raise


def _set_options(socket: zmq.Socket[bytes], endpoint: str, options: Mapping[zmq.SocketOption, int]) -> None:
    """Set these options, those that all sockets share, and those that the endpoint needs.

    Raise SettingsError if the endpoint is neither empty nor a TCP endpoint.
    """
    for option, value in {**_COMMON, **options}.items():
        socket.setsockopt(option, value)
    if "[" in endpoint:  # libzmq speaks only IPv4 by default
        socket.setsockopt(zmq.IPV6, 1)
    if endpoint and is_loopback(endpoint):
        socket.setsockopt(zmq.SNDBUF, _LOOPBACK_SEND_BUFFER)


def read_connection_events(monitor: zmq.Socket[bytes]) -> Iterator[bool]:
    """Yield True for each time that the connection came up since the last call, and False for each loss, in order."""
    for event in read_events(monitor):
        yield event == zmq.EVENT_HANDSHAKE_SUCCEEDED


def read_events(monitor: zmq.Socket[bytes]) -> Iterator[int]:
    """Yield a monitor's events since the last call, as libzmq's numbers.

    pyzmq's own reader of events imports asyncio, which would make each of our processes start 20 ms later.
    """
    with contextlib.suppress(zmq.Again):
        while True:
            yield _EVENT.unpack(monitor.recv_multipart(zmq.DONTWAIT)[0])[0]


def read_waiting(socket: zmq.Socket[bytes], most: int = MOST_WAITING) -> Iterator[list[zmq.Frame]]:
    """Yield multipart messages that wait on a socket, up to `most`, so that no peer starves the others.

    It also ends once the messages have 4096 frames together. Frames after the first 4096 of a message are dropped; no
    message of ours has so many.
    """
    room = _MOST_FRAMES
    with contextlib.suppress(zmq.Again):
        while most > 0 and room > 0:
            frame = socket.recv(_NOW, copy=False)
            frames = [frame]
            # Asked of the frame, because asking the socket takes longer than receiving. To the end in any case: frames
            # left on the socket would be read as the beginning of the next message.
            while frame.more:
                frame = socket.recv(_NOW, copy=False)
                if len(frames) < _MOST_FRAMES:
                    frames.append(frame)
            most, room = most - 1, room - len(frames)
            yield frames


def send_now(socket: zmq.Socket[bytes], frames: list[bytes], *, more: bool = False) -> None:
    """Send one message, or with `more` the beginning of one.

    Raise zmq.ZMQError if that would block, or on a ROUTER if the peer is not connected.
    """
    for frame in frames[:-1]:
        socket.send(frame, _NOW_MORE)
    socket.send(frames[-1], _NOW_MORE if more else _NOW)


def send_if_up(dealer: zmq.Socket[bytes], frame: bytes) -> bool:
    """Send on a DEALER if its connection is up, and return whether it was; raise zmq.ZMQError if it is closed."""
    try:
        dealer.send(frame, zmq.DONTWAIT)
    except zmq.Again:
        return False
    return True


def descriptors_by_port() -> Iterator[tuple[int, int]]:
    """Yield the descriptor and local port of each of our TCP sockets.

    Those that have no port yet or are closed meanwhile are skipped. Raise OSError where /proc cannot be read.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):  # the descriptor of the listing itself, or one that was closed meanwhile
            fd = int(name)
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                port = _local_port(fd)
                if port:
                    yield fd, port


def _local_port(fd: int) -> int:
    """Return the port that a TCP socket is bound to; 0 if it is no TCP socket or unbound. Raise OSError if closed."""
    opened = posix.socket(fileno=fd)  # detached below: closing it would close libzmq's descriptor
    try:
        return int(opened.getsockname()[1]) if opened.family in (posix.AF_INET, posix.AF_INET6) else 0
    finally:
        opened.detach()


class Waker:
    """Wakes a poll loop from any thread, and from finalisers: it takes no lock and never blocks.

    A second wake before the loop runs is skipped, because the system call dominates the cost.
    """

    def __init__(self) -> None:
        self._woken = False
        self._receiving, self._sending = posix.socketpair()
        self._receiving.setblocking(False)  # noqa: FBT003 - its only parameter
        self._sending.setblocking(False)  # noqa: FBT003

    def fileno(self) -> int:
        """Return the descriptor that the loop polls for reading."""
        return self._receiving.fileno()

    def wake(self) -> None:
        """Make the loop run once more; do nothing if it is woken already or gone."""
        if self._woken:
            return
        self._woken = True  # before sending: the loop may run, and clear it, at any moment after
        with contextlib.suppress(BlockingIOError, OSError):
            self._sending.send(b"!")

    def clear(self) -> None:
        """Reset the waker as the loop runs; call this before looking for work.

        The order matters: a wake after this call wakes the loop again, while one before it is covered by the look that
        follows.
        """
        with contextlib.suppress(BlockingIOError):
            while len(self._receiving.recv(4096)) == 4096:
                pass
        # A wake until here is skipped, but the loop looks for work after this call, so it misses nothing.
        self._woken = False

    def close(self) -> None:
        """Close both ends; later wakes do nothing."""
        self._receiving.close()
        self._sending.close()
