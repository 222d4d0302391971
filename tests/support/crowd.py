"""Crowds of strangers at ports: plain TCP connections that say nothing, and ZeroMQ's without a key. Who is hung up on
comes back.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
from typing import TYPE_CHECKING

import pytest
import zmq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["of_tcp", "of_zeromq", "room_for_files"]

#: Who was hung up on waits so long.
_PAUSE_S = 0.5


@contextlib.contextmanager
def room_for_files(files: int) -> Iterator[None]:
    """Let this process have so many files open, or skip the test."""
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        pytest.skip(f"this system lets no process have {files} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def of_tcp(ports: Iterable[int], each: int) -> Iterator[None]:
    """So many plain connections to each port."""
    crowd = _Crowd(ports, each)
    thread = threading.Thread(target=crowd.run)
    thread.start()
    try:
        yield
    finally:
        crowd.over.set()
        thread.join()


class _Crowd:
    def __init__(self, ports: Iterable[int], each: int) -> None:
        self.over = threading.Event()
        self._away = [port for port in ports for _ in range(each)]
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        while not self.over.wait(_PAUSE_S):
            for port in self._away:
                self._connect(port)
            self._away = [key.data for key, _ in self._selector.select(0) if self._is_gone(key)]
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _connect(self, port: int) -> None:
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        self._selector.register(stranger, selectors.EVENT_READ, port)

    def _is_gone(self, key: selectors.SelectorKey) -> bool:
        """Whether it was hung up on: servers of ZeroMQ say something first."""
        stranger = key.fileobj
        assert isinstance(stranger, socket.socket)
        with contextlib.suppress(OSError):
            if stranger.recv(4096):
                return False
        self._selector.unregister(stranger)
        stranger.close()
        return True


@contextlib.contextmanager
def of_zeromq(ports: Iterable[int], each: int, refused_at: Iterable[str]) -> Iterator[None]:
    """So many connections without a key to each port, of which these endpoints have refused a good part by then: by
    PUSH, since a DEALER connects but once to an endpoint.
    """
    with zmq.Context() as context, context.socket(zmq.PUSH) as crowd:
        crowd.linger = 0
        crowd.reconnect_ivl, crowd.reconnect_ivl_max = 1000, 10_000
        refusals = crowd.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        for port in ports:
            for _ in range(each):
                crowd.connect(f"tcp://127.0.0.1:{port}")
        left = dict.fromkeys(refused_at, each // 4)
        while max(left.values()) > 0:
            assert refusals.poll(60_000), left
            _, endpoint = refusals.recv_multipart()
            left[endpoint.decode()] = left.get(endpoint.decode(), 0) - 1
        crowd.disable_monitor()
        refusals.close(0)
        yield
