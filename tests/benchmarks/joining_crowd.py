"""Thin hosts that join a job all at once: what a coordinator has to do for them, at next to no cost of their own.

    python -m tests.benchmarks.joining_crowd ENDPOINT BUILDER HOSTS

Each line of the input lets all of them join, each on a connection of its own; what that took is one line of JSON. A
host fetches the bundle, one request outstanding, as `loader-server run ENDPOINT` does, and then registers one worker,
which leaves once all are there. Rules: what comes is thrown away and not checked, so that a coordinator on the same
machine is as busy as it can be.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from dataclasses import dataclass, field

import zmq

from loader_server.fleet.manifest import Manifest
from shared.sockets import connect_dealer, read_waiting
from shared.wire import messages as m
from shared.wire.codec import decode, encode

__all__ = ["register"]


def register(number: int, incarnation: int, builder: str) -> m.Register:
    """Return how worker `number` of a crowd registers, at an address where nobody is."""
    return m.Register(
        worker=f"worker-{number}", incarnation=incarnation, endpoint=f"tcp://10.0.0.1:{10_000 + number}",
        boot_id="b", uid=0, builder=builder, metrics="",
    )  # fmt: skip


@dataclass
class _Host:
    """One connection, and how far its bundle is."""

    number: int
    builder: str
    socket: zmq.Socket[bytes]
    begun: bytearray = field(default_factory=bytearray)
    digest: str = ""
    #: Where the next piece begins, and where the bundle ends, once its manifest is here.
    offset: int = 0
    end: float = float("inf")
    incarnation: int = field(default_factory=lambda: secrets.randbits(60))
    is_registered: bool = False

    def say(self, message: m.Message) -> None:
        self.socket.send(encode(message))  # blocks until the connection is there

    def ask(self) -> None:
        """Ask for the next piece, or register."""
        if self.offset < self.end:
            self.say(m.BundleWanted(digest=self.digest, offset=self.offset))
        else:
            self.say(register(self.number, self.incarnation, self.builder))

    def take(self, message: m.Message) -> None:
        """Take in an answer, and ask on."""
        if isinstance(message, m.BundlePiece) and message.offset == self.offset:
            self.digest = message.digest
            self.offset += len(message.content)
            if self.offset <= message.manifest_nbytes:
                self._take_manifest(message)
            self.ask()
        elif isinstance(message, m.Registered):
            self.is_registered = True
        elif isinstance(message, m.Refused):
            raise SystemExit(f"refused: {message}")

    def _take_manifest(self, piece: m.BundlePiece) -> None:
        self.begun += piece.content
        if len(self.begun) == piece.manifest_nbytes:
            self.end = piece.manifest_nbytes + sum(file.nbytes for file in Manifest.decode(bytes(self.begun)).files)


def _join(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, builder: str, count: int) -> dict[str, float]:
    """Let so many hosts join, and leave."""
    poller, hosts = zmq.Poller(), {}
    for number in range(1, count + 1):
        socket = connect_dealer(context, endpoint, None, secrets.token_bytes(16))
        hosts[socket] = _Host(number, builder, socket)
        poller.register(socket, zmq.POLLIN)
    began_s = time.monotonic()
    for host in hosts.values():
        host.ask()
    fetched_s = 0.0
    while not all(host.is_registered for host in hosts.values()):
        for socket, _ in poller.poll(10_000):
            for frames in read_waiting(socket):
                hosts[socket].take(decode(frames[0].buffer))
        if not fetched_s and all(host.offset >= host.end for host in hosts.values()):
            fetched_s = time.monotonic() - began_s
    found = {
        "seconds": time.monotonic() - began_s,
        "fetched_s": fetched_s,
        "bundle_mb": max(host.offset for host in hosts.values()) / 1e6,
    }
    for host in hosts.values():
        host.say(m.Leave(worker=f"worker-{host.number}", incarnation=host.incarnation))
        host.socket.close(linger=1000)
    return found


def main() -> None:
    """Join whenever told to."""
    endpoint, builder, count = sys.argv[1:]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * int(count) + 16)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(_join(context, endpoint, builder, int(count))), flush=True)


if __name__ == "__main__":
    main()
