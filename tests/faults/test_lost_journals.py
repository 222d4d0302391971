"""The journal's files unlinked, replaced or cut under a running coordinator, which dies later."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import trainer_client
from shared.errors import RefusedError
from tests.support.loaders import Loaders, ask, running, wait_until, write_job

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
                    wait_until(lambda: ask(loaders.endpoint)["journal"]["lost"], "the coordinator has noticed")
                    leased = ask(loaders.endpoint)["streams"]["train"]["queue"]["train"]["leased"]
                    assert leased <= 2
                elif got.total() == 7:
                    _kill_coordinator(loaders)

        with pytest.raises(RefusedError) as caught:
            train()
        assert word in loaders.text()
    assert caught.value.code == "lost"
    assert "epoch 0" in caught.value.remedy, "the last checkpoint is named"
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
