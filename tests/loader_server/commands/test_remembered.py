"""`loader-server forgive`: through the coordinator while one runs, else in the journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import zmq

from loader_server.cli import main
from loader_server.commands.remembered import recall
from loader_server.coordinator.events import Advanced, CulpritFound
from loader_server.coordinator.journal import Journal
from loader_server.job_file import JobFile
from shared.keys import ClientKeys, make_keys
from tests.support.coordinator import culprit
from tests.support.loaders import Loaders, running, wait_until, write_job
from tests.support.strays import Registrar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOUND = (
    CulpritFound("train", "/a b.flac 8123 17", "SIGSEGV, SIGSEGV"),
    CulpritFound("train", "/c.flac 9 9", "SIGABRT, exit 3"),
    CulpritFound("dev", "/c.flac 9 9", "SIGABRT, exit 3"),
)


def run(capsys: pytest.CaptureFixture[str], job: Path, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["forgive", str(job), *arguments])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def listed(capsys: pytest.CaptureFixture[str], job: Path, *arguments: str) -> list[tuple[str, str]]:
    code, out, err = run(capsys, job, "--json", *arguments)
    assert code == 0, err
    report = json.loads(out)
    assert report["cut"] == 0
    return [(one["stream"], one["identity"]) for one in report["convictions"]]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, samples=20)


def path_of(job: Path) -> Path:
    return job.parent / ".stoker" / "tones" / "journal.sqlite"


@pytest.fixture
def journal(job: Path) -> Path:
    journal = Journal(path_of(job))
    journal.write([Advanced("train", 0, 7), *FOUND])
    journal.close()
    return path_of(job)


@pytest.mark.fault(36)
class TestWithoutACoordinator:
    def test_a_job_that_never_ran_has_none_and_none_is_made(self, capsys, job):
        assert run(capsys, job) == (0, "No sample is known to kill decoders.\n", "")
        assert run(capsys, job, "--all", "--json") == (0, '{"forgiven": 0}\n', "")
        assert not path_of(job).parent.exists()

    def test_they_are_listed(self, capsys, job, journal):
        code, out, _ = run(capsys, job)
        assert code == 0
        assert out.splitlines() == [
            "/c.flac 9 9  (stream dev; SIGABRT, exit 3)",
            "/a b.flac 8123 17  (stream train; SIGSEGV, SIGSEGV)",
            "/c.flac 9 9  (stream train; SIGABRT, exit 3)",
        ]
        assert listed(capsys, job, "--stream", "dev") == [("dev", "/c.flac 9 9")]

    @pytest.mark.parametrize(
        ("arguments", "forgotten"),
        [
            (["/c.flac 9 9"], (2, [("train", "/a b.flac 8123 17")])),
            (["/c.flac 9 9", "--stream", "dev"], (1, [("train", "/a b.flac 8123 17"), ("train", "/c.flac 9 9")])),
            (["/c.flac 9 9", "/a b.flac 8123 17"], (3, [])),
            (["--all", "--stream", "train"], (2, [("dev", "/c.flac 9 9")])),
            (["--all"], (3, [])),
        ],
    )
    def test_those_named_are_forgotten_for_good(self, capsys, job, journal, arguments, forgotten):
        count, left = forgotten
        assert run(capsys, job, *arguments) == (0, f"Forgotten: {count}. They are used again.\n", "")
        assert listed(capsys, job) == left
        facts = Journal(journal)
        assert Advanced("train", 0, 7) in set(facts.read_facts()), "nothing else is"
        facts.close()

    def test_one_that_is_not_known_is_an_error(self, capsys, job, journal):
        code, _, err = run(capsys, job, "/d.flac 1 1", "--stream", "dev")
        assert code == 1
        assert "expected a sample that is known to kill decoders, got '/d.flac 1 1'" in err
        assert "Without an argument the command lists them" in err
        assert len(listed(capsys, job)) == 3

    def test_one_that_is_named_twice_is_forgotten_once(self, capsys, job, journal):
        code, _, err = run(capsys, job, "/c.flac 9 9", "/c.flac 9 9")
        assert (code, "known to kill decoders, got '/c.flac 9 9'" in err) == (1, True)
        assert len(listed(capsys, job)) == 1

    def test_a_stream_that_the_job_does_not_have_is_an_error(self, capsys, job, journal):
        code, _, err = run(capsys, job, "--all", "--stream", "trian")
        assert (code, "expected one of the streams train, dev, got trian" in err) == (1, True)

    def test_a_coordinator_that_just_starts_has_it(self, capsys, job, journal):
        held = Journal(journal)
        code, _, err = run(capsys, job)
        held.close()
        assert code == 1
        assert "another one that holds the journal" in err


@pytest.mark.fault(36)
class TestWithACoordinator:
    @pytest.fixture(params=["open", "keys"])
    def loaders(self, request, job, journal) -> Iterator[Loaders]:
        if request.param == "keys":
            make_keys(job.parent / "keys")
            job.write_text(job.read_text().replace("seed = 7", 'seed = 7\nkeys = "keys"'))
        with running(job, workers=1) as loaders:
            yield loaders

    def test_it_is_asked_and_tells_the_workers(self, capsys, job, loaders):
        assert len(listed(capsys, job)) == 3
        assert recall(JobFile(job))[1] == {(one.stream, one.identity) for one in FOUND}
        keys = job.parent / "keys"
        own = ClientKeys.read(keys, "worker", to="coordinator") if keys.exists() else None
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        registrar = Registrar(context, loaders.endpoint, job, own)
        registrar.register(1, "tcp://127.0.0.1:9")
        registrar.convict(culprit("/e.flac 2 2"))
        wait_until(lambda: len(listed(capsys, job)) == 4, "a fourth one is convicted")
        registrar.close()
        context.term()
        assert run(capsys, job, "/c.flac 9 9") == (0, "Forgotten: 2. They are used again.\n", "")
        assert listed(capsys, job) == [("train", "/a b.flac 8123 17"), ("train", "/e.flac 2 2")]
        loaders.close()
        assert listed(capsys, job) == [("train", "/a b.flac 8123 17"), ("train", "/e.flac 2 2")]
