"""A source cut into chunks: put together they are the recordings, whatever the format, and each has its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.commands.index import index_missing
from loader_server.commands.plan_report import facts
from loader_server.commands.showing.shown_batch import BatchNumber, ShownBatches
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import SettingsError
from tests.support.corpora import make_corpus, utterances
from tests.support.sources import decoded

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[job]
name = "chunks"
[streams.train]
source = "{source}"
paths = {paths}
length = "{length}"
budget = "100000 steps"
{stream}
"""


def opened(folder: Path, stream: str = 'chunk = "0.1 s"', **of: object) -> Stream:
    said = {"source": "manifest", "paths": ["csv.csv"], "length": "audio", "stream": stream} | of
    path = folder / "job.toml"
    path.write_text(JOB.format(**said))
    job = JobFile(path)
    index_missing(job)
    return Stream(job, "train")


def test_recordings_come_in_stretches_of_which_the_last_has_the_text(tmp_path):
    make_corpus(tmp_path, samples=6)
    stream = opened(tmp_path)
    made = [decoded(stream.source, sample) for sample in range(stream.samples)]
    begins = stream.source.begins(0, stream.samples)
    groups = np.split(np.arange(stream.samples), np.flatnonzero(begins)[1:])
    assert len(groups) == 6
    for own, spoken in zip(groups, utterances(6), strict=True):
        np.testing.assert_allclose(np.concatenate([made[one]["audio"] for one in own]), spoken.audio, atol=1e-4)
        assert [made[one]["text"] for one in own] == [""] * (len(own) - 1) + [spoken.text]
        assert {made[one]["audio_rate"] for one in own} == {8000}
        assert all(len(made[one]["audio"]) == 800 for one in own[:-1])
    lengths = stream.source.lengths
    assert lengths["audio"][:].tolist() == [len(one["audio"]) for one in made]
    assert lengths["text"][:].tolist() == [len(one["text"]) for one in made]
    assert lengths["audio_rate"][3] == 8000
    stream.close()


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_stretch_is_read_without_the_rest(tmp_path, suffix):
    make_corpus(tmp_path, samples=3, suffix=suffix, longest_s=4.0)
    stream = opened(tmp_path)
    raw = list(stream.source.read(range(stream.samples)))
    assert {len(one) for one in raw[:3]} == ({1600} if suffix == "wav" else {0})
    stream.close()


def test_names_places_and_identities_tell_chunks_apart(tmp_path):
    make_corpus(tmp_path, samples=2)
    stream = opened(tmp_path)
    source = stream.source
    names = [source.name(sample) for sample in range(stream.samples)]
    assert names[:2] == ["clips/00000.wav", "clips/00001.wav [0:800]"]
    assert len({source.identity(sample) for sample in range(stream.samples)}) == stream.samples
    assert source.place(1) == source.place(2)
    with pytest.raises(IndexError):
        source.name(stream.samples)
    stream.close()


def test_what_is_as_long_in_every_recording_is_cut_with_it(tmp_path):
    """Labels of each frame are; the label of the whole is in its last chunk."""
    lengths = [7, 3, 12]
    rows = np.arange(sum(lengths))
    np.savez(
        tmp_path / "data.npz",
        frames_values=np.stack([rows, -rows], 1).astype(np.float32),
        frames_offsets=np.cumsum([0, *lengths]),
        labels_values=rows.astype(np.int32),
        labels_offsets=np.cumsum([0, *lengths]),
        words_values=np.arange(6, dtype=np.int32),
        words_offsets=np.array([0, 1, 4, 6]),
        speaker=np.array([5, 6, 7]),
    )
    stream = opened(tmp_path, 'chunk = "5 steps"', source="numpy", paths=["data.npz"], length="frames")
    made = [decoded(stream.source, sample) for sample in range(stream.samples)]
    assert [one["labels"].tolist() for one in made[:2]] == [[0, 1, 2, 3, 4], [5, 6]]
    assert [one["words"].tolist() for one in made] == [[], [0], [1, 2, 3], [], [], [4, 5]]
    assert [int(one["speaker"]) for one in made] == [5, 5, 6, 7, 7, 7]
    for one in made:
        np.testing.assert_array_equal(one["frames"][:, 0], one["labels"])
    assert stream.source.lengths["words"][:].tolist() == [len(one["words"]) for one in made]
    stream.close()


def test_long_texts_are_cut_by_their_characters(tmp_path):
    texts = ["a text of some length", "short", "another one"]
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in texts))
    stream = opened(
        tmp_path,
        'chunk = "8 characters"\ntransforms = ["characters"]',
        source="lines",
        paths=["texts.txt"],
        length="text",
    )
    made = [decoded(stream.source, sample)["text"] for sample in range(stream.samples)]
    assert made == ["a text o", "f some l", "ength", "short", "another ", "one"]
    stream.close()


def test_a_mixture_is_cut_in_each_of_its_sources(tmp_path):
    for name, samples in (("one", 3), ("two", 4)):
        make_corpus(tmp_path / name, samples=samples)
    path = tmp_path / "job.toml"
    path.write_text(
        '[job]\nname = "mixed"\n[streams.train]\nlength = "audio"\nbudget = "10 s"\nchunk = "0.1 s"\n'
        + "".join(
            f'[[streams.train.sources]]\nsource = "manifest"\npaths = ["{one}/csv.csv"]\n' for one in ("one", "two")
        )
    )
    job = JobFile(path)
    index_missing(job)
    stream = Stream(job, "train")
    total = sum(len(decoded(stream.source, sample)["audio"]) for sample in range(stream.samples))
    assert total == sum(len(spoken.audio) for count in (3, 4) for spoken in utterances(count))
    stream.close()


def test_chunks_are_part_of_the_plan_and_leave_the_index_alone(tmp_path):
    make_corpus(tmp_path, samples=4)
    digests, indexes = set(), set()
    for said in ("", 'chunk = "0.1 s"', 'chunk = "0.1 s"\nchunk_step = "0.05 s"', 'chunk = "800 frames"'):
        stream = opened(tmp_path, said)
        digests.add(stream.digest)
        indexes.add((tmp_path / ".stoker/chunks/index-train/meta.json").stat().st_mtime_ns)
        stream.close()
    assert (len(digests), len(indexes)) == (4, 1)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ('chunk = "0 s"', 'chunk: expected at least one step of "audio", got "0 s"'),
        ('chunk = "0.1 s"\nchunk_step = "0.2 s"', 'chunk_step: expected at most chunk = "0.1 s", .* got "0.2 s"'),
        ('chunk_step = "1 s"', "chunk_step belongs to"),
        ('chunk = "2 s"\nmax_length = "1 s"', 'expected a chunk of at most max_length = "1 s".*got chunk = "2 s"'),
        ('chunk = "10 s"\nshapes = ["0.05 s"]', "the longest bucket"),
        ('chunk = "much"', "an amount with its unit"),
    ],
)
def test_what_cannot_be_cut_so_is_refused(tmp_path, said, complaint):
    make_corpus(tmp_path, samples=3)
    with pytest.raises(SettingsError, match=complaint):
        opened(tmp_path, said)


def test_a_key_that_the_source_has_not_is_named(tmp_path, monkeypatch):
    make_corpus(tmp_path, samples=3)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_step.py").write_text(
        "from loader_server.transforms import transform\n"
        '@transform({"sound": ("float32", None)}, lengths={"sound": lambda of: of["audio"]})\n'
        'def renamed(sample, rng):\n    sample["sound"] = sample["audio"]\n'
    )
    with pytest.raises(SettingsError, match=r'expected a source whose samples have "sound".*got a source with "audio"'):
        opened(tmp_path, 'chunk = "1 s"\ntransforms = ["own_step:renamed"]', length="sound")


def test_transforms_that_are_measured_are_refused_before_they_are(tmp_path, monkeypatch):
    make_corpus(tmp_path, samples=3)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_measured.py").write_text("def twice(sample, rng):\n    pass\n")
    with pytest.raises(SettingsError, match=r"expected transforms that declare.*got own_measured:twice, measured"):
        opened(tmp_path, 'chunk = "1 s"\ntransforms = ["own_measured:twice"]')


def test_seconds_of_what_has_no_time_are_refused(tmp_path):
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    with pytest.raises(SettingsError, match=r'expected an amount in steps of "text".*"text" has no time in the source'):
        opened(
            tmp_path, 'chunk = "1 s"\ntransforms = ["characters"]', source="lines", paths=["texts.txt"], length="text"
        )


def test_recordings_of_several_rates_are_cut_by_their_own(tmp_path):
    for name, rate in (("slow", 8000), ("fast", 16000)):
        make_corpus(tmp_path / name, samples=2, rate=rate)
    paths = ["slow/csv.csv", "fast/csv.csv"]
    stream = opened(tmp_path, 'chunk = "0.05 s"', paths=paths)
    lengths, rates = stream.source.lengths["audio"][:], stream.source.lengths["audio_rate"][:]
    assert {int(most) for most in (lengths / rates * 1000)} >= {50}
    assert (lengths <= rates // 20).all()
    assert {int(lengths[rates == rate].max()) for rate in (8000, 16000)} == {400, 800}
    stream.close()


def carried(folder: Path, more: str = "") -> Stream:
    return opened(folder, f'chunk = "0.05 s"\ncarry = true\nmax_rows = 2\n{more}')


def test_a_masked_chunk_keeps_its_reset_and_rows_without_one_have_none(tmp_path):
    make_corpus(tmp_path, samples=3)
    stream = carried(tmp_path)
    epoch = stream.plan.epoch(0, 1)
    bad = int(epoch.batch(0).samples[1])
    batch = ShownBatches(stream, [("train", stream.identity(bad))]).build(BatchNumber(epoch=0, number=0, group=1))
    assert batch.arrays["weight"].tolist() == [1, 0]
    assert batch.arrays["tag"][1] == bad
    assert batch.arrays["reset"].tolist() == [True, True]
    last = ShownBatches(stream, []).build(BatchNumber(epoch=0, number=epoch.batches - 1, group=1))
    assert (last.arrays["tag"].tolist()[1], last.arrays["weight"][1], bool(last.arrays["reset"][1])) == (-1, 0, False)
    assert stream.fields[-1].key == "reset"
    stream.close()


def test_arrays_that_come_whole_batches_at_a_time_have_resets_too(tmp_path):
    np.savez(tmp_path / "data.npz", x_values=np.arange(30, dtype=np.int32), x_offsets=np.array([0, 21, 30]))
    said = 'chunk = "5 steps"\ncarry = true\nmax_rows = 2'
    stream = opened(tmp_path, said, source="numpy", paths=["data.npz"], length="x")
    found = [ShownBatches(stream, []).build(BatchNumber(epoch=0, number=n, group=1)).arrays for n in range(5)]
    assert [one["reset"].tolist() for one in found] == [[True, True], *[[False, False]] * 4]
    assert [one["x_length"].tolist() for one in found] == [[5, 5], [5, 4], [5, 0], [5, 0], [1, 0]]
    stream.close()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("carry = true", "carry: expected chunk, which carry belongs to, got carry = true alone"),
        ('chunk = "1 s"\nchunk_step = "0.5 s"\ncarry = true', "expected chunks that begin where the last one ends"),
        ('chunk = "1 s"\ncarry = true\nmode = "queue"', 'expected mode = "lockstep".*got mode = "queue"'),
        ('chunk = "1 s"\ncarry = true\nshapes = 4', "expected carry alone, got carry with shapes = 4"),
        ('chunk = "1 s"\ncarry = true\npacking = "2 s"', "expected carry alone, got carry with packing"),
    ],
)
def test_what_state_cannot_be_carried_through_is_refused(tmp_path, said, complaint):
    make_corpus(tmp_path, samples=3)
    with pytest.raises(SettingsError, match=complaint):
        opened(tmp_path, said)


def test_an_output_that_is_called_reset_is_refused(tmp_path, monkeypatch):
    make_corpus(tmp_path, samples=3)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_reset.py").write_text(
        "from loader_server.transforms import transform\n"
        '@transform({"reset": ("bool",)})\ndef add(sample, rng):\n    sample["reset"] = True\n'
    )
    with pytest.raises(SettingsError, match="outputs with names other than weight, tag, reset"):
        opened(tmp_path, 'transforms = ["own_reset:add"]')


def test_a_plan_of_lanes_is_shown_with_its_masked_rows(tmp_path):
    make_corpus(tmp_path, samples=3)
    stream = carried(tmp_path)
    shown = facts(stream.plan, 1)
    rows = 2 * shown["batches"]
    assert shown["padding"]["masked_rows"] == pytest.approx((rows - stream.samples) / rows)
    assert shown["shapes"] == 1
    stream.close()


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_row_that_is_a_part_of_its_recording_is_cut_within_that_part(tmp_path, suffix):
    make_corpus(tmp_path, samples=2, suffix=suffix)
    (tmp_path / "parts.csv").write_text(f"audio,offset,duration\nclips/00001.{suffix},0.02,0.12\n")
    stream = opened(tmp_path, 'chunk = "0.05 s"', paths=["parts.csv"])
    made = [decoded(stream.source, sample)["audio"] for sample in range(stream.samples)]
    assert [len(one) for one in made] == [400, 400, 160]
    np.testing.assert_allclose(np.concatenate(made), utterances(2)[1].audio[160:1120], atol=1e-4)
    stream.close()
