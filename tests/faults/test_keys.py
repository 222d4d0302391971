"""Keys that are unknown, of the wrong role, or taken out while their holder is connected."""

from __future__ import annotations

import operator
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import zmq

import trainer_client
from shared.keys import ClientKeys, make_keys
from shared.sockets import connect_dealer
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.shared.wire.examples import EXAMPLES
from tests.support.forked import run_module
from tests.support.loaders import Loaders, ask, running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.wire.message_parts import Role
    from shared.wire.messages import Message

    Speak = Callable[[Role, Role, Message], Message]

SAID = {type(message): message for message in EXAMPLES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job under keys, and a stranger's keys with the public halves of the job's servers."""
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "keys")
    make_guest(folder, "stranger")
    return folder


def make_guest(folder: Path, name: str) -> Path:
    """Keys of their own, and what they need to talk to our loaders."""
    make_keys(folder / name)
    for role in ("coordinator", "worker"):
        (folder / name / f"{role}.key").write_bytes((folder / "keys" / f"{role}.key").read_bytes())
    return folder / name


@contextmanager
def noticed(loaders: Loaders) -> Iterator[None]:
    """Coordinator and workers have seen the change of allowed keys that the block makes."""
    word = "allowed keys were read"
    seen = loaders.text().count(word)
    yield
    wait_until(lambda: loaders.text().count(word) >= seen + 3, "all three have read the keys again")


def allow(guest: Path, allowed: Path) -> None:
    """Put the guest's key there at once, so that nobody reads it half written, and then again."""
    draft = guest / "draft"
    draft.write_bytes((guest / "trainer.key").read_bytes())
    draft.replace(allowed)


def read_for_ever(feed: trainer_client.Feed) -> None:
    while True:
        list(feed)


@pytest.fixture(scope="module")
def loaders(folder: Path) -> Iterator[Loaders]:
    with running(write_job(folder, job='keys = "keys"')) as loaders:
        yield loaders


@pytest.fixture
def worker(loaders: Loaders, folder: Path) -> str:
    """The endpoint of one of the workers."""

    def workers() -> list[dict[str, str]]:
        known: list[dict[str, str]] = ask(loaders.endpoint, keys=str(folder / "keys"))["workers"]
        return known

    wait_until(lambda: len(workers()) == 2, "both workers are registered")
    return workers()[0]["endpoint"]


@pytest.fixture
def speak(loaders: Loaders, folder: Path, worker: str) -> Iterator[Speak]:
    """What a server answers to a message under the pair of a role."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def speak_to(server: Role, role: Role, message: Message) -> Message:
        keys = ClientKeys.read(folder / "keys", role, to=server)
        endpoint = worker if server == "worker" else loaders.endpoint
        with connect_dealer(context, endpoint, keys, secrets.token_bytes(16)) as dealer:
            dealer.setsockopt(zmq.SNDTIMEO, 60_000)
            dealer.send(encode(message))
            assert dealer.poll(60_000)
            return decode(dealer.recv())

    yield speak_to
    context.term()


def counted(folder: Path, server: Role, name: str, **labels: str) -> float:
    """What servers of a role have counted."""
    found = [one for one in read_targets(folder / ".stoker/tones/targets").values() if one["role"] == server]
    return sum(total(fetch_metrics(one["address"]), name, **labels) for one in found)


@pytest.mark.fault(26)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_whose_key_is_unknown_is_not_served(loaders: Loaders, folder: Path, shared_memory: bool) -> None:
    before = refused_by_reason(folder)
    for keys in ("", str(folder / "stranger")):
        with pytest.raises(trainer_client.LostError, match="got no answer"):
            trainer_client.connect(loaders.endpoint, keys=keys, connect_timeout_s=2.0)
    with trainer_client.connect(loaders.endpoint, keys=str(folder / "keys"), shared_memory=shared_memory) as feed:
        assert len(list(feed)) > 5
    wait_until(lambda: all(map(operator.gt, refused_by_reason(folder), before)), "both are counted")


def refused_by_reason(folder: Path) -> tuple[float, float]:
    """How many with an unknown key the coordinator has not let in, and how many without: either side notices first."""
    unknown, other, ended = (
        counted(folder, "coordinator", "stoker_connection_changes_total", kind=kind)
        for kind in ("unknown_key", "not_understood", "unfinished")
    )
    return unknown, other + ended


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    ("server", "role", "kind"),
    [
        ("coordinator", "worker", m.Attach),
        ("coordinator", "worker", m.Detach),
        ("coordinator", "coordinator", m.Progress),
        ("coordinator", "trainer", m.Register),
        ("coordinator", "trainer", m.Beat),
        ("coordinator", "trainer", m.Culprit),
        ("coordinator", "trainer", m.Leave),
        ("coordinator", "trainer", m.Forgive),
        ("worker", "worker", m.Hello),
        ("worker", "coordinator", m.Want),
    ],
)
def test_a_key_of_another_role_is_refused_and_counted(
    speak: Speak, folder: Path, server: Role, role: Role, kind: type[Message]
) -> None:
    before = counted(folder, server, "stoker_wrong_roles_total")
    answer = speak(server, role, SAID[kind])
    assert isinstance(answer, m.NotAttached if kind is m.Attach else m.Refused)
    assert answer.code == "role"
    assert answer.got == f"{kind.kind} with a key in allowed/{role}"
    assert counted(folder, server, "stoker_wrong_roles_total") == before + 1


@pytest.mark.fault(26)
def test_a_trainer_with_a_workers_pair_is_told_what_to_do(loaders: Loaders, folder: Path, tmp_path: Path) -> None:
    for name in ("coordinator.key", "worker.key"):
        (tmp_path / name).write_bytes((folder / "keys" / name).read_bytes())
    (tmp_path / "trainer.key_secret").write_bytes((folder / "keys/worker.key_secret").read_bytes())
    with pytest.raises(
        trainer_client.RefusedError,
        match=r"expected a key in allowed/trainer, got Attach with a key in allowed/worker\. Use the pair of that role",
    ):
        trainer_client.connect(loaders.endpoint, keys=str(tmp_path))


@pytest.mark.fault(26)
def test_a_worker_with_a_trainers_pair_is_told_what_to_do(loaders: Loaders, folder: Path) -> None:
    (folder / "other").mkdir()
    for name, held in (("coordinator.key", "coordinator.key"), ("worker.key_secret", "trainer.key_secret")):
        (folder / "other" / name).write_bytes((folder / "keys" / held).read_bytes())
    job = folder / "other.toml"
    job.write_text((folder / "job.toml").read_text().replace('keys = "keys"', 'keys = "other"'))
    where = ("--coordinator", loaders.endpoint, "--listen", "tcp://127.0.0.1:*")
    code, _, errors = run_module("loader_server", "worker", str(job), *where)
    assert code == 4
    assert "expected a key in allowed/worker, got Register with a key in allowed/trainer" in errors


@pytest.mark.fault(26)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_key_that_is_taken_out_ends_what_its_holder_had_begun(
    loaders: Loaders, folder: Path, worker: str, shared_memory: bool
) -> None:
    """At once, on its open connections; whoever has another key reads on. Put back, it counts again."""
    guest = make_guest(folder, f"guest-{shared_memory}")
    allowed = folder / f"keys/allowed/trainer/{guest.name}.key"
    with noticed(loaders):
        allow(guest, allowed)
    how = {"stream": "dev", "shared_memory": shared_memory, "prefetch": 2}
    with trainer_client.connect(loaders.endpoint, keys=str(folder / "keys"), **how) as ours:
        mine = iter(ours)
        next(mine)
        with trainer_client.connect(loaders.endpoint, keys=str(guest), **how) as theirs:
            next(iter(theirs))
            with noticed(loaders):
                allowed.unlink()
            with pytest.raises(trainer_client.RefusedError, match="a key that is not allowed, or no longer"):
                read_for_ever(theirs)
        with pytest.raises(trainer_client.LostError):
            trainer_client.connect(loaders.endpoint, keys=str(guest), connect_timeout_s=0.7)
        assert len(list(mine)) > 5
    with noticed(loaders):
        allow(guest, allowed)
    with trainer_client.connect(loaders.endpoint, keys=str(guest), **how) as theirs:
        assert len(list(theirs)) > 5
