"""Several sources as one: samples by offset, whatever their kinds, and a source that lacks a value named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.commands.index import index_missing, index_streams
from loader_server.index.joined import JoinedSource
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import DataError, SettingsError
from shared.wire.batch_layout import BucketShape, Field, fields_of_batch, layout_of
from tests.support.corpora import make_corpus, utterances
from tests.support.sources import decoded

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[job]
name = "mixed"
seed = 5
[streams.train]
transforms = [{transforms}]
length = "{length}"
budget = "600 steps"
{stream}
{sources}
"""

MANIFEST = '[[streams.train.sources]]\nsource = "manifest"\npaths = ["csv.csv"]\n'
LINES = '[[streams.train.sources]]\nsource = "lines"\npaths = ["a.txt", "b.txt"]\n'
TOKENS = '[[streams.train.sources]]\nsource = "synthetic"\nsamples = {samples}\nmedian_length = {length}\n'
FEATURES = TOKENS + 'kind = "features"\nbands = {bands}\n'

TEXTS = [f"line {n} of the first" for n in range(70)] + ["one more", "and another"]

OWN = """
import numpy as np
from loader_server.transforms import transform

@transform(draws=False)
def louder(sample, rng):
    sample["audio"] *= 2

LEXICON = {}

@transform(draws=False)
def looked_up(sample, rng):
    LEXICON[sample["text"]]

def undeclared(sample, rng):
    sample["text"] = np.arange(len(sample["text"]), dtype=np.int16)
"""


def job(
    folder: Path, *sources: str, transforms: str = '"characters"', length: str = "text", stream: str = ""
) -> JobFile:
    make_corpus(folder, samples=8)
    (folder / "a.txt").write_text("\n".join(TEXTS[:70]) + "\n\n")
    (folder / "b.txt").write_text("\n".join(TEXTS[70:]))
    path = folder / "job.toml"
    path.write_text(JOB.format(transforms=transforms, length=length, stream=stream, sources="".join(sources)))
    return JobFile(path)


def opened(made: JobFile) -> Stream:
    index_missing(made)
    return Stream(made, "train")


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return opened(job(tmp_path, MANIFEST, LINES))


def test_sources_of_different_kinds_follow_each_other(stream: Stream) -> None:
    expected = [one.text for one in utterances(8)] + TEXTS
    assert [decoded(stream.source, sample)["text"] for sample in range(stream.samples)] == expected
    assert stream.source.name(7) == "clips/00007.wav"
    assert [stream.source.name(sample) for sample in (8, 79)] == ["a.txt:1", "b.txt:2"]
    assert [stream.source.place(sample)[1] for sample in (0, 8)] == [2, 1]
    assert stream.identity(8).startswith("a.txt, a line of 19 bytes")
    assert stream.bad_rows == {"empty_line": 1}
    assert stream.chain.fields == (Field(key="text", dtype="int32", shape=(None,)),)


def test_lengths_are_those_of_each_wherever_they_are_asked_for(stream: Stream) -> None:
    expected = [len(one.text) for one in utterances(8)] + [len(text) for text in TEXTS]
    for start, stop in ((0, 80), (0, 8), (8, 80), (3, 12), (7, 9), (20, 20)):
        assert stream.table.lengths("text", start, stop).tolist() == expected[start:stop]


def test_bytes_are_read_in_the_order_that_is_asked_for(stream: Stream) -> None:
    mixed = [79, 0, 8, 7, 9, 0]
    assert list(stream.source.read(mixed)) == [next(iter(stream.source.read([sample]))) for sample in mixed]


def test_segments_never_hold_samples_of_two_sources_and_parts_are_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loader_server.sources.source.SEGMENT_SAMPLES", 6)
    stream = opened(job(tmp_path, MANIFEST, LINES, stream="weights = [1, 3]"))
    assert stream.table.segments.tolist() == [0, 6, *range(8, 80, 6), 80]


def test_each_source_has_an_index_of_its_own_and_all_count(tmp_path: Path) -> None:
    first = opened(job(tmp_path, MANIFEST, LINES))
    assert sorted(path.name for path in (tmp_path / ".stoker/mixed/index-train").glob("source-*")) == [
        "source-1",
        "source-2",
    ]
    other = job(tmp_path, MANIFEST, LINES.replace(', "b.txt"', ""))
    with pytest.raises(DataError, match=r"source-2: expected an index made with .*a\.txt.*run loader-server index"):
        Stream(other, "train")
    index_streams(other, ["train"])
    again = Stream(other, "train")
    assert again.samples == 78
    assert again.digest != first.digest
    assert again.opened != first.opened


def test_the_report_names_each(tmp_path: Path) -> None:
    reports = index_streams(job(tmp_path, MANIFEST, LINES), ["train"])
    assert {name: report.samples for name, report in reports.items()} == {"train, source-1": 8, "train, source-2": 72}


# --- whole batches ---


def test_sources_that_write_whole_batches_do_so_together(tmp_path: Path) -> None:
    sources = (TOKENS.format(samples=30, length=5), TOKENS.format(samples=50, length=9))
    source = opened(job(tmp_path, *sources, transforms="", length="tokens")).source
    assert isinstance(source, JoinedSource)
    assert source.gathers
    samples = np.array([70, 3, 29, 30, 5, 79])
    longest = max(len(decoded(source, sample)["tokens"]) for sample in samples.tolist())
    layout = layout_of(fields_of_batch(source.fields), BucketShape(rows=6, lengths={"tokens": longest}))
    out = layout.arrays(np.full(layout.nbytes, 0xA5, np.uint8))
    source.gather(samples, out)
    for row, sample in enumerate(samples.tolist()):
        value = decoded(source, sample)["tokens"]
        assert out["tokens_length"][row] == len(value)
        assert out["tokens"][row].tolist() == [*value.tolist(), *[0] * (longest - len(value))]


def test_what_has_to_be_read_before_is_asked_of_each_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = (TOKENS.format(samples=30, length=5), TOKENS.format(samples=50, length=9))
    source = opened(job(tmp_path, *sources, transforms="", length="tokens")).source
    assert not source.reads_ahead
    first, second = source._sources
    monkeypatch.setattr(second, "reads_ahead", True)
    assert source.reads_ahead, "one of them does"
    monkeypatch.setattr(type(first), "reads_ahead", True)
    first.unread = lambda samples: samples[samples < 5]
    second.unread = lambda samples: samples[:1]
    assert source.reads_ahead
    assert source.unread(np.array([40, 3, 29, 4, 79])).tolist() == [3, 4, 40]
    assert source.unread(np.array([], np.int64)).tolist() == []


def test_sources_that_read_samples_do_not_gather(stream: Stream) -> None:
    assert not stream.source.gathers


# --- what does not fit together ---


def test_one_value_of_two_shapes_is_refused(tmp_path: Path) -> None:
    sources = (FEATURES.format(samples=3, length=5, bands=4), FEATURES.format(samples=3, length=5, bands=5))
    made = job(tmp_path, *sources, transforms="", length="features")
    message = r'sources, number 2 \(synthetic\): expected "features" as float32 \[any, 4\], as .*got .*\[any, 5\]'
    with pytest.raises(DataError, match=message):
        index_streams(made, ["train"])


def test_a_source_without_the_key_that_counts_is_named(tmp_path: Path) -> None:
    made = job(tmp_path, MANIFEST, LINES, length="audio")
    with pytest.raises(
        SettingsError, match=r'number 2 \(lines\): expected a source that has "audio", as others have, got no'
    ):
        opened(made)


def test_a_source_without_what_a_transforms_lengths_need_is_named(tmp_path: Path) -> None:
    made = job(tmp_path, MANIFEST, LINES, transforms='"logmel", "characters"')
    with pytest.raises(SettingsError, match=r"number 2 \(lines\): expected a length of 'audio', got text"):
        opened(made)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mixed_transforms.py").write_text(OWN)
    sys.modules.pop("mixed_transforms", None)
    return "mixed_transforms"


def test_a_source_without_what_a_transform_asks_for_is_named_while_indexing(tmp_path: Path, own: str) -> None:
    made = job(tmp_path, MANIFEST, LINES, transforms=f'"{own}:louder", "characters"')
    with pytest.raises(SettingsError, match=r'number 2 \(lines\): expected a source that has "audio", .*got "text"'):
        index_streams(made, ["train"])


def test_what_else_a_transform_does_not_find_is_the_samples_own_affair(tmp_path: Path, own: str) -> None:
    made = job(tmp_path, MANIFEST, LINES, transforms=f'"{own}:looked_up", "characters"')
    assert len(index_streams(made, ["train"])) == 2


@pytest.mark.parametrize(("rate", "per_second"), [(8000, 8000.0), (16000, None)])
def test_a_value_has_time_where_all_sources_agree_on_it(tmp_path: Path, rate: int, per_second: float | None) -> None:
    (tmp_path / "more").mkdir()
    make_corpus(tmp_path / "more", samples=3, rate=rate)
    other = MANIFEST.replace("csv.csv", "more/csv.csv")
    stream = opened(job(tmp_path, MANIFEST, other, transforms="", length="audio"))
    assert stream.source.fields == (Field(key="audio", dtype="float32", shape=(None,), per_second=per_second),)


def test_lengths_are_measured_in_each(tmp_path: Path, own: str) -> None:
    stream = opened(job(tmp_path, MANIFEST, LINES, transforms=f'"{own}:undeclared"'))
    assert stream.chain.fields == (Field(key="text", dtype="int16", shape=(None,)),)
    expected = [len(one.text) for one in utterances(8)] + [len(text) for text in TEXTS]
    assert stream.table.lengths("text", 0, 80).tolist() == expected


@pytest.mark.parametrize(
    ("sources", "stream", "message"),
    [
        ([LINES.replace("paths", "path")], "", r'sources, number 1: expected a known setting, perhaps "paths"'),
        (
            [LINES, LINES.replace("lines", "line")],
            "",
            r'sources, number 2: expected source = .*perhaps "lines", got "line"',
        ),
        (["[[streams.train.sources]]\n"], "", r'number 1: expected source = .*got "no source"'),
        ([LINES], 'source = "lines"\npaths = ["a.txt"]', r"\[streams.train\]: expected .*got .*paths"),
        ([LINES], 'source = "lines"', r"expected source or sources, got both"),
        ([], "sources = 3", r"sources: expected a list of tables, got 3"),
        ([LINES, MANIFEST], 'paths = ["a.txt"]', r'got "paths"'),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, sources: list[str], stream: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        job(tmp_path, *sources, stream=stream)


def test_a_stream_like_another_may_have_one_source_instead_of_several(tmp_path: Path) -> None:
    dev = '[streams.dev]\nlike = "train"\nsource = "lines"\npaths = ["b.txt"]\n'
    made = job(tmp_path, MANIFEST, LINES, dev)
    index_streams(made, ["dev"])
    assert Stream(made, "dev").samples == 2
    assert not made.is_indexed("train")
    assert made.is_indexed("dev")
