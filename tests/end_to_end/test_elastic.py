"""Elastic runs as users write them: `run_elastic` with a loop of one's own and with `fit`, and what goes wrong."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import trainer_client
from loader_server.commands import status
from shared.errors import LostError, RefusedError, SettingsError, WorldChangedError
from tests.support.loaders import Loaders, running, wait_until, write_job
from tests.support.programs import Program
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainer_client import Feed


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    with running(write_job(tmp_path_factory.mktemp("job"), budget="2 s"), workers=1) as started:
        yield started


def train_to_the_end(feed: Feed) -> tuple[int, ...]:
    epochs = {batch.epoch for batch in feed}
    return feed.rank, feed.world, *epochs


def members(endpoint: str, *trains: Callable[[Feed], Any], elastic: tuple[int, int], **how: Any) -> list[Any]:
    """What `run_elastic` came to in each of these, or its error."""

    def one(train: Callable[[Feed], Any]) -> Any:
        try:
            return trainer_client.run_elastic(train, endpoint, elastic=elastic, **how)
        except BaseException as error:  # SystemExit as well
            return error

    with ThreadPoolExecutor(len(trains)) as pool:
        return list(pool.map(one, trains))


def test_each_member_has_a_rank_of_its_own_and_nobody_says_which(loaders):
    told = members(loaders.endpoint, *[train_to_the_end] * 3, elastic=(3, 3))
    assert sorted(told) == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]


def test_a_run_with_a_feed_of_ones_own_ends_in_all_ranks(loaders):
    def train(_: int) -> str:
        with trainer_client.connect(loaders.endpoint, elastic=(2, 2)) as feed:
            run = trainer_client.Run(feed, trainer_client.Until(epochs="+1"))
            for batch in run:
                run.note(rows=batch.rows)
        return run.reason

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, range(2))) == ["1 epochs are reached"] * 2
    assert status.ask(loaders.endpoint)["streams"]["train"]["elastic"]["stage"] == "ended"


def test_too_few_trainers_are_an_error_after_a_stated_time(loaders):
    with pytest.raises(LostError, match=r"at least 2 trainers within 5 s, got 1 of at least 2 trainers are there"):
        trainer_client.connect(loaders.endpoint, elastic=(2, 2), connect_timeout_s=5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"elastic": (3, 2)}, r"elastic=\(least, most\)"),
        ({"elastic": (0, 2)}, r"elastic=\(least, most\)"),
        ({"elastic": (1, 5000)}, "from 1 to 4096"),
        ({"elastic": (1, 2), "rank": 0}, "either fixed ranks or elastic"),
        ({"elastic": (1, 2), "world": 2}, "either fixed ranks or elastic"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_asked(how, words):
    with pytest.raises(SettingsError, match=words):
        trainer_client.connect("tcp://127.0.0.1:1", **how)


def test_the_coordinators_refusal_is_an_error(loaders):
    with pytest.raises(RefusedError, match="trained on in lockstep"):
        trainer_client.connect(loaders.endpoint, stream="dev", elastic=(1, 2))


def test_an_error_of_the_training_function_is_raised_and_the_others_go_on(loaders):
    first = threading.Event()

    def fail(feed: Feed) -> None:
        first.set()
        raise ValueError("no such layer")

    told = members(loaders.endpoint, fail, train_to_the_end, elastic=(1, 2))
    assert isinstance(told[0], ValueError)
    assert told[1][1] == 1, "it trained on, or anew, alone"


def test_nobody_waits_for_one_that_fails_after_the_end_of_its_run(loaders):
    """As a chief may that cannot export the model."""
    has_ended = threading.Event()

    def finish(feed: Feed) -> Any:
        told = train_to_the_end(feed)
        feed._session.end_run("1 epoch is reached", epoch=1, step=0)
        has_ended.set()
        return told

    def fail(feed: Feed) -> None:
        train_to_the_end(feed)
        feed._session.end_run("1 epoch is reached", epoch=1, step=0)
        assert has_ended.wait(60)
        raise ValueError("no room for the model")

    told = members(loaders.endpoint, finish, fail, elastic=(1, 2))
    assert told[0] == (0, 1, 0)
    assert isinstance(told[1], ValueError)


def test_an_exchange_that_fails_as_its_partner_leaves_is_a_change_of_the_world(loaders):
    """The partner's connection is cut some time before the coordinator misses it."""
    worlds, is_cut = [], threading.Event()

    def exchange(feed: Feed) -> Any:
        worlds.append(feed.world)
        if feed.world == 2:
            is_cut.set()
            raise ConnectionResetError("partner is gone")
        return train_to_the_end(feed)

    def leave(feed: Feed) -> None:
        assert is_cut.wait(60)
        raise ValueError("this one leaves")

    told = members(loaders.endpoint, exchange, leave, elastic=(1, 2))
    assert (told[0], worlds) == ((0, 1, 0), [2, 1])


def test_a_process_that_cannot_begin_anew_ends_with_a_code_of_its_own(loaders):
    def leave(feed: Feed) -> None:
        feed.aggregate({}, rows=1)  # so the other one has its place
        raise ValueError("this one leaves")

    def wait(feed: Feed) -> None:
        while True:
            feed.aggregate({}, rows=1)

    told = members(loaders.endpoint, wait, leave, elastic=(2, 2), new_process=True)
    assert isinstance(told[0], SystemExit)
    assert told[0].code == WorldChangedError.exit_code == 75


#: A member with `fit`; it prints where each world begins, with a digest of its weights.
_FIT = """
import json, sys, time
import keras, numpy as np
import trainer_client

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)  # nobody learns anything from how many epochs there are

    def on_epoch_begin(self, epoch, logs=None):
        if not self.told:
            weights = float(sum(np.abs(np.asarray(one)).sum() for one in self.model.get_weights()))
            print(json.dumps([self.feed.rank, self.feed.world, epoch, self.feed.number, weights]), flush=True)
        self.told = True

def train(feed):
    layers = keras.layers.Input((None, 40)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)
    model = keras.Sequential(layers)
    model.compile(optimizer="adagrad", loss="mse")
    data = feed.dataset(inputs="audio", targets="audio_length", weights="weight")
    tell = Tell()
    tell.feed, tell.told = feed, False
    checkpoint = trainer_client.FeedCheckpoint(feed, "checkpoints", every=5)
    model.fit(data, epochs=400, verbose=0, callbacks=[checkpoint, tell])

trainer_client.run_elastic(train, sys.argv[1], elastic=(1, 2))
"""


@pytest.mark.slow
@pytest.mark.heritage("E15")
@pytest.mark.timeout(300)
def test_fit_goes_on_from_the_chiefs_weights_when_a_member_is_killed(tmp_path):
    job = write_job(tmp_path, samples=60, budget="2 s", job='heartbeat_timeout = "2 s"')
    (tmp_path / "fitting.py").write_text(_FIT)
    with running(job, workers=1) as started, ExitStack() as ending:
        two = [ending.enter_context(Program(tmp_path, started.endpoint, module="fitting")) for _ in range(2)]
        wait_until(lambda: [newest(process)[1:2] for process in two] == [[2], [2]], "both are in one world", 120)
        begun = sorted((newest(process), place) for place, process in enumerate(two))
        assert [told[0] for told, _ in begun] == [0, 1]
        assert begun[0][0][2:] == begun[1][0][2:], "both begin at one place, with the chief's weights"
        chief, other = (two[place] for _, place in begun)
        wait_until(lambda: newest_checkpoint(tmp_path)[0] >= 1, "an epoch is committed", 120)
        chief.kill()
        epoch, weights = newest_checkpoint(tmp_path)
        wait_until(lambda: newest(other)[:2] == [0, 1], "it goes on alone", 120)
        assert newest(other)[2::2] == [epoch, weights], "it goes on where the killed chief had committed"


def newest_checkpoint(folder: Path) -> tuple[int, float]:
    """Return its epoch and the digest of its weights; epoch 0 if there is none yet."""
    found = CheckpointFolder(folder / "checkpoints", keep=3, chained=True).read_last()
    if found is None:
        return 0, 0.0
    arrays, record = found
    return record["epoch"], float(sum(np.abs(arrays[str(at)]).sum() for at in range(record["model_variables"])))


def newest(member: Program) -> list[Any]:
    """What it printed last; nothing before its first world."""
    told = [json.loads(line) for line in member.output().splitlines(keepends=True) if line.endswith("\n")]
    return told[-1] if told else []
