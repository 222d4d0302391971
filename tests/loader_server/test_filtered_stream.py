"""A stream's filter: who is left out takes no part in any epoch, and is counted."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import DataError, SettingsError
from tests.support.corpora import make_corpus, utterances
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = 30
MADE = utterances(SAMPLES)
TEXTS = [len(one.text) for one in MADE]


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], JobFile]:
    path = write_job(tmp_path, samples=SAMPLES, longest_s=0.4, stream="FILTER")
    manifest = tmp_path / "csv.csv"
    rows = list(csv.reader(manifest.read_text().splitlines()))
    for number, row in enumerate(rows):
        row.append("speaker" if not number else "ann" if number % 3 else "bob")
    with manifest.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    written = path.read_text()

    def job(settings: str) -> JobFile:
        path.write_text(written.replace("FILTER", settings))
        made = JobFile(path)
        index_missing(made)
        return made

    return job


def taken(job: JobFile) -> tuple[list[int], dict[str, int]]:
    """The samples of an epoch, in order of their numbers, and those that are dropped, by reason."""
    stream = Stream(job, "train")
    stream.close()
    epoch = stream.plan.epoch(0, 1)
    found = [sample for number in range(epoch.batches) for sample in epoch.batch(number).samples.tolist()]
    return sorted(found), stream.plan.dropped


@pytest.mark.parametrize("more", ["", "shapes_", 'order = "as_is"', 'order = "sorted"', "min_length"])
def test_those_who_pass_are_there_once_and_the_others_are_counted(job: Callable[[str], JobFile], more: str) -> None:
    lines = {"shapes_": 'limits = { text = "4000 characters" }', "min_length": 'min_length = "1 frames"'}
    found, dropped = taken(job("filter = 'text > 10 and speaker == \"ann\"'\n" + lines.get(more, more)))
    wanted = [n for n in range(SAMPLES) if TEXTS[n] > 10 and (n + 1) % 3]
    assert found == wanted
    assert dropped == {"filtered": SAMPLES - len(wanted)}


def test_lengths_are_those_after_the_transforms(job: Callable[[str], JobFile]) -> None:
    found, _ = taken(job("filter = 'audio <= 12 and audio_rate == 8000'"))
    frames = [1 + (len(one.audio) - 200) // 80 for one in MADE]
    assert found == [n for n in range(SAMPLES) if frames[n] <= 12]
    assert 0 < len(found) < SAMPLES


def test_other_filters_are_other_plans_and_need_no_other_index(job: Callable[[str], JobFile]) -> None:
    digests = [Stream(job(said), "train").digest for said in ("", "filter = 'text > 10'", "filter = 'text > 9'")]
    assert len(set(digests)) == 3
    assert Stream(job(""), "train").digest == digests[0]


def test_a_filter_that_nobody_passes_is_an_error(job: Callable[[str], JobFile]) -> None:
    with pytest.raises(DataError, match=r"got 30 samples, all dropped \(30 filtered\)\. Check .* filter"):
        Stream(job("filter = 'text < 0'"), "train")


def test_an_unknown_column_is_refused(job: Callable[[str], JobFile]) -> None:
    with pytest.raises(
        SettingsError, match=r'\[streams\.train\], filter: expected .*, perhaps "speaker", got "speakers"'
    ):
        Stream(job("filter = 'speakers == \"ann\"'"), "train")


def test_what_is_no_condition_is_refused_before_anything_is_opened(job: Callable[[str], JobFile]) -> None:
    with pytest.raises(SettingsError, match=r"\[streams\.train\], filter: .* got SyntaxError"):
        job("filter = 'text >'")


def test_a_mixture_is_filtered_source_by_source(tmp_path: Path) -> None:
    made = utterances(9)
    make_corpus(tmp_path, samples=9)
    (tmp_path / "lines.txt").write_text("one\ntwenty three\n" * 3)
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "mixed"\n[streams.train]\ntransforms = ["characters"]\nlength = "text"\nbudget = "60 steps"\n'
        'filter = \'text > 8\'\n[[streams.train.sources]]\nsource = "lines"\npaths = ["lines.txt"]\n'
        '[[streams.train.sources]]\nsource = "manifest"\npaths = ["csv.csv"]\n'
    )
    job = JobFile(tmp_path / "job.toml")
    index_missing(job)
    found, dropped = taken(job)
    wanted = [n for n, text in enumerate(["one", "twenty three"] * 3 + [one.text for one in made]) if len(text) > 8]
    assert found == wanted
    assert dropped == {"filtered": 15 - len(wanted)}


def test_a_source_of_a_mixture_that_has_not_the_column_is_named(tmp_path: Path) -> None:
    make_corpus(tmp_path, samples=3)
    (tmp_path / "lines.txt").write_text("one\n")
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "mixed"\n[streams.train]\ntransforms = ["characters"]\nlength = "text"\nbudget = "60 steps"\n'
        'filter = \'audio > 8\'\n[[streams.train.sources]]\nsource = "manifest"\npaths = ["csv.csv"]\n'
        '[[streams.train.sources]]\nsource = "lines"\npaths = ["lines.txt"]\n'
    )
    job = JobFile(tmp_path / "job.toml")
    index_missing(job)
    with pytest.raises(SettingsError, match=r'column of .*number 2 \(lines\), got "audio"'):
        Stream(job, "train")
