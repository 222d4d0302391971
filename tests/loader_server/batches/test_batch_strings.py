"""The strings of batches: each sample's own, in whichever way a batch is made, and never without room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

import loader_server
from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loader_server.commands.showing.shown_batch import ShownBatch

SAMPLES = 300


def write_table(folder: Path) -> dict[str, list[Any]]:
    """Tokens of 1 to 40 steps that begin with the sample's number, an id, and a text, two of them very long."""
    rng = np.random.default_rng(3)
    texts = ["ü" * int(rng.integers(0, 30)) for _ in range(SAMPLES)]
    texts[7] = texts[200] = "long" * 5000
    table = {
        "tokens": [np.full(int(rng.integers(1, 40)), row, np.float32) for row in range(SAMPLES)],
        "id": [f"id-{row:04}" for row in range(SAMPLES)],
        "text": texts,
    }
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=64)
    return table


def job_of(folder: Path, stream: str, job: str = "") -> Path:
    path = folder / "job.toml"
    path.write_text(
        f'[job]\nname = "x"\n{job}\n[streams.train]\nsource = "parquet"\npaths = ["a.parquet"]\n'
        f'length = "tokens"\nstrings = ["text", "id"]\n{stream}\n'
    )
    index_missing(JobFile(path))
    return path


def batches_of(path: Path) -> Iterator[ShownBatch]:
    stream = loader_server.open(path).stream("train")
    number = 0
    while True:
        try:
            yield stream.batch(number)
        except SettingsError:
            return
        number += 1


@pytest.mark.parametrize(
    "stream",
    [
        'budget = "200 steps"',
        'budget = "200 steps"\npad_to = "batch"',
        'budget = "200 steps"\nshapes = "none"',
        "rows = 7",
        'budget = "200 steps"\nwindow = 64\ntransforms = ["tests.loader_server.batches.test_batch_strings:doubled"]',
    ],
)
def test_each_row_has_the_strings_of_its_sample(tmp_path: Path, stream: str) -> None:
    table, seen = write_table(tmp_path), list[int]()
    path = job_of(tmp_path, stream)
    largest = {shape.lengths["text"] for shape in Stream(JobFile(path), "train").shapes}
    assert max(largest) >= 2 * 20_000
    for batch in batches_of(path):
        for row, tag in enumerate(batch["tag"].tolist()):
            expected = ("", "") if tag < 0 else (table["id"][tag], table["text"][tag])
            assert (batch["id"][row], batch["text"][row]) == expected
            seen += [tag] if tag >= 0 else []
    assert sorted(seen) == list(range(SAMPLES))


def doubled(sample: dict[str, Any], _rng: np.random.Generator) -> None:
    sample["tokens"] = sample["tokens"] * 2


def test_packed_rows_have_a_string_for_each_sample_in_order(tmp_path: Path) -> None:
    table, seen = write_table(tmp_path), list[int]()
    for batch in batches_of(job_of(tmp_path, 'budget = "240 steps"\npacking = "60 steps"')):
        assert batch["id"].shape == batch["text"].shape == (4, batch["id"].shape[1])
        for row in range(4):
            count = int(batch["tokens_segment"][row].max())
            for place in range(count):
                sample = int(batch["tokens"][row][batch["tokens_segment"][row] == place + 1][0])
                assert (batch["id"][row, place], batch["text"][row, place]) == (
                    table["id"][sample],
                    table["text"][sample],
                )
                seen.append(sample)
            assert not any(batch["id"][row, count:])
    assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.parametrize("packing", ["", 'packing = "60 steps"'])
def test_a_masked_sample_has_an_empty_string(tmp_path: Path, packing: str) -> None:
    table = write_table(tmp_path)
    table["tokens"][5][:] = np.nan
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    path = job_of(tmp_path, f'budget = "240 steps"\n{packing}', 'not_finite = "mask"\nmax_bad = "100 %"')
    ids = [identity for batch in batches_of(path) for identity in batch["id"].ravel() if identity]
    assert sorted(ids) == [identity for row, identity in enumerate(table["id"]) if row != 5]


def test_a_source_that_is_repeated_finds_room_for_its_longest_string_each_time(tmp_path: Path) -> None:
    write_table(tmp_path)
    path = tmp_path / "job.toml"
    pq.write_table(
        pa.table({"tokens": [np.ones(9, np.float32)], "id": ["one"], "text": ["x" * 50_000]}), tmp_path / "b.parquet"
    )
    path.write_text(
        '[job]\nname = "x"\n[streams.train]\nlength = "tokens"\nrows = 16\n'
        'strings = ["text"]\nweights = [1, 5]\ncycle = [false, true]\n'
        + "".join(f'[[streams.train.sources]]\nsource = "parquet"\npaths = ["{name}.parquet"]\n' for name in ("a", "b"))
    )
    index_missing(JobFile(path))
    most = max(sum(map(len, batch["text"])) for batch in batches_of(path))
    assert most > 2 * 50_000


def test_chunks_have_the_strings_of_their_recording(tmp_path: Path) -> None:
    lines = ["path,text"]
    for number, seconds in enumerate((1.0, 2.3, 0.7)):
        soundfile.write(tmp_path / f"{number}.wav", np.zeros(int(8000 * seconds), np.int16), 8000)
        lines.append(f"{number}.wav,{'abc' * (number + 1)}")
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "job.toml"
    path.write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "manifest"\npaths = ["a.csv"]\nlength = "audio"\n'
        'budget = "4 s"\nchunk = "0.5 s"\nstrings = ["text", "path"]\n'
    )
    index_missing(JobFile(path))
    found = list[tuple[str, str]]()
    for batch in batches_of(path):
        found += [pair for pair in zip(batch["path"], batch["text"], strict=True) if pair[0]]
    assert {(name, text) for name, text in found} == {("0.wav", "abc"), ("1.wav", "abcabc"), ("2.wav", "abcabcabc")}
    assert len(found) == 2 + 5 + 2


@pytest.mark.parametrize(
    ("strings", "match"),
    [
        ('["id", "id"]', "each of them once"),
        ('{ tokens_segment = "id" }\npacking = "90 steps"', "which batches have, got tokens_segment"),
        ("{ a = 1 }", "each a string"),
        ('{ "" = "id" }', "names that are not empty"),
        ('["tag"]', "which batches have, got tag"),
        ('{ tokens_length = "id" }', "which batches have, got tokens_length"),
    ],
)
def test_a_key_is_refused_that_is_there_twice_or_that_batches_have_already(
    tmp_path: Path, strings: str, match: str
) -> None:
    table = write_table(tmp_path)
    pq.write_table(pa.table({**table, "tag": table["id"]}), tmp_path / "a.parquet")
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "parquet"\npaths = ["a.parquet"]\nlength = "tokens"\n'
        f'budget = "90 steps"\nstrings = {strings}\n'
    )
    with pytest.raises(SettingsError, match=match):
        index_missing(JobFile(tmp_path / "job.toml"))


def test_strings_may_have_other_keys_in_batches_than_in_their_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "abc", "id": "a longer one"}\n')
    digests = set[int]()
    # One folder, so that what the first stream keeps of the index is there for the second.
    for first, second in (("text", "id"), ("id", "text")):
        (tmp_path / "job.toml").write_text(
            '[job]\nname = "x"\n[streams.train]\nsource = "jsonl"\npaths = ["a.jsonl"]\nlength = "text"\nrows = 1\n'
            'transforms = ["characters"]\n'
            f'strings = {{ first = "{first}", second = "{second}", again = "{second}" }}\n'
        )
        index_missing(JobFile(tmp_path / "job.toml"))
        texts = {"text": "abc", "id": "a longer one"}
        (batch,) = batches_of(tmp_path / "job.toml")
        assert batch["text"].tolist() == [[1, 2, 3]]
        got = [batch[key][0] for key in ("first", "second", "again")]
        assert got == [texts[first], texts[second], texts[second]]
        digests.add(Stream(JobFile(tmp_path / "job.toml"), "train").digest)
    assert len(digests) == 2


def test_strings_of_whole_batches_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "pipeline"\npipeline = "m:f"\nstrings = ["id"]\n'
    )
    with pytest.raises(SettingsError, match='the pipeline itself makes whole batches, got "strings"'):
        JobFile(tmp_path / "job.toml")


def test_a_digest_covers_strings(tmp_path: Path) -> None:
    digests = set()
    for text in ("a", "b"):
        folder = tmp_path / text
        folder.mkdir()
        (folder / "a.jsonl").write_text(json.dumps({"text": text, "tokens": [1, 2]}) + "\n")
        (folder / "job.toml").write_text(
            '[job]\nname = "x"\n[streams.train]\nsource = "jsonl"\npaths = ["a.jsonl"]\nlength = "tokens"\n'
            'rows = 1\nstrings = ["text"]\n'
        )
        index_missing(JobFile(folder / "job.toml"))
        (batch,) = batches_of(folder / "job.toml")
        assert batch["text"].tolist() == [text]
        digests.add(batch.digest)
    assert len(digests) == 2
