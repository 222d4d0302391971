"""Feeds that nobody closes: a notebook's cell run again and again, then trainers that must not notice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.forked import start_talking
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.forked import TalkingProcess
    from tests.support.loaders import Loaders

_CELLS = 30
#: More than the incarnations that a coordinator remembers of a rank.
_TRAINERS = 24


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    job = write_job(tmp_path_factory.mktemp("job"), samples=40, job='heartbeat_timeout = "400 ms"')
    with running(job, workers=1) as loaders:
        yield loaders


def _look(notebook: TalkingProcess) -> dict[str, int]:
    notebook.stdin.write("\n")
    found: dict[str, int] = json.loads(notebook.stdout.readline())
    return found


def _notebook(loaders: Loaders, stream: str, cells: int, keeps: str) -> TalkingProcess:
    return start_talking("tests.support.notebook", loaders.endpoint, stream, str(cells), keeps, tensorflow=True)


def _trainers(loaders: Loaders, stream: str) -> int:
    return len(ask(loaders.endpoint)["streams"][stream]["trainers"])


@pytest.mark.fault(60)
@pytest.mark.slow
def test_thirty_superseded_feeds_are_over_and_good_trainers_keep_their_rank(loaders: Loaders) -> None:
    with _notebook(loaders, "train", 1, "keeps") as notebook:
        one = _look(notebook)
    with _notebook(loaders, "train", _CELLS, "keeps") as notebook:
        _look(notebook)
        stale = ask(loaders.endpoint)["stale"]
        for _ in range(_TRAINERS):
            with trainer_client.connect(loaders.endpoint) as feed:
                numbers = [batch.number for batch in feed]
                assert numbers == list(range(len(numbers)))
                assert feed.epoch == 1
        wait_until(lambda: _look(notebook)["threads"] < one["threads"], "the threads of superseded feeds have ended")
        assert _look(notebook)["descriptors"] <= one["descriptors"] + _CELLS * 2
        assert _look(notebook)["stops"] == _CELLS, "each says once that it stops"
        assert ask(loaders.endpoint)["stale"] - stale < 3, "those that are over say nothing more"
        notebook.kill()


@pytest.mark.fault(60)
@pytest.mark.slow
def test_feeds_that_nobody_references_close_themselves(loaders: Loaders) -> None:
    """Readers of a stream for evaluation are superseded by nobody."""
    with _notebook(loaders, "dev", 1, "") as notebook:
        one = _look(notebook)
        notebook.kill()
    with _notebook(loaders, "dev", _CELLS, "") as notebook:
        wait_until(lambda: _look(notebook)["descriptors"] <= one["descriptors"] + 2, "all but the last have closed")
        wait_until(lambda: _look(notebook)["threads"] <= one["threads"] + 1, "and their threads have ended")
        wait_until(lambda: _trainers(loaders, "dev") == 1, "and the coordinator knows that they have left")
        assert _look(notebook)["stops"] == 0
        notebook.kill()
