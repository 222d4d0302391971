"""Sources mixed by weight, of one kind or of several, end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import SettingsError
from tests.support.corpora import make_corpus, utterances
from tests.support.loaders import running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets, total

if TYPE_CHECKING:
    from pathlib import Path


def _mixed(tmp_path: Path, weights: str) -> Path:
    job = write_job(tmp_path, samples=80)
    (tmp_path / "more").mkdir()
    make_corpus(tmp_path / "more", samples=20)
    text = job.read_text().replace('["csv.csv"]', '["csv.csv", "more/csv.csv"]')
    job.write_text(text.replace("shapes = 4", f"shapes = 4\n{weights}"))
    return job


@pytest.mark.heritage("R11")
def test_an_epoch_ends_with_its_first_source_while_the_other_starts_over(tmp_path: Path) -> None:
    job = _mixed(tmp_path, "weights = [1, 1]\ncycle = [false, true]")
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        tags = [tag for batch in feed for tag in batch["tag"].tolist() if tag >= 0]
    assert sorted(tag for tag in tags if tag < 80) == list(range(80))
    more = [tag for tag in tags if tag >= 80]
    assert len(more) >= 60
    assert {more.count(tag) for tag in range(80, 100)} <= {3, 4, 5}


@pytest.mark.heritage("T10")
def test_batches_of_several_sources_come_from_other_processes_and_their_way_is_a_metric(tmp_path: Path) -> None:
    job = _mixed(tmp_path, "weights = [1, 1]\ncycle = [false, true]")
    ports = tmp_path / "ports"
    with (
        running(job, workers=1) as loaders,
        trainer_client.connect(loaders.endpoint, shared_memory=False, metrics_port=0, metrics_targets=ports) as feed,
    ):
        batches = iter(feed)
        tags = next(batches)["tag"].tolist()
        (target,) = read_targets(ports).values()
        ready = lambda: total(fetch_metrics(target["address"]), "stoker_slots", state="offered")  # noqa: E731
        wait_until(lambda: ready() > 1, "batches wait in their slots for the model")
        for batch in batches:
            tags += batch["tag"].tolist()
        found = fetch_metrics(target["address"])
    assert min(sum(0 <= tag < 80 for tag in tags), sum(tag >= 80 for tag in tags)) > 0
    parts = {part: total(found, "stoker_data_wait_split_seconds_total", part=part) for part in ("build", "transfer")}
    assert sum(parts.values()) == pytest.approx(total(found, "stoker_data_wait_seconds_sum"))
    assert sum(parts.values()) > 0


def test_a_weight_too_few_is_refused(tmp_path: Path) -> None:
    job = _mixed(tmp_path, "weights = [1]")
    file = JobFile(job)
    index_streams(file, ["train"])
    with pytest.raises(SettingsError, match="one weight for each of the 2 sources or paths that have samples, got 1"):
        Stream(file, "train")


KINDS = """
[job]
name = "kinds"
listen = "tcp://127.0.0.1:*"
[streams.train]
transforms = ["characters"]
length = "text"
budget = "400 characters"
shapes = 4
weights = [3, 1]
cycle = [false, true]
[[streams.train.sources]]
source = "lines"
paths = ["lines.txt"]
[[streams.train.sources]]
source = "manifest"
paths = ["csv.csv"]
"""


def test_texts_of_recordings_and_lines_of_text_are_trained_on_together(tmp_path: Path) -> None:
    """Three lines for one transcript, and the lines end the epoch."""
    make_corpus(tmp_path, samples=10)
    texts = [f"line {n:03} " + "x" * (n % 23) for n in range(120)]
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    (tmp_path / "job.toml").write_text(KINDS)
    alphabet = " abcdefghijklmnopqrstuvwxyz '0123456789"
    expected = texts + [one.text for one in utterances(10)]
    tags = []
    with running(tmp_path / "job.toml", workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        for batch in feed:
            assert set(batch) >= {"text", "text_length", "weight", "tag"}
            assert "audio" not in batch
            for row in range(len(batch["tag"])):
                if batch["weight"][row]:
                    ids = batch["text"][row, : batch["text_length"][row]].tolist()
                    assert "".join(alphabet[one] for one in ids) == expected[batch["tag"][row]]
                    tags.append(int(batch["tag"][row]))
            feed.trained()
        assert feed.tag(125) == "clips/00005.wav"
    assert sorted(tag for tag in tags if tag < 120) == list(range(120))
    again = [tag for tag in tags if tag >= 120]
    assert 30 <= len(again) <= 50
    assert {again.count(tag) for tag in range(120, 130)} <= {3, 4, 5}
