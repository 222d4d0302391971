"""Strangers at the door: garbage, other versions, wrong keys, open ports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

import trainer_client
from shared.wire.codec import VERSION, decode
from shared.wire.messages import Refused
from tests.support.loaders import Loaders, ask, running, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    with running(write_job(tmp_path_factory.mktemp("job"))) as loaders:
        yield loaders


def _endpoints(loaders: Loaders) -> list[str]:
    return [loaders.endpoint, *(worker["endpoint"] for worker in ask(loaders.endpoint)["workers"])]


@pytest.fixture
def dealer() -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    yield socket
    socket.close()
    context.term()


@pytest.mark.fault(25)
def test_garbage_on_every_socket_is_dropped_and_work_goes_on(loaders: Loaders, dealer: zmq.Socket[bytes]) -> None:
    for endpoint in _endpoints(loaders):
        dealer.connect(endpoint)
        for frame in (
            b"",
            b"\x93",
            os.urandom(1000),
            b"\xdd\xff\xff\xff\xff",
            b"\x91" * 5000,
            msgpack.packb([VERSION, "Want", {}]),
        ):
            dealer.send_multipart([frame] * (1 + len(frame) % 3))
        dealer.disconnect(endpoint)
    with trainer_client.connect(loaders.endpoint) as feed:
        assert len(list(feed)) > 5
    assert "died" not in loaders.text()


@pytest.mark.fault(28)
def test_another_version_is_refused_with_both_named(loaders: Loaders, dealer: zmq.Socket[bytes]) -> None:
    for endpoint in _endpoints(loaders):
        dealer.connect(endpoint)
        dealer.send(msgpack.packb([VERSION + 1, "Hello", {}]))
        assert dealer.poll(60_000)
        answer = decode(dealer.recv())
        assert isinstance(answer, Refused)
        assert (answer.code, answer.expected, answer.got) == (
            "version",
            f"protocol version {VERSION}",
            f"version {VERSION + 1}",
        )
        dealer.disconnect(endpoint)


def test_wrong_attachments_are_refused_with_the_remedy(loaders: Loaders) -> None:
    for how, wording in (
        ({"job": "other"}, "expected a trainer of job tones, got job other"),
        ({"stream": "trian"}, 'expected one of the streams "train", "dev", got "trian"'),
    ):
        with pytest.raises(trainer_client.RefusedError, match=wording):
            trainer_client.connect(loaders.endpoint, **how)
    with (
        trainer_client.connect(loaders.endpoint, world=1),
        pytest.raises(
            trainer_client.RefusedError,
            match=r"a world of at most group = 1 ranks, got a world of 2.*group = 2 in \[job\]",
        ),
    ):
        trainer_client.connect(loaders.endpoint, world=2)


def test_a_cursor_of_another_plan_is_refused(loaders: Loaders) -> None:
    with (
        trainer_client.connect(loaders.endpoint) as feed,
        pytest.raises(trainer_client.SettingsError, match="expected a cursor of plan_digest"),
    ):
        feed.restore({**feed.state(), "plan_digest": "0" * 32})


@pytest.mark.heritage("D2")
@pytest.mark.heritage("E17")
def test_nobody_there_is_an_error_after_bounded_tries() -> None:
    with pytest.raises(
        trainer_client.LostError,
        match=r"tcp://127.0.0.1:9: expected a coordinator that answers within 0.5 s, got no answer",
    ):
        trainer_client.connect("tcp://127.0.0.1:9", connect_timeout_s=0.5)


def test_a_bind_beyond_loopback_needs_keys_or_a_written_word(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=10)
    job.write_text(job.read_text().replace("127.0.0.1", "0.0.0.0"))
    with pytest.raises(
        AssertionError, match=r"expected keys, or a loopback address.*got tcp://0\.0\.0\.0:\* without keys.*--insecure"
    ):
        Loaders(job)
    with running(job, arguments=("--insecure",)) as loaders:
        near = loaders.endpoint.replace("0.0.0.0", "127.0.0.1")
        with trainer_client.connect(near) as feed:
            assert len(list(feed)) > 0
