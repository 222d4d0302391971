"""The journal's files unlinked, replaced or cut under a running coordinator, which dies later."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import trainer_client
from shared.errors import LostError, RefusedError
from tests.support.forked import run_module
from tests.support.loaders import Loaders, ask, running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JOB = 'heartbeat_timeout = "700 ms"'
STREAM = 'mode = "queue"\nlease_timeout = "20 s"'


def _unlink(state: Path) -> None:
    for file in state.glob("journal.sqlite*"):
        file.unlink()


def _back_up(state: Path) -> None:
    """Copy the journal to where `_replace` finds it."""
    for file in state.glob("journal.sqlite*"):
        shutil.copy(file, file.with_name(f"copy-of-{file.name}"))


def _replace(state: Path) -> None:
    """Put an older copy in its place, as a restored backup does."""
    for copy in state.glob("copy-of-*"):
        copy.rename(copy.with_name(copy.name.removeprefix("copy-of-")))


def _cut(state: Path) -> None:
    """Cut the log of what was written last to half."""
    log = state / "journal.sqlite-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 2)


HURT = pytest.mark.parametrize(("hurt", "word"), [(_unlink, "unlinked"), (_replace, "replaced"), (_cut, "shortened")])


def _metric(state: Path) -> float:
    """What the alert goes by."""
    return fetch_metrics(read_targets(state / "targets")["coordinator"]["address"])["stoker_journal_lost", ()]


def _kill_coordinator(loaders: Loaders, before_the_next: Callable[[], None] = lambda: None) -> None:
    """Kill it; `before_the_next` runs while nobody starts another one yet."""
    loaders.process.send_signal(signal.SIGSTOP)
    loaders.coordinator().kill()
    before_the_next()
    loaders.process.send_signal(signal.SIGCONT)


@HURT
@pytest.mark.fault(56)
def test_nothing_is_leased_once_the_journal_is_lost_and_its_trainers_end(tmp_path, hurt, word):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    state = tmp_path / ".stoker" / "tones"
    got = Counter()
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2) as feed:

        def train() -> None:
            for batch in feed:
                got[batch.number] += 1
                batch.done()
                if got.total() == 2:
                    _back_up(state)
                elif got.total() == 5:
                    saved = feed.state()
                    assert saved["epochs"]
                    hurt(state)
                    wait_until(lambda: word in ask(loaders.endpoint)["journal"]["lost"], "the coordinator has noticed")
                    assert _metric(state) == 1
                    leased = ask(loaders.endpoint)["streams"]["train"]["queue"]["train"]["leased"]
                    assert leased <= 2
                elif got.total() == 7:
                    _kill_coordinator(loaders)

        with pytest.raises(RefusedError) as caught:
            train()
        assert "journal is lost" in loaders.text()
    assert caught.value.code == "lost"
    assert "epoch 0" in caught.value.remedy, "the last checkpoint is named"
    assert set(got.values()) == {1}, "nothing is trained on twice"


@pytest.mark.slow
@pytest.mark.fault(56)
def test_a_trainer_waits_for_leases_no_longer_than_it_was_told_to(tmp_path, caplog):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    state = tmp_path / ".stoker" / "tones"
    got = Counter()
    with (
        running(job, workers=1) as loaders,
        trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2, lost_timeout_s=8) as feed,
    ):

        def train() -> None:
            for batch in feed:
                got[batch.number] += 1
                batch.done()
                if got.total() == 3:
                    _unlink(state)
                    wait_until(lambda: ask(loaders.endpoint)["journal"]["lost"], "the coordinator has noticed")

        with pytest.raises(LostError, match=r"within 8 s.*StokerJournalLost"):
            train()
    assert caplog.text.count("waiting for leases that the coordinator withholds") == 1
    assert set(got.values()) == {1}, "nothing is trained on twice"


@HURT
@pytest.mark.fault(56)
def test_a_coordinator_that_dies_at_once_repeats_nothing_either(tmp_path, hurt, word):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    state = tmp_path / ".stoker" / "tones"
    got = Counter()
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2) as feed:

        def train() -> None:
            for batch in feed:
                got[batch.number] += 1
                batch.done()
                if got.total() == 2:
                    _back_up(state)
                elif got.total() == 9:
                    _kill_coordinator(loaders, lambda: hurt(state))

        with pytest.raises(RefusedError, match="lease table"):
            train()
    assert set(got.values()) == {1}, f"a journal that was {word}: nothing is trained on twice"


@pytest.mark.fault(56)
def test_a_journal_that_is_moved_away_and_back_costs_nothing_but_time(tmp_path):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    state, elsewhere = tmp_path / ".stoker" / "tones", tmp_path / "elsewhere"
    got = Counter()
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2) as feed:
        for batch in feed:
            got[batch.number] += 1
            batch.done()
            if got.total() == 5:
                state.rename(elsewhere)
                wait_until(lambda: "moved away" in ask(loaders.endpoint)["journal"]["lost"], "it has noticed")
                elsewhere.rename(state)
                wait_until(lambda: not ask(loaders.endpoint)["journal"]["lost"], "it has noticed that, too")
        wait_until(lambda: ask(loaders.endpoint)["streams"]["train"]["batches"], "the next epoch is counted")
        train = ask(loaders.endpoint)["streams"]["train"]
        loaders.coordinator().kill()
        again = ask(loaders.endpoint)["streams"]["train"]
    assert got == dict.fromkeys(range(train["batches"]), 1)
    assert train["queue"]["train"]["epoch"] == again["queue"]["train"]["epoch"] == 1
    assert "journal is written again" in loaders.text()


@HURT
@pytest.mark.fault(56)
def test_lockstep_is_unaffected(tmp_path, hurt, word):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB)
    state = tmp_path / ".stoker" / "tones"
    got = Counter()
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        for batch in feed:
            got[batch.number] += 1
            feed.trained()
            if got.total() == 2:
                _back_up(state)
                batches = ask(loaders.endpoint)["streams"]["train"]["batches"]
            elif got.total() == 5:
                hurt(state)
                wait_until(lambda: word in ask(loaders.endpoint)["journal"]["lost"], "the coordinator has noticed")
            elif got.total() == 7:
                loaders.coordinator().kill()
    assert got == dict.fromkeys(range(batches), 1)


@pytest.mark.fault(56)
@pytest.mark.fault(15)
def test_a_second_coordinator_is_refused_though_the_journal_was_deleted(tmp_path):
    job = write_job(tmp_path, samples=20)
    with running(job, workers=1):
        _unlink(tmp_path / ".stoker" / "tones")
        code, _, complained = run_module("loader_server", "coordinator", str(job), "--listen", "tcp://127.0.0.1:*")
    assert code == 1
    assert "expected to be the only coordinator of this job" in complained
