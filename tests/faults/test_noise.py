"""Noise at every port of coordinator and worker, with keys and without, while a feed reads: dropped, and counted."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
import zmq

import trainer_client
from shared.keys import make_keys
from shared.sockets import MAX_REQUEST
from tests.support.loaders import Loaders, running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets, total
from tests.support.zmtp import GREETING, frame, ping, raw_client, ready, reset

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module", params=["keys", "open"])
def loaders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "keys":
        make_keys(folder / "keys")
    with running(write_job(folder, job='keys = "keys"' if request.param == "keys" else ""), workers=1) as loaders:
        yield loaders


def _servers(loaders: Loaders) -> list[psutil.Process]:
    return [loaders.coordinator(), *loaders.workers()]


def _endpoints(loaders: Loaders) -> list[str]:
    """All that the servers listen at: messages, sealed payloads, metrics."""
    return [
        f"tcp://127.0.0.1:{one.laddr.port}"
        for process in _servers(loaders)
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]


def _noise(chance: random.Random) -> Iterator[bytes]:
    """What a raw client sends after its greeting, or instead of one."""
    yield chance.randbytes(3000)
    yield b"\xff" + chance.randbytes(300)
    yield GREETING[:40]
    for _ in range(5):
        yield GREETING + ready() + chance.randbytes(chance.randrange(1, 500))
    yield GREETING + ready() + frame(chance.randbytes(2 * MAX_REQUEST))
    yield GREETING + ready() + frame(b"x" * 200)[:50]
    yield GREETING + ready() + b"".join(frame(chance.randbytes(9), more=True) for _ in range(20_000)) + frame(b"")
    yield GREETING + ready() + (3 * frame(b"x") + ping(ttl_s=10)) * 1000


def _send(client: socket.socket, sent: bytes) -> None:
    client.settimeout(2.0)
    with contextlib.suppress(OSError):  # it was hung up on, or is not read
        client.sendall(sent)


def _disturb(endpoints: list[str], chance: random.Random, all_sent: threading.Event, over: threading.Event) -> None:
    """Every kind of noise at every port, hanging up in either way; what was sent last is there until it is `over`."""
    for endpoint in endpoints:
        for sent in _noise(chance):
            with raw_client(endpoint, greets=False) as client:
                _send(client, sent)
                if chance.random() < 0.5:
                    reset(client)
    with zmq.Context() as context, contextlib.ExitStack() as dealers:
        for endpoint in endpoints:
            dealer = dealers.enter_context(context.socket(zmq.DEALER))
            dealer.linger = 0
            dealer.connect(endpoint)
            with contextlib.suppress(zmq.Again):  # it was not let in, and libzmq gave the endpoint up
                for _ in range(100):
                    noise = [chance.randbytes(chance.randrange(200)) for _ in range(3)]
                    dealer.send_multipart(noise, zmq.DONTWAIT)
        all_sent.set()
        over.wait()


def _counted(loaders: Loaders, name: str, **labels: str) -> list[float]:
    """A counter's sum at each server."""
    found = read_targets(loaders.log.parent / ".stoker/tones/targets").values()
    return [total(fetch_metrics(target["address"]), name, **labels) for target in found]


def _epoch(feed: trainer_client.Feed) -> list[tuple[int, int]]:
    return [(batch.number, batch.digest) for batch in feed]


@pytest.mark.fault(25)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_noise_on_every_socket_is_dropped_and_counted(loaders: Loaders, shared_memory: bool) -> None:
    keys = loaders.log.parent / "keys"
    how = {"stream": "dev", "keys": str(keys) if keys.exists() else "", "shared_memory": shared_memory}
    endpoints, servers = _endpoints(loaders), _servers(loaders)
    assert len(endpoints) == 4 + keys.exists()
    changes = "stoker_connection_changes_total"
    before = {kind: _counted(loaders, changes, kind=kind) for kind in ("ended", "not_understood", "unfinished")}
    garbage = _counted(loaders, "stoker_garbage_messages_total")
    with trainer_client.connect(loaders.endpoint, **how) as feed, _noisy(endpoints) as is_sent:
        calm = _epoch(feed)

        def all_was_sent() -> bool:
            assert _epoch(feed) == calm
            return is_sent()

        wait_until(all_was_sent, "all was sent", timeout_s=240)
        if not keys.exists():
            wait_until(lambda: _rose(garbage, _counted(loaders, "stoker_garbage_messages_total"), 100), "it is counted")
    with trainer_client.connect(loaders.endpoint, **how) as newcomer:
        assert _epoch(newcomer) == calm
    assert _servers(loaders) == servers, "nobody had to be replaced"
    assert "died" not in loaders.text()

    def rose(kind: str, least: int) -> bool:
        return _rose(before[kind], _counted(loaders, changes, kind=kind), least)

    wait_until(lambda: rose("ended", 10), "connections that ended are counted")
    wait_until(lambda: rose("unfinished", 1), "those that did not end their handshake are counted")
    if keys.exists():
        wait_until(lambda: rose("not_understood", 5), "those without keys are counted")


@contextlib.contextmanager
def _noisy(endpoints: list[str]) -> Iterator[Callable[[], bool]]:
    """Disturb them for the length of a block, or longer; whether all was sent."""
    all_sent, over = threading.Event(), threading.Event()
    noise = threading.Thread(target=_disturb, args=(endpoints, random.Random(25), all_sent, over), daemon=True)
    noise.start()
    try:
        yield lambda: all_sent.is_set() or not noise.is_alive()
    finally:
        over.set()
        noise.join(60)


def _rose(before: list[float], after: list[float], least: int) -> bool:
    """Whether each of these rose by so much."""
    return all(now >= then + least for now, then in zip(after, before, strict=True))
