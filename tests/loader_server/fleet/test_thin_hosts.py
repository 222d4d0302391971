"""Hosts that ask for pieces and do not read them: memory stays bounded, and control messages go first."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import pytest
import zmq

from loader_server.coordinator import service
from loader_server.fleet.giving import MOST_UNREAD_BYTES
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.loader_server.fleet.bundles import PIECE
from tests.loader_server.fleet.test_job_joining import builder, joined, make_job, served
from tests.support.loaders import ask, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from loader_server.coordinator.service import Coordinator
    from loader_server.job_file import JobFile

_HOSTS = 64


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    """Its bundle has 12 MiB."""
    made = make_job(tmp_path / "own")
    with (made.index_folder("train") / "large.plan").open("wb") as file:
        os.truncate(file.fileno(), 24 * PIECE)
    return made


@contextlib.contextmanager
def thin_hosts(endpoint: str, count: int) -> Iterator[list[zmq.Socket[bytes]]]:
    """Connections with hardly any room for what they do not read."""
    context = zmq.Context(io_threads=1)
    sockets: list[zmq.Socket[bytes]] = []
    try:
        for _ in range(count):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.RCVHWM, 1)
            socket.setsockopt(zmq.RCVBUF, 4096)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(endpoint)
            sockets.append(socket)
        yield sockets
    finally:
        for socket in sockets:
            socket.close()
        context.term()


def answer(socket: zmq.Socket[bytes], wanted: m.BundleWanted) -> m.BundlePiece:
    """The answer to a request, which is repeated until the bundle is ready."""
    while True:
        socket.send(encode(wanted))
        if socket.poll(1000):
            piece = decode(socket.recv())
            assert isinstance(piece, m.BundlePiece)
            return piece


def large_offset(coordinator: Coordinator) -> int:
    assert coordinator._bundle is not None
    bundle = coordinator._bundle._bundle
    assert bundle is not None
    (large,) = [file for file in bundle.manifest.files if file.name.endswith("large.plan")]
    return bundle.manifest.offset_of(large)


def test_64_hosts_that_read_nothing_are_given_a_piece_each_and_16_mib_in_all(job: JobFile, tmp_path: Path) -> None:
    """The coordinator answers other questions all the while; who joins once they are gone is served."""
    most, most_of_one, ends = 0, 0, threading.Event()

    def watch(coordinator: Coordinator) -> None:
        nonlocal most, most_of_one
        while not ends.wait(0.001):
            unread = dict(coordinator._pieces._unread._held)
            most, most_of_one = max(most, coordinator._pieces.total), max(most_of_one, *unread.values(), 0)

    with served(job) as coordinator:
        with thin_hosts(coordinator.endpoint, _HOSTS) as hosts:
            digest = answer(hosts[0], m.BundleWanted(digest="", offset=0)).digest
            begin = large_offset(coordinator)
            watching = threading.Thread(target=watch, args=(coordinator,))
            watching.start()
            try:
                for number in range(20):
                    for host in hosts:
                        host.send(encode(m.BundleWanted(digest=digest, offset=begin + number * PIECE)))
                    assert ask(coordinator.endpoint)["job"] == "tones"
                wait_until(lambda: most > MOST_UNREAD_BYTES - 2 * PIECE, "what may be unread is")
                assert ask(coordinator.endpoint)["job"] == "tones"
            finally:
                ends.set()
                watching.join(60)
        assert PIECE < most_of_one < 1.01 * PIECE
        assert most <= MOST_UNREAD_BYTES
        other = joined(coordinator.endpoint, tmp_path / "state")
    assert builder(other) == builder(job)


def test_in_a_turn_pieces_come_after_everything_else(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    is_armed, has_sent = threading.Event(), threading.Event()
    read = service.read_waiting

    def read_together(socket: zmq.Socket[bytes], most: int) -> Iterator[list[zmq.Frame]]:
        """Ten requests for pieces and ten questions in one turn."""
        if not is_armed.is_set():
            yield from read(socket, most)
            return
        assert has_sent.wait(60)
        is_armed.clear()
        messages: list[list[zmq.Frame]] = []
        while len(messages) < 20:
            assert socket.poll(60_000)
            messages += read(socket, most)
        yield from sorted(messages, key=lambda frames: decode(frames[1].buffer).kind)  # requests for pieces first

    monkeypatch.setattr(service, "read_waiting", read_together)
    with served(job) as coordinator, thin_hosts(coordinator.endpoint, 20) as clients:
        for client in clients:  # all are connected, and the bundle is ready
            digest = answer(client, m.BundleWanted(digest="", offset=0)).digest
        wait_until(lambda: not coordinator._pieces.total, "they have read all that was sent")
        send_frame, send_piece = coordinator._send_frame, coordinator._pieces.send

        def noting_frame(peer: bytes, frame: bytes) -> None:
            order.append(decode(frame).kind)
            send_frame(peer, frame)

        def noting_piece(peer: bytes, frames: Sequence[bytes]) -> bool:
            order.append("piece")
            return send_piece(peer, frames)

        monkeypatch.setattr(coordinator, "_send_frame", noting_frame)
        monkeypatch.setattr(coordinator._pieces, "send", noting_piece)
        is_armed.set()
        for client in clients[:10]:
            client.send(encode(m.BundleWanted(digest=digest, offset=0)))
        for client in clients[10:]:
            client.send(encode(m.StatusQuery()))
        has_sent.set()
        wait_until(lambda: len(order) == 20, "all are answered")
    assert order == ["Status"] * 10 + ["piece"] * 10
