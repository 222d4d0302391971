"""The coordinator's faults, each with a real one: lost answers, stale and doubled traffic, restarts, its disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest

import trainer_client
from loader_server.building.fingerprint import builder_fingerprint
from loader_server.coordinator.events import Advanced
from loader_server.coordinator.journal import Journal
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.wire import messages as m
from shared.wire.codec import encode
from tests.support.coordinator import attach, culprit, progress, register
from tests.support.disk import small_disk
from tests.support.loaders import ROOT, Loaders, ask, running, wait_until, write_job
from tests.support.peer import Peer, peers
from tests.support.proxy import DOWN, UP, Proxy
from tests.support.scraping import fetch_metrics, read_targets
from tests.support.zmtp import frame, raw_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: As messages of `tests.support.coordinator` are, but for this job.
JOB = {"job": "tones"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"), job='heartbeat_timeout = "1 s"')


@pytest.fixture(scope="module")
def loaders(job: Path) -> Iterator[Loaders]:
    with running(job, workers=1) as loaders:
        yield loaders


@pytest.fixture
def peer(loaders: Loaders) -> Iterator[Callable[[], Peer]]:
    with peers() as make:
        yield lambda: make(loaders.endpoint)


@pytest.fixture(autouse=True)
def nobody_left(loaders: Loaders) -> Iterator[None]:
    """Tests leave no trainer behind that the next one would have to agree with."""
    yield
    wait_until(lambda: not _trainers(loaders), "trainers of the test are gone")


def _trainers(loaders: Loaders) -> list[dict[str, object]]:
    return [one for stream in ask(loaders.endpoint)["streams"].values() for one in stream["trainers"]]


def _read_for_ever(feed: trainer_client.Feed) -> NoReturn:
    while True:
        _epoch(feed)


def _epoch(feed: trainer_client.Feed) -> list[tuple[int, int]]:
    return [(batch.number, batch.digest) for batch in feed]


def _read_epoch(endpoint: str, stream: str) -> list[tuple[int, int]]:
    with trainer_client.connect(endpoint, stream=stream) as feed:
        return _epoch(feed)


@pytest.mark.fault(22)
def test_an_attach_whose_answers_are_lost_is_counted_once(loaders: Loaders, read) -> None:
    calm, before = read(loaders), ask(loaders.endpoint)
    with Proxy(loaders.endpoint) as proxy, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(trainer_client.connect, proxy.endpoint)
        wait_until(lambda: proxy.ways[DOWN].came > 100, "the connection is up")
        with connecting.result(60) as feed:
            proxy.hold(DOWN)
            restoring = pool.submit(lambda: (feed.restore({**feed.state(), "epoch": 1}), _epoch(feed))[1])
            wait_until(
                lambda: ask(loaders.endpoint)["reattaches"] > before["reattaches"], "the second attach came through"
            )
            proxy.cut()
            proxy.heal()
            second = restoring.result(60)
        assert [number for number, _ in second] == list(range(len(second)))
        assert second != calm
        after = ask(loaders.endpoint)
        assert after["attaches"] == before["attaches"] + 1
        assert after["reattaches"] == before["reattaches"] + 1


@pytest.mark.fault(23)
def test_a_trainer_that_was_cut_off_meanwhile_hears_that_it_was_superseded(loaders: Loaders, read) -> None:
    calm, before = read(loaders), ask(loaders.endpoint)["stale"]
    with Proxy(loaders.endpoint) as proxy, trainer_client.connect(proxy.endpoint) as older:
        proxy.hold(UP, DOWN)
        with trainer_client.connect(loaders.endpoint) as newer:
            came = proxy.ways[UP].came
            wait_until(lambda: proxy.ways[UP].came > came + 100, "the older one has said how far it is")
            proxy.heal()
            with pytest.raises(trainer_client.RefusedError, match=r"to be the only trainer of rank 0, got a newer one"):
                _read_for_ever(older)
            assert _epoch(newer) == calm
        wait_until(lambda: ask(loaders.endpoint)["stale"] > before, "what it said came, and was counted")


@pytest.mark.fault(37)
def test_a_late_answer_names_the_attach_that_it_answers(loaders: Loaders, peer: Callable[[], Peer]) -> None:
    trainer, early = peer(), attach(serial=1, **JOB)
    at = trainer.ask(early).cursor
    later = replace(early, serial=2, cursor=replace(at, epoch=2, number=3))
    trainer.send(later)
    trainer.send(early)
    trainer.send(later)
    answers = [trainer.hear(), trainer.hear()]
    assert [(one.serial, one.cursor.epoch, one.cursor.number) for one in answers] == [(2, 2, 3), (2, 2, 3)]
    assert [(one["epoch"], one["number"]) for one in _trainers(loaders)] == [(2, 3)]
    trainer.send(m.Detach(stream="train", rank=0, incarnation=early.incarnation))


@pytest.mark.fault(24)
def test_frames_doubled_and_shuffled_leave_one_trainer_where_it_stands(
    loaders: Loaders, peer: Callable[[], Peer]
) -> None:
    chance = random.Random(7)
    trainers = [peer(), peer()]
    for incarnation in range(1, 9):
        frames = [attach(incarnation=incarnation, serial=serial, **JOB) for serial in (1, 2)]
        frames += [progress(0, 0, number, incarnation=incarnation) for number in range(3)]
        frames *= 2
        chance.shuffle(frames)
        for message in frames:
            chance.choice(trainers).send(message)
    sitting = [one["number"] for one in _settled(loaders, trainers)]
    assert len(sitting) == 1
    assert sitting[0] <= 2
    for incarnation in range(1, 9):
        trainers[0].send(m.Detach(stream="train", rank=0, incarnation=incarnation))


def _settled(loaders: Loaders, trainers: list[Peer]) -> list[dict[str, object]]:
    """The trainers, once all that was sent was taken in: an answer to a question comes after those before it."""
    for trainer in trainers:
        answer = trainer.ask(m.StatusQuery())
        while not isinstance(answer, m.Status):
            answer = trainer.hear()
    return _trainers(loaders)


@pytest.mark.fault(39)
def test_a_nonsense_endpoint_is_refused_and_no_feed_hears_of_it(loaders: Loaders, peer: Callable[[], Peer]) -> None:
    with trainer_client.connect(loaders.endpoint) as feed:
        for endpoint in ("bogus", "tcp://*:1", "tcp://127.0.0.1:0", "tcp://[::]:7400", "tcp://nowhere:x"):
            refused = peer().ask(register(endpoint=endpoint))
            assert (refused.code, refused.got) == ("endpoint", f"{endpoint!r} from w0")
        assert len(_epoch(feed)) > 5
        assert len(ask(loaders.endpoint)["workers"]) == 1


def _worker(job: Path, loaders: Loaders, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "loader_server", "worker", str(job), "--coordinator", loaders.endpoint]
    return subprocess.Popen(
        [*command, *arguments], cwd=job.parent, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.fault(40)
def test_a_worker_of_another_job_waits_and_is_told_no_fingerprint(loaders: Loaders, job: Path) -> None:
    other = job.with_name("other.toml")
    other.write_text(job.read_text().replace("seed = 7", "seed = 8"))
    worker = _worker(other, loaders, "--name", "stranger")
    try:
        wait_until(lambda: ask(loaders.endpoint)["failing"], "it says that it cannot serve")
        assert worker.poll() is None, "its coordinator may be replaced"
    finally:
        worker.terminate()
        said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "a worker that builds the same bytes as the coordinator's machine would" in said
    (line,) = [line for line in loaders.text().splitlines() if "worker builds other bytes" in line]
    logged = json.loads(line)
    assert logged["worker"] == "stranger"
    assert not re.search(r"\b[0-9a-f]{16,}\b", said), "neither of the fingerprints, nor a part's"
    assert "stranger" not in [one["name"] for one in ask(loaders.endpoint)["workers"]]


@pytest.mark.fault(47)
def test_two_workers_of_one_name_both_serve(loaders: Loaders, job: Path) -> None:
    (first,) = ask(loaders.endpoint)["workers"]
    second = _worker(job, loaders, "--name", first["name"])
    try:
        wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "both are there")

        def both_build() -> bool:
            with trainer_client.connect(loaders.endpoint) as feed:
                assert len(_epoch(feed)) > 5
            built = [one["built"] for one in ask(loaders.endpoint)["workers"] if one["endpoint"] != first["endpoint"]]
            return len(built) == 1 and built[0] > 0

        wait_until(both_build, "the second builds as well")
        assert {one["name"] for one in ask(loaders.endpoint)["workers"]} == {first["name"]}
    finally:
        second.terminate()
        second.communicate(timeout=60)
    assert second.returncode == 0
    wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 1, "it left")
    assert ask(loaders.endpoint)["workers"][0]["endpoint"] == first["endpoint"], "and took nobody with it"


def _kill_coordinator(loaders: Loaders) -> None:
    """Kill -9; returns when the next one serves."""
    killed = loaders.coordinator()
    killed.kill()
    wait_until(
        lambda: [one for one in loaders._children("coordinator") if one.pid != killed.pid], "there is another one"
    )
    wait_until(lambda: ask(loaders.endpoint)["workers"], "workers are registered again")


@pytest.mark.fault(48)
def test_the_newer_trainer_wins_though_the_older_one_is_the_first_to_come_back(loaders: Loaders, read) -> None:
    calm = read(loaders)
    with (
        Proxy(loaders.endpoint) as to_older,
        Proxy(loaders.endpoint) as to_newer,
        trainer_client.connect(to_older.endpoint) as older,
    ):
        to_older.hold(UP, DOWN)
        with trainer_client.connect(to_newer.endpoint) as newer:
            to_newer.hold(UP, DOWN)
            _kill_coordinator(loaders)
            to_older.cut()
            to_older.heal()
            with pytest.raises(trainer_client.RefusedError, match=r"to be the only trainer of rank 0, got a newer one"):
                _read_for_ever(older)
            assert _trainers(loaders) == [], "the newer one has not come back yet"
            to_newer.cut()
            to_newer.heal()
            assert _epoch(newer) == calm
            wait_until(lambda: len(_trainers(loaders)) == 1, "it is back")


def _builder(path: Path) -> str:
    """The fingerprint by which a worker belongs to a job."""
    job = JobFile(path)
    job.make_importable()
    streams = {name: Stream(job, name) for name in job.recipes}
    try:
        return builder_fingerprint(streams, job.versions_of_sent())
    finally:
        for stream in streams.values():
            stream.close()


@pytest.mark.slow
@pytest.mark.fault(52)
def test_a_thousand_readers_and_many_culprits_are_cut_to_what_a_message_takes(
    loaders: Loaders, job: Path, peer: Callable[[], Peer]
) -> None:
    process, worker, readers = loaders.coordinator(), peer(), 1000
    registers = register("said", 1, builder=_builder(job), endpoint="tcp://127.0.0.1:1")

    some = itertools.cycle(range(0, 300, 30))

    def convict() -> bool:
        """Say some of them, then the next: many at once that are known, as workers never say, would be cut off."""
        worker.send(registers)
        for number in range(first := next(some), first + 30):
            worker.send(culprit(f"{number:04d}" + "x" * 3990))
        report = ask(loaders.endpoint)
        return bool(len(report["culprits"]) + report["cut"].get("culprits", 0) == 300)

    wait_until(convict, "all are known")
    worker.send(m.Leave(worker="said", incarnation=1))
    with contextlib.ExitStack() as stack:
        for number in range(readers):  # a connection speaks for one of them
            client = stack.enter_context(raw_client(loaders.endpoint, identity=secrets.token_bytes(16)))
            client.sendall(frame(encode(attach(stream="dev", incarnation=number + 1, name="é" * 200, **JOB))))
        wait_until(lambda: ask(loaders.endpoint)["streams"]["dev"]["attached"] > readers // 2, "many are attached")
        report = ask(loaders.endpoint)
    dev = report["streams"]["dev"]
    # On a busy machine the first are given up for silence before the last have come.
    assert 100 < dev["attached"] == len(dev["trainers"]) + report["cut"]["trainers"]
    assert 10 < 300 - report["cut"]["culprits"] == len(report["culprits"])
    with trainer_client.connect(loaders.endpoint) as feed:
        assert len(_epoch(feed)) > 5
    assert loaders.coordinator() == process
    _kill_coordinator(loaders)
    assert 10 < 300 - ask(loaders.endpoint)["cut"]["culprits"] < 300, "it starts with them, too"
    assert peer().ask(m.Forgive(stream="", identity="")) == m.Forgiven(count=300)
    assert ask(loaders.endpoint)["culprits"] == []


@pytest.mark.fault(14)
@pytest.mark.parametrize("kind", ["file system", "limit"])
def test_with_a_full_disk_training_goes_on_and_nothing_is_lacking_once_there_is_room(tmp_path: Path, kind: str) -> None:
    with small_disk(tmp_path / "disk", "4m", skip=kind == "file system") as disk:
        job = write_job(tmp_path, samples=40, job='heartbeat_timeout = "2 s"\nstate = "disk"')
        with running(job, workers=1) as loaders, peers() as make:
            state = disk.folder / "tones"

            def lacking() -> float:
                of_coordinator = read_targets(state / "targets")["coordinator"]["address"]
                return fetch_metrics(of_coordinator)["stoker_journal_waiting_facts", ()]

            trainer, at = make(loaders.endpoint), 0
            assert isinstance(trainer.ask(attach(**JOB)), m.Attached)
            make_room = disk.fill() if kind == "file system" else _limit(loaders, state / "journal.sqlite-wal")
            while not lacking():
                for _ in range(20):
                    at += 1
                    trainer.ask(progress(0, 0, at, members=0))
            assert "journal cannot be written" in loaders.text()
            with ThreadPoolExecutor(1) as pool:
                dev = pool.submit(_read_epoch, loaders.endpoint, "dev")
                while wait([dev], timeout=0.5).not_done:  # on a busy machine it would be given up for silence meanwhile
                    trainer.ask(progress(0, 0, at, members=0))
            assert len(dev.result()) > 2
            at += 1
            trainer.ask(progress(0, 0, at))
            assert ask(loaders.endpoint)["streams"]["train"]["number"] == at
            make_room()
            wait_until(lambda: lacking() == 0, "all is written")
            loaders.coordinator().kill()
        journal = Journal(state / "journal.sqlite")
        assert Advanced("train", 0, at) in set(journal.read_facts())
        journal.close()


def _limit(loaders: Loaders, log: Path) -> Callable[[], None]:
    """No file of the coordinator may grow any more."""
    process = loaders.coordinator()
    limit = max(log.stat().st_size, 2**16)
    process.rlimit(psutil.RLIMIT_FSIZE, (limit, -1))
    return lambda: process.rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
