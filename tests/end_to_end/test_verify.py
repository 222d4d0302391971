"""`trainer-client verify` on real loaders: what is equal, what differs, and that nobody is disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import xxhash

import trainer_client
from shared.keys import make_keys
from tests.support.forked import ROOT, run_module, start_module
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

NOISE = ("tests.support.transforms:noise", "logmel", "characters")


def verify(endpoint: str, *words: str, code: int = 0) -> dict[str, Any]:
    """Run it with --json; the document, which is empty if there is none."""
    ended, said, complained = run_module("trainer_client", "verify", endpoint, "--json", *words)
    assert ended == code, (said, complained)
    return json.loads(said) if said else {"error": complained}


def digests_of(endpoint: str, epoch: int = 0) -> list[int]:
    """What a trainer gets."""
    with trainer_client.connect(endpoint, verify=True) as feed:
        feed.restore(feed.state() | {"epoch": epoch})
        return [batch.digest for batch in feed]


def made_by_hand(digests: list[int]) -> str:
    """The digest as the page says it is made."""
    state = xxhash.xxh3_128()
    for number, digest in enumerate(digests):
        state.update(number.to_bytes(8, "little") + digest.to_bytes(8, "little"))
    return state.hexdigest()


@pytest.fixture(scope="module")
def other(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    """The same job on another fleet: its own copy of all files, and other workers."""
    folder = tmp_path_factory.mktemp("other") / "job"
    shutil.copytree(job.parent, folder, ignore=shutil.ignore_patterns(".stoker"))
    with running(folder / job.name, workers=1) as started:
        yield started


class TestEqual:
    def test_it_is_the_digest_of_what_trainers_get(self, loaders):
        document = verify(loaders.endpoint, "--epoch", "1")
        assert document["digest"] == made_by_hand(digests_of(loaders.endpoint, epoch=1))
        assert (document["group"], document["equal"], document["differ"]) == (4, True, 0)
        assert document["batches"] == ask(loaders.endpoint)["streams"]["train"]["batches"]

    def test_two_fleets_have_the_same(self, loaders, other):
        ours, theirs = verify(loaders.endpoint), verify(other.endpoint)
        assert ours["digest"] == theirs["digest"]
        assert verify(loaders.endpoint, "--against", other.endpoint)["against_digest"] == ours["digest"]
        assert verify(other.endpoint, "--against", ours["digest"])["equal"]

    def test_cuts_resumes_and_other_worlds_change_nothing(self, loaders):
        document = verify(loaders.endpoint, "--cut", "5", "--epochs", "2")
        assert (document["differ"], document["equal"]) == (0, True)
        assert document["cuts"] == sum(len(parts) - 1 for parts in document["parts"].values()) > 0
        assert {part["stop"] for part in document["parts"]["1"]} >= {document["epochs"][1]["batches"]}

    def test_a_stream_for_evaluation_is_read_once(self, loaders):
        assert verify(loaders.endpoint, "--stream", "dev", "--cut")["equal"]
        said = verify(loaders.endpoint, "--stream", "dev", "--epoch", "1", code=2)["error"]
        assert "it is for evaluation" in said

    def test_the_first_batches_alone(self, loaders):
        document = verify(loaders.endpoint, "--batches", "5", "--cut", "3")
        assert (document["batches"], document["equal"]) == (5, True)
        assert document["digest"] != verify(loaders.endpoint, "--batches", "6")["digest"]

    def test_what_people_see(self, loaders):
        code, said, complained = run_module("trainer_client", "verify", loaders.endpoint, "--cut")
        assert code == 0, complained
        assert f"digest {verify(loaders.endpoint)['digest']}\n" in said
        assert "read again: equal\n" in said

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["lockstep", "queue"])
    def test_the_mode_in_which_batches_are_shared_does_not_matter(self, tmp_path, mode):
        digests = []
        for name, stream in (("plain", ""), ("shared", f'mode = "{mode}"')):
            folder = tmp_path / name
            folder.mkdir()
            with running(write_job(folder, samples=40, transforms=NOISE, stream=stream), workers=1) as started:
                document = verify(started.endpoint, "--cut", "2")
                digests.append(document["digest"])
                assert (document["group"], document["equal"]) == (1, True)
        assert digests[0] == digests[1]

    @pytest.mark.slow
    @pytest.mark.parametrize("sent", ["", 'compression = "zstd"'])
    def test_under_keys_it_is_the_same(self, tmp_path, sent):
        make_keys(tmp_path / "keys")
        keys = ("--keys", str(tmp_path / "keys"))
        digests = []
        for name, own, words in (("open", "", ()), ("closed", f'keys = "{tmp_path / "keys"}"', keys)):
            folder = tmp_path / name
            folder.mkdir()
            with running(write_job(folder, samples=40, job=f"{own}\n{sent}"), workers=1) as started:
                digests.append(verify(started.endpoint, "--cut", "2", *words)["digest"])
        assert digests[0] == digests[1]


class TestDifferent:
    @pytest.mark.slow
    def test_another_seed_has_another_digest(self, loaders, job, tmp_path):
        folder = tmp_path / "job"
        shutil.copytree(job.parent, folder, ignore=shutil.ignore_patterns(".stoker"))
        path = folder / job.name
        path.write_text(path.read_text().replace("seed = 7", "seed = 8"))
        with running(path, workers=1) as started:
            document = verify(loaders.endpoint, "--against", started.endpoint, code=5)
            assert document["against_plan_digest"] != document["plan_digest"]
            assert document["differ"] > document["batches"] / 2
            assert verify(started.endpoint, "--against", document["digest"], code=5)["differ"] is None

    @pytest.mark.slow
    def test_changed_data_names_the_first_batch_that_differs(self, tmp_path):
        folders = [tmp_path / "one", tmp_path / "other"]
        for folder in folders:
            folder.mkdir()
        paths = [write_job(folder, samples=40) for folder in folders]
        manifest = folders[1] / "csv.csv"
        lines = manifest.read_text().splitlines()
        name, text = lines[7].rsplit(",", 1)
        lines[7] = f"{name},{text[1:]}{text[0]}x"
        manifest.write_text("\n".join(lines) + "\n")
        with running(paths[0], workers=1) as one, running(paths[1], workers=1) as two:
            document = verify(one.endpoint, "--against", two.endpoint, code=5)
            code, said, _ = run_module("trainer_client", "verify", one.endpoint, "--against", two.endpoint)
            pairs = list(zip(digests_of(one.endpoint), digests_of(two.endpoint), strict=True))
        differing = [(number, *pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]
        number, here, there = differing[0]
        assert document["first"] == {"epoch": 0, "number": number, "here": here, "there": there}
        assert (document["differ"], document["equal"], code) == (len(differing), False, 5)
        line = f"{len(differing)} batches differ, first batch {number} of epoch 0: {here:016x} here, {there:016x} there"
        assert line in said

    def test_another_group_is_not_comparable(self, loaders):
        said = verify(loaders.endpoint, "--group", "2", code=2)["error"]
        assert "read in groups of 2, got one that is read in groups of 4" in said
        assert verify(loaders.endpoint, "--group", "4")["group"] == 4

    def test_what_is_no_digest_is_wrong_usage(self, loaders):
        assert "32 hexadecimal digits" in verify(loaders.endpoint, "--against", "abc", code=2)["error"]

    def test_its_exit_code_stands_in_its_help(self):
        assert "Exit code 5: batches differ" in run_module("trainer_client", "verify", "--help")[1]


class _Training(threading.Thread):
    """Trains on and on, until it is told to end or fails; notes each batch and how long it waited for it."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.read: list[tuple[int, int]] = []
        self.waits_s: list[float] = []
        self.error: BaseException | None = None
        self.is_over = False
        self._endpoint = endpoint

    def run(self) -> None:
        try:
            with trainer_client.connect(self._endpoint) as feed:
                while not self.is_over:
                    began_s = time.perf_counter()
                    for batch in feed:
                        self.waits_s.append(time.perf_counter() - began_s)
                        self.read.append((batch.epoch, batch.number))
                        time.sleep(0.02)
                        began_s = time.perf_counter()
        except BaseException as error:
            self.error = error

    @property
    def epochs(self) -> int:
        return self.read[-1][0] if self.read else 0


@pytest.fixture
def training(loaders: Loaders) -> Iterator[_Training]:
    thread = _Training(loaders.endpoint)
    thread.start()
    wait_until(lambda: thread.epochs or thread.error, "it trains")
    yield thread
    thread.is_over = True
    thread.join(60)


def _refuse_gaps(training: _Training, batches: int) -> None:
    assert training.error is None
    assert training.read == [divmod(place, batches) for place in range(len(training.read))]


@pytest.mark.slow
class TestBesideATraining:
    def test_nothing_is_lost_or_repeated_and_it_is_shown_as_what_it_is(self, loaders, training):
        before, alone_s = training.epochs, statistics.median(training.waits_s)
        first = len(training.waits_s)
        process = start_verify(loaders, "--epochs", "20", "--cut", "4")
        shown = []
        while process.poll() is None:
            stream = ask(loaders.endpoint)["streams"]["train"]
            shown += stream["verifiers"]
            assert stream["attached"] == len(stream["trainers"]) == 1
        assert process.wait(60) == 0
        beside_s = statistics.median(training.waits_s[first:])
        assert beside_s < 10 * alone_s + 0.1, "a trainer waits as it does alone"
        assert {verifier["batches"] for verifier in shown} == {stream["batches"]}
        wait_until(lambda: training.epochs > before + 1 or training.error, "the training goes on")
        _refuse_gaps(training, ask(loaders.endpoint)["streams"]["train"]["batches"])

    def test_one_that_is_killed_leaves_nothing_behind(self, loaders, training):
        process = start_verify(loaders, "--epochs", "500")
        wait_until(lambda: ask(loaders.endpoint)["streams"]["train"]["verifiers"], "it reads")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: not ask(loaders.endpoint)["streams"]["train"]["verifiers"], "it is forgotten")
        wait_until(lambda: not any(one["waiting"] for one in ask(loaders.endpoint)["workers"]), "no want is left")
        before = training.epochs
        wait_until(lambda: training.epochs > before + 1 or training.error, "the training goes on")
        _refuse_gaps(training, ask(loaders.endpoint)["streams"]["train"]["batches"])

    def test_one_that_is_interrupted_ends_at_once_and_leaves(self, loaders, training):
        process = start_verify(loaders, "--epochs", "500")
        wait_until(lambda: ask(loaders.endpoint)["streams"]["train"]["verifiers"], "it reads")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert ask(loaders.endpoint)["streams"]["train"]["verifiers"] == []
        assert training.error is None


def start_verify(loaders: Loaders, *words: str) -> Any:
    command = ("trainer_client", "verify", loaders.endpoint, *words)
    log = loaders.log.parent / "verify.log"
    log.touch()
    return start_module(
        command, folder=loaders.log.parent, log=log, environment={**os.environ, "PYTHONPATH": str(ROOT)}
    )


@pytest.mark.slow
def test_an_elastic_run_neither_waits_for_it_nor_ends(tmp_path: Path) -> None:
    with running(write_job(tmp_path, samples=40, budget="2 s"), workers=1) as started:
        worlds: list[int] = []

        def train(feed: trainer_client.Feed) -> None:
            worlds.append(feed.world)
            for _ in feed:
                if len(worlds) == 1:
                    worlds.append(0)
                    assert verify(started.endpoint, "--cut", "2")["equal"]

        trainer_client.run_elastic(train, started.endpoint, elastic=(1, 2))
        assert worlds == [1, 0]


@pytest.mark.slow
def test_the_end_of_the_job_ends_it(tmp_path: Path) -> None:
    path = write_job(tmp_path, samples=40)
    with running(path, workers=1) as started:
        process = start_verify(started, "--epochs", "5000")
        wait_until(lambda: ask(started.endpoint)["streams"]["train"]["verifiers"], "it reads")
        assert run_module("loader_server", "end", str(path))[0] == 0
        assert process.wait(30) == 1
    assert "the job was ended" in (tmp_path / "verify.log").read_text()
