"""A run whose ranks become more and fewer from one checkpoint to the next: each remaining batch is trained on once."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from tests.support.forked import TalkingProcess, start_code
from tests.support.loaders import Loaders, running, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: One rank: it goes on from a checkpoint's cursor for so many rounds, says what it trained on, and where it is then.
_RANK = """
import json, signal, sys, trainer_client
endpoint, rank, world, rounds, state = sys.argv[1], *map(int, sys.argv[2:5]), json.loads(sys.argv[5])
trained = []
with trainer_client.connect(endpoint, rank=rank, world=world) as feed:
    if state:
        feed.restore(state)
    while rounds:
        for batch in feed.open():
            if not batch.empty:
                trained.append((feed.epoch, batch.number, batch["tag"][batch["weight"] > 0].tolist()))
            feed.trained()
            rounds -= 1
            if not rounds:
                break
    print(json.dumps({"trained": trained, "state": feed.state()}), flush=True)
    if sys.argv[6:] == ["stay"]:
        signal.pause()
"""


@dataclass(frozen=True)
class Ranks:
    """What the ranks of one world trained on between two checkpoints, and the cursor that all of them came to."""

    trained: list[list[Any]]
    state: dict[str, Any]

    def numbers(self) -> list[int]:
        return sorted(number for _, number, _ in self.trained)


def _start(loaders: Loaders, world: int, rounds: int, state: dict[str, Any] | None, *more: str) -> list[TalkingProcess]:
    said = (str(world), str(rounds), json.dumps(state), *more)
    return [start_code(_RANK, loaders.endpoint, str(rank), *said) for rank in range(world)]


def _train(loaders: Loaders, world: int, rounds: int, state: dict[str, Any] | None) -> Ranks:
    said = []
    for process in _start(loaders, world, rounds, state):
        out, log = process.communicate(timeout=100)
        assert process.returncode == 0, log
        said.append(json.loads(out))
    (state,) = {json.dumps(rank["state"]) for rank in said}
    return Ranks([one for rank in said for one in rank["trained"]], json.loads(state))


def _at(state: dict[str, Any]) -> tuple[int, int, int]:
    return state["epoch"], state["number"], state["group"]


def _job(folder: Path) -> Path:
    return write_job(folder, samples=300, job='group = 4\nheartbeat_timeout = "500 ms"')


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    with running(_job(tmp_path_factory.mktemp("job")), workers=1) as loaders:
        yield loaders


@pytest.mark.fault(20)
@pytest.mark.heritage("E18")
def test_each_batch_counts_once_while_the_world_grows_and_shrinks(loaders: Loaders) -> None:
    """Over the end of an epoch: whoever comes next goes on where all the others were."""
    with trainer_client.connect(loaders.endpoint) as feed:
        batches = sum(not batch.empty for batch in feed)
    state, trained = None, []
    for world, rounds in ((1, 3), (4, 2), (3, 5), (2, 4), (4, 3), (1, 9)):
        ranks = _train(loaders, world, rounds, state)
        state = ranks.state
        trained += ranks.trained
    assert state["epoch"] == 1
    numbers = sorted((epoch, number) for epoch, number, _ in trained)
    assert numbers == [(0, number) for number in range(batches)] + [(1, number) for number in range(state["number"])]
    assert sorted(tag for epoch, _, tags in trained if not epoch for tag in tags) == list(range(300))


@pytest.mark.fault(17)
@pytest.mark.fault(20)
def test_after_a_world_that_was_killed_a_smaller_one_goes_on_at_the_checkpoint(loaders: Loaders) -> None:
    committed = _train(loaders, 2, 3, None)
    killed = _start(loaders, 4, 2, committed.state, "stay")
    lost = [json.loads(process.stdout.readline())["state"] for process in killed]
    for process in killed:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert [state["number"] > committed.state["number"] for state in lost] == [True] * 4
    again = _train(loaders, 3, 4, committed.state)
    assert again.state["epoch"] == 0
    numbers = committed.numbers() + again.numbers()
    assert numbers == list(range(len(numbers)))


@pytest.mark.fault(20)
def test_a_world_above_the_group_is_refused_until_an_epoch_begins_with_a_larger_group(tmp_path: Path) -> None:
    job = _job(tmp_path)
    with running(job, workers=1) as loaders:
        middle = _train(loaders, 2, 3, None).state
        said = r"a world of at most group = 4 ranks, got a world of 6.*group = 6 in \[job\].*next epoch"
        with pytest.raises(trainer_client.RefusedError, match=said):
            trainer_client.connect(loaders.endpoint, world=6)
    job.write_text(job.read_text().replace("group = 4", "group = 6"))
    with running(job, workers=1) as loaders:
        refusals = {process.communicate()[1].splitlines()[-1] for process in _start(loaders, 6, 1, middle)}
        assert all("a world of at most group = 4 ranks" in refusal for refusal in refusals), refusals
        with trainer_client.connect(loaders.endpoint) as feed:
            feed.restore(middle)
            left = feed.rounds_left()
        rest = _train(loaders, 1, left, middle)
        assert rest.numbers() == list(range(middle["number"], rest.numbers()[-1] + 1))
        assert _at(rest.state) == (1, 0, 6)
        wide = _train(loaders, 6, 2, rest.state)
        assert wide.numbers() == list(range(len(wide.trained)))
        assert _at(wide.state) == (1, 12, 6)
