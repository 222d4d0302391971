"""Commands that are pointed at a stream which somebody trains on: refused, and the training goes on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.loaders import ask, running, wait_until, write_job
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    job = write_job(tmp_path_factory.mktemp("job"), samples=60, job='heartbeat_timeout = "400 ms"')
    with running(job, workers=1) as loaders:
        yield loaders


class _Training(threading.Thread):
    """Trains on and on, until it is told to end or fails."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.epochs = 0
        self.error: Exception | None = None
        self.is_over = False
        self._endpoint = endpoint

    def run(self) -> None:
        try:
            with trainer_client.connect(self._endpoint) as feed:
                while not self.is_over:
                    numbers = [batch.number for batch in feed]
                    assert numbers == list(range(len(numbers)))
                    self.epochs = feed.epoch
        except Exception as error:
            self.error = error


@contextmanager
def _training(loaders: Loaders) -> Iterator[_Training]:
    training = _Training(loaders.endpoint)
    training.start()
    try:
        wait_until(lambda: training.epochs or training.error, "it trains")
        yield training
    finally:
        training.is_over = True
        training.join(60)


def _command(name: str, endpoint: str, folder: Path) -> tuple[str, ...]:
    model = ("--model", "trainer_client.demo", "--feed", endpoint, "--checkpoint", str(folder))
    return {
        "load-test": ("load-test", "drain", "--feed", endpoint, "--trainers", "1", "--seconds", "1"),
        "train --validate": ("train", *model, "--epochs", "1", "--validate", "train"),
        "train --validate twice": ("train", *model, "--epochs", "1", "--validate", "dev", "--validate", "nowhere"),
        "evaluate": ("evaluate", *model, "--stream", "train"),
        "predict": ("predict", *model, "--stream", "train", "--output", str(folder / "out.jsonl")),
    }[name]


@pytest.mark.fault(61)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("load-test", "a stream that nobody trains on"),
        ("train --validate", "a stream for evaluation, got train, which is trained on"),
        ("train --validate twice", "one of the streams"),
        ("evaluate", "evaluation = true"),
        ("predict", 'mode = "queue"'),
    ],
)
def test_what_somebody_trains_on_is_refused_before_anything_is_taken_away(
    loaders: Loaders, tmp_path: Path, name: str, words: str
) -> None:
    with _training(loaders) as training:
        epochs = training.epochs
        with Program(tmp_path, *_command(name, loaders.endpoint, tmp_path)) as program:
            code, said, complained = program.ended()
        assert code in (1, 2, 4), (said, complained)
        assert "Traceback" not in complained
        assert words in complained
        wait_until(lambda: training.epochs > epochs + 1 or training.error, "the training goes on")
    assert training.error is None


@pytest.mark.fault(61)
@pytest.mark.slow
def test_a_load_test_of_a_stream_that_nobody_trains_on_passes(loaders: Loaders, tmp_path: Path) -> None:
    wait_until(lambda: not ask(loaders.endpoint)["streams"]["train"]["trainers"], "nobody trains")
    with Program(tmp_path, *_command("load-test", loaders.endpoint, tmp_path)) as program:
        code, said, complained = program.ended()
    assert code == 0, (said, complained)


@pytest.mark.fault(61)
@pytest.mark.slow
def test_a_training_that_begins_ends_a_load_test(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, work="measure") as measuring:
        next(measuring.open())
        with trainer_client.connect(loaders.endpoint) as feed:
            assert [batch.number for batch in feed]
        wait_until(lambda: measuring._session.error is not None, "it is told")
        assert "only trainer of rank 0" in str(measuring._session.error)
