"""What a trainer says of itself, and of each epoch."""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.benchmarks.metrics_cost import BUDGET_US, trainer_us, worker_us
from tests.support.loaders import Loaders, running, write_job
from tests.support.scraping import fetch_metrics, metrics_of, read_targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAIN = (("stream", "train"),)


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp("trainer")
    transforms = ("tests.support.transforms:raises", "logmel", "characters")
    with running(write_job(folder, samples=60, transforms=transforms), workers=2) as loaders:
        yield loaders


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, object]]]:
    """The fields of the lines of epochs, which grow as they are logged."""
    found: list[dict[str, object]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.event == "epoch done":  # type: ignore[attr-defined]
                found.append(record.fields)  # type: ignore[attr-defined]

    logger, handler = logging.getLogger("stoker.trainer"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_feed_serves_all_that_is_declared_for_as_long_as_it_is_open(loaders: Loaders, tmp_path: Path) -> None:
    with trainer_client.connect(loaders.endpoint, metrics_port=0, metrics_targets=tmp_path) as feed:
        batches = list(feed)
        feed.waited(0.25)
        (target,) = read_targets(tmp_path).values()
        assert (target["job"], target["role"], target["rank"]) == ("tones", "trainer", "0")
        scrape = fetch_metrics(target["address"])
        nbytes = feed._session.accounts.counts.nbytes
    assert {name for name, _ in scrape if name.startswith("stoker_") and "_data_wait_seconds_" not in name} == {
        metric.name for metric in metrics_of("trainer") if metric.kind != "histogram"
    }
    assert scrape["stoker_read_batches_total", TRAIN] == len(batches)
    assert scrape["stoker_data_wait_seconds_count", TRAIN] == len(batches)
    assert scrape["stoker_read_bytes_total", TRAIN] == nbytes > 0
    assert scrape["stoker_trained_rounds_total", TRAIN] == len(batches)
    assert scrape["stoker_step_wait_seconds_total", TRAIN] == 0.25
    masked = scrape["stoker_read_rows_total", (("kind", "masked"), *TRAIN)]
    assert masked == sum(batch.masked for batch in batches) > 0
    states = {dict(labels)["state"]: value for (name, labels), value in scrape.items() if name == "stoker_slots"}
    assert states.keys() == {"free", "lent", "offered", "out"}
    assert sum(states.values()) >= 8
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetch_metrics(target["address"])


def test_batches_that_were_read_are_staged_until_they_are_trained_on(loaders: Loaders, tmp_path: Path) -> None:
    with trainer_client.connect(loaders.endpoint, metrics_port=0, metrics_targets=tmp_path) as feed:
        (target,) = read_targets(tmp_path).values()
        reading = feed.open()
        for _ in range(3):
            next(reading)
        feed.trained()
        assert fetch_metrics(target["address"])["stoker_staged_batches", TRAIN] == 2


def test_without_a_port_nothing_is_served(loaders: Loaders, tmp_path: Path) -> None:
    with trainer_client.connect(loaders.endpoint, metrics_targets=tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_two_feeds_of_one_process_do_not_meet(loaders: Loaders, tmp_path: Path) -> None:
    with (
        trainer_client.connect(loaders.endpoint, metrics_port=0, metrics_targets=tmp_path),
        trainer_client.connect(loaders.endpoint, stream="dev", metrics_port=0, metrics_targets=tmp_path),
    ):
        assert len({target["address"] for target in read_targets(tmp_path).values()}) == 2


def test_a_port_that_is_taken_stops_the_connecting(loaders: Loaders, tmp_path: Path) -> None:
    with trainer_client.connect(loaders.endpoint, metrics_port=0, metrics_targets=tmp_path):
        (target,) = read_targets(tmp_path).values()
        port = int(target["address"].partition(":")[2])
        with pytest.raises(trainer_client.SettingsError, match=f"metrics_port: .* on {port}"):
            trainer_client.connect(loaders.endpoint, stream="dev", metrics_port=port)


def test_beyond_loopback_metrics_are_for_those_who_show_the_token(loaders: Loaders, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    targets = tmp_path / "targets"
    with trainer_client.connect(
        loaders.endpoint, metrics_listen="0.0.0.0", metrics_token=token, metrics_targets=targets
    ):
        (target,) = read_targets(targets).values()
        url = f"http://{target['address']}/metrics"
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(url, timeout=30)
        refused.value.close()
        headers = {"Authorization": "Bearer 0123456789abcdef"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            assert b"stoker_read_batches_total" in answer.read()


def test_beyond_loopback_metrics_need_a_token_or_that_they_may_be_open(loaders: Loaders, tmp_path: Path) -> None:
    with pytest.raises(trainer_client.SettingsError) as refused:
        trainer_client.connect(loaders.endpoint, metrics_listen="0.0.0.0:9100")
    assert str(refused.value) == (
        "metrics_listen: expected a token, or a loopback address such as 127.0.0.1:9100, got 0.0.0.0:9100 without one: "
        "anyone who reaches it could read the metrics. Write a secret into a file and name it with "
        "metrics_token = FILE, or write metrics_insecure = True."
    )
    with trainer_client.connect(
        loaders.endpoint, metrics_listen="0.0.0.0:0", metrics_insecure=True, metrics_targets=tmp_path
    ):
        (target,) = read_targets(tmp_path).values()
        assert fetch_metrics(target["address"])


@pytest.mark.heritage("R8")
@pytest.mark.heritage("R12")
def test_an_epoch_that_was_trained_on_leaves_one_line(loaders: Loaders, lines: list[dict[str, object]]) -> None:
    with trainer_client.connect(loaders.endpoint) as feed:
        batches = list(feed)
        assert [line["epoch"] for line in lines] == [0]
        for _ in feed:  # counted step by step, as a training loop does
            feed.trained()
        assert [line["epoch"] for line in lines] == [0, 1]
    for line in lines:
        assert (line["stream"], line["rank"], line["job"]) == ("train", 0, "tones")
        assert (line["steps"], line["complete"]) == (len(batches), 1.0)
        assert line["masked"] == sum(batch.masked for batch in batches) > 0
        assert line["shapes"] == len({batch["audio"].shape for batch in batches}) > 1
        assert 0 < line["waiting"] <= 1  # type: ignore[operator]
        assert 0 < line["padding"] < 1  # type: ignore[operator]


def test_reading_without_training_leaves_no_line(loaders: Loaders, lines: list[dict[str, object]]) -> None:
    with trainer_client.connect(loaders.endpoint) as feed:
        reading = feed.open()
        next(reading)
        reading.close()
    assert lines == []


def test_each_pass_over_an_evaluation_stream_leaves_a_line(loaders: Loaders, lines: list[dict[str, object]]) -> None:
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        steps = [len(list(feed)) for _ in range(2)]
    assert [(line["stream"], line["epoch"], line["steps"]) for line in lines] == [("dev", 0, one) for one in steps]


def test_a_resumed_epoch_says_how_much_of_it_it_was(loaders: Loaders, lines: list[dict[str, object]]) -> None:
    with trainer_client.connect(loaders.endpoint) as feed:
        batches = feed.rounds_left()
        feed.restore({**feed.state(), "number": batches - 2})
        list(feed)
    assert [(line["steps"], line["complete"]) for line in lines] == [(2, round(2 / batches, 4))]


def test_counting_costs_little() -> None:
    assert trainer_us(rows=100) < BUDGET_US
    assert worker_us(rows=100) < BUDGET_US
