"""The manifest source: opens from its index, reads, decodes, and refuses what has changed."""

import json
import os
import pickle
import shutil
import struct

import numpy as np
import pytest
import soundfile

from shared.errors import DataError, ReadError, SampleError
from tests.support.corpora import make_corpus, utterances
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of


def indexed(base, *paths, **how):
    spec = spec_of("manifest", base, paths=list(paths), **how)
    index_source(spec)
    return open_source(spec)


def opened(base):
    return open_source(spec_of("manifest", base, paths=["csv.csv"]))


@pytest.fixture
def source(tmp_path):
    return indexed(tmp_path, make_corpus(tmp_path, samples=4).name)


def write_audio(path, frames=800, rate=8000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.full((frames, channels), 0.25, np.float32), rate)


@pytest.mark.parametrize(
    ("style", "suffix"), [("csv", "wav"), ("deepspeech", "flac"), ("jsonl", "ogg"), ("nemo", "mp3")]
)
def test_every_style_and_format_gives_audio_text_and_columns(tmp_path, style, suffix):
    source = indexed(tmp_path, make_corpus(tmp_path, samples=3, style=style, suffix=suffix).name)
    for number, utterance in enumerate(utterances(3, suffix=suffix)):
        sample = decoded(source, number)
        assert source.name(number) == utterance.path
        assert sample["text"] == utterance.text
        assert (sample["audio"].dtype, sample["audio"].shape) == (np.float32, utterance.audio.shape)
        assert np.corrcoef(sample["audio"], utterance.audio)[0, 1] > (0.999 if suffix in ("wav", "flac") else 0.9)
        assert sample["audio_rate"] == 8000
    assert set(sample) - {"audio", "audio_rate", "text"} == {"deepspeech": {"wav_filesize"}, "nemo": {"duration"}}.get(
        style, set()
    )
    source.close()


def test_a_data_set_of_common_voice_works_as_it_comes(tmp_path):
    for number in (1, 2, 3):
        write_audio(tmp_path / "de" / "clips" / f"common_voice_de_{number}.wav", frames=100 * number)
    rows = "".join(f"c{number}\tcommon_voice_de_{number}.wav\tSatz {number}\n" for number in (1, 2, 3))
    (tmp_path / "de" / "validated.tsv").write_text("client_id\tpath\tsentence\n" + rows)
    source = indexed(tmp_path, "de/validated.tsv")
    assert [len(decoded(source, number)["audio"]) for number in range(3)] == [100, 200, 300]
    assert [decoded(source, number)["text"] for number in range(3)] == ["Satz 1", "Satz 2", "Satz 3"]
    assert source.name(2) == "clips/common_voice_de_3.wav"


@pytest.mark.heritage("D16")
def test_several_manifests_are_merged_with_paths_relative_to_each(tmp_path):
    first = make_corpus(tmp_path / "a", samples=2)
    second = make_corpus(tmp_path / "b" / "deep", samples=3, style="nemo", suffix="flac")
    source = indexed(tmp_path, *(str(path.relative_to(tmp_path)) for path in (second, first)))
    assert source.samples == 5
    assert [source.name(n) for n in range(5)] == [f"clips/0000{n}.flac" for n in range(3)] + [
        "clips/00000.wav",
        "clips/00001.wav",
    ]
    assert [decoded(source, n)["text"] for n in (0, 3)] == [utterances(1)[0].text] * 2
    assert decoded(source, 3)["duration"] == ""


def test_channels_are_averaged(tmp_path):
    (tmp_path / "m.csv").write_text("audio\ntwo.wav\n")
    soundfile.write(tmp_path / "two.wav", np.tile(np.array([[0.5, 0.0]], np.float32), (100, 1)), 8000, subtype="FLOAT")
    source = indexed(tmp_path, "m.csv")
    assert decoded(source, 0)["audio"].tolist() == [0.25] * 100


def test_one_of_several_channels_may_be_chosen(tmp_path):
    (tmp_path / "m.csv").write_text("audio\ntwo.wav\n")
    both = np.random.default_rng(0).uniform(-0.5, 0.5, (100, 2)).astype(np.float32)
    soundfile.write(tmp_path / "two.wav", both, 8000, subtype="FLOAT")
    names = set()
    for channel in (0, 1):
        source = indexed(tmp_path, "m.csv", channel=channel)
        assert decoded(source, 0)["audio"].tolist() == both[:, channel].tolist()
        assert source.name(0) == "two.wav"
        names.add(source.identity(0))
    assert len(names) == 2


def test_audio_has_time_where_all_files_have_one_rate(tmp_path, source):
    assert source.fields[0].per_second == 8000.0
    write_audio(tmp_path / "x" / "a.wav", rate=16000)
    write_audio(tmp_path / "x" / "b.wav", rate=8000)
    (tmp_path / "x" / "m.csv").write_text("audio\na.wav\nb.wav\n")
    assert indexed(tmp_path / "x", "m.csv").fields[0].per_second is None


@pytest.mark.fault(29)
@pytest.mark.parametrize("change", ["longer", "same_size", "shorter"])
def test_a_file_that_changed_is_named(tmp_path, source, change):
    path = tmp_path / source.name(2)
    content = path.read_bytes()
    path.write_bytes({"longer": content + b"x", "same_size": content[::-1], "shorter": content[:-1]}[change])
    os.utime(path, ns=(1, 1))
    with pytest.raises(
        ReadError,
        match=r"clips/00002.wav \(.*csv.csv, line 4\): expected the file that was indexed \(\d+ bytes\), got one of",
    ):
        raw_of(source, 2)
    assert raw_of(source, 1)


def overwrite(path, content):
    """Write over a file, and put its time back, as `touch -r` does."""
    times = path.stat()
    assert len(content) == times.st_size
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def other_sound(path):
    """Another recording of equal size."""
    raw = path.read_bytes()
    return raw[:-100] + bytes(byte ^ 1 for byte in raw[-100:])


OTHER_BYTES = (
    r"expected the file that was indexed \(\d+ bytes\), got one of the same size with other bytes, changed since"
)


def test_other_bytes_whose_time_was_put_back_are_refused(tmp_path, source):
    path = tmp_path / source.name(2)
    content = path.read_bytes()
    overwrite(path, other_sound(path))
    for again in (source, opened(tmp_path)):
        with pytest.raises(ReadError, match=rf"clips/00002.wav \(.*csv.csv, line 4\): {OTHER_BYTES}"):
            raw_of(again, 2)
        assert raw_of(again, 1)
        with pytest.raises(ReadError, match=OTHER_BYTES):
            again.look_for_changes(1000.0)
    overwrite(path, content)
    assert raw_of(source, 2) == content
    source.look_for_changes(1000.0)


def test_bytes_that_come_while_a_file_is_read_are_refused(tmp_path, source, monkeypatch):
    path, pread = tmp_path / source.name(2), os.pread

    def write_into(handle, nbytes, offset):
        monkeypatch.setattr(os, "pread", pread)
        overwrite(path, other_sound(path))
        return pread(handle, nbytes, offset)

    monkeypatch.setattr(os, "pread", write_into)
    with pytest.raises(ReadError, match=OTHER_BYTES):
        raw_of(source, 2)


def test_rights_links_and_copies_with_their_times_change_nothing(tmp_path, source):
    path = tmp_path / source.name(2)
    before = raw_of(source, 2)
    path.chmod(0o600)
    assert raw_of(source, 2) == before
    os.link(path, tmp_path / "linked")
    assert raw_of(source, 2) == before
    shutil.copy2(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    assert raw_of(source, 2) == before
    source.look_for_changes(1000.0)


def test_the_fingerprint_is_of_what_was_found_in_files_and_not_of_their_bytes(tmp_path, source):
    path = tmp_path / source.name(2)
    before = source.indexed
    overwrite(path, other_sound(path))
    again = indexed(tmp_path, "csv.csv")
    assert again.indexed.fingerprint == before.fingerprint
    assert again.identity(2) != source.identity(2)
    assert again.identity(1) == source.identity(1)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_other_bytes_are_refused_in_parts_of_recordings_too(tmp_path, suffix):
    long_recording(tmp_path, suffix)
    spec, _ = nemo(tmp_path, {"audio": f"long.{suffix}", "offset": 1, "duration": 0.5})
    source = open_source(spec)
    decoded(source, 0)
    raw = raw_of(source, 0)
    overwrite(tmp_path / f"long.{suffix}", other_sound(tmp_path / f"long.{suffix}"))
    with pytest.raises(ReadError, match=OTHER_BYTES):
        source.decode(0, raw_of(source, 0))
    if not raw:
        with pytest.raises(ReadError, match=OTHER_BYTES):
            source.decode(0, raw)


def test_another_manifest_whose_time_was_put_back_is_refused(tmp_path, source):
    manifest = tmp_path / "csv.csv"
    content = manifest.read_bytes()
    overwrite(manifest, content.replace(b"zero", b"hero"))
    with pytest.raises(DataError, match=r"csv\.csv, index .*: expected the manifest that the index was made from"):
        opened(tmp_path)
    overwrite(manifest, content)
    manifest.chmod(0o600)
    assert opened(tmp_path).samples == source.samples


@pytest.mark.fault(29)
def test_a_file_that_shrinks_while_it_is_read_is_named(source, monkeypatch):
    given, pread = [], os.pread
    monkeypatch.setattr(
        os, "pread", lambda handle, _, offset: b"" if given else given.append(1) or pread(handle, 100, 0)
    )
    with pytest.raises(ReadError, match=r"expected the file that was indexed .*, got one of 100 bytes"):
        raw_of(source, 2)


def test_a_file_that_comes_in_pieces_is_read_whole(tmp_path, source, monkeypatch):
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, nbytes, offset: pread(handle, min(nbytes, 1000), offset))
    assert raw_of(source, 2) == (tmp_path / source.name(2)).read_bytes()


def test_a_file_that_is_gone_is_an_oserror_that_names_it(tmp_path, source):
    (tmp_path / source.name(0)).unlink()
    with pytest.raises(FileNotFoundError, match=r"clips/00000.wav"):
        raw_of(source, 0)


@pytest.mark.fault(7)
@pytest.mark.parametrize(
    ("raw", "reason", "message"),
    [
        (
            b"this is no audio at all, but a text",
            "undecodable",
            r"clips/00001.wav \(.*line 3\): expected WAV, FLAC, OGG or MP3",
        ),
        (b"", "undecodable", r"expected WAV, FLAC, OGG or MP3"),
        (None, "truncated", r"expected \d+ bytes of audio, as the file's header says, got \d+"),
    ],
)
def test_whole_bytes_that_cannot_be_decoded_are_a_sample_error(source, raw, reason, message):
    with pytest.raises(SampleError, match=message) as caught:
        source.decode(1, raw_of(source, 1)[:-100] if raw is None else raw)
    assert caught.value.reason == reason
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_fewer_frames_than_were_indexed_are_a_sample_error(tmp_path):
    source = indexed(tmp_path, make_corpus(tmp_path, samples=2, suffix="mp3").name)
    with pytest.raises(SampleError, match=r"expected \d+ frames, as the file's header says, got \d+"):
        source.decode(1, raw_of(source, 1)[:-400])


def test_a_manifest_that_was_only_touched_or_copied_is_the_same(tmp_path, source):
    os.utime(tmp_path / "csv.csv", ns=(5, 5))
    assert opened(tmp_path).samples == source.samples


@pytest.mark.parametrize("same_size", [True, False])
def test_an_index_of_another_manifest_is_refused(tmp_path, source, same_size):
    manifest = tmp_path / "csv.csv"
    content = manifest.read_text()
    manifest.write_text(content.replace("zero", "hero") if same_size else content + "more.wav,x\n")
    os.utime(manifest, ns=(5, 5))
    with pytest.raises(
        DataError,
        match=r"csv.csv, index .*: expected the manifest .* made from another manifest: run loader-server index",
    ):
        opened(tmp_path)


def test_a_manifest_that_is_not_there_is_refused(tmp_path, source):
    (tmp_path / "csv.csv").unlink()
    with pytest.raises(
        DataError, match=r"csv.csv: expected a manifest that can be read, got No such file .*Mend `paths`"
    ):
        opened(tmp_path)
    with pytest.raises(DataError, match=r"nowhere.csv: expected a manifest that can be read, got No such file"):
        indexed(tmp_path, "nowhere.csv")


def test_a_transcript_in_some_manifests_only_is_refused(tmp_path):
    first = make_corpus(tmp_path, samples=2)
    (tmp_path / "other.csv").write_text("audio\nclips/00000.wav\n")
    with pytest.raises(
        DataError, match=r"expected a transcript in all manifests or in none, got no such column in .*other.csv"
    ):
        indexed(tmp_path, first.name, "other.csv")


# --- what a sample is known by ---


def identities(base, *names):
    """By path, in the order in which they are numbered."""
    source = indexed(base, *names)
    return {source.name(sample): source.identity(sample) for sample in range(source.samples)}


def test_a_sample_keeps_its_identity_under_another_number(tmp_path):
    manifest = make_corpus(tmp_path, samples=4)
    before = identities(tmp_path, manifest.name)
    first, *rows = manifest.read_text().splitlines()
    manifest.write_text("\n".join([first, *reversed(rows)]) + "\n")
    after = identities(tmp_path, manifest.name)
    assert list(after) == list(reversed(before))
    assert after == before
    assert len(set(before.values())) == 4


@pytest.mark.parametrize("change", ["size", "time", "text", "folder"])
def test_a_sample_that_somebody_mended_has_another_identity_and_no_other_has(tmp_path, change):
    (tmp_path / "data").mkdir()
    manifest = make_corpus(tmp_path / "data", samples=3)
    name, victim, folder = "clips/00001.wav", tmp_path / "data/clips/00001.wav", "data"
    before = identities(tmp_path, "data/csv.csv")
    status = victim.stat()
    if change == "size":
        soundfile.write(victim, np.zeros(99, np.float32), 8000)
        os.utime(victim, ns=(0, status.st_mtime_ns))
    elif change == "time":
        os.utime(victim, ns=(0, status.st_mtime_ns + 1))
    elif change == "text":
        lines = manifest.read_text().splitlines()
        lines[2] += " mended"
        manifest.write_text("\n".join(lines) + "\n")
    else:
        folder = "other"
        (tmp_path / "data").rename(tmp_path / folder)
    after = identities(tmp_path, f"{folder}/csv.csv")
    changed = {one for one in before if before[one] != after[one]}
    assert changed == (set(before) if change == "folder" else {name})


def test_an_identity_says_to_people_which_file_it_is(tmp_path):
    (tmp_path / "data").mkdir()
    manifest = make_corpus(tmp_path / "data", samples=1)
    status = (tmp_path / "data/clips/00000.wav").stat()
    (said,) = identities(tmp_path, f"data/{manifest.name}").values()
    assert said.startswith(f"data/clips/00000.wav, {status.st_size} bytes, changed at {status.st_mtime_ns} ns, digest ")


# --- parts of long recordings, as NeMo's manifests name them ---


def long_recording(folder, suffix, rate=16000, seconds=3.0):
    """A recording of which every stretch sounds different."""
    samples = np.random.default_rng(5).standard_normal(int(seconds * rate)).astype(np.float32).cumsum() / 400
    soundfile.write(folder / f"long.{suffix}", samples, rate)
    return soundfile.read(folder / f"long.{suffix}", dtype="float32")[0]


def nemo(folder, *rows):
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = spec_of("manifest", folder, paths=["m.jsonl"])
    return spec, index_source(spec)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_a_row_with_an_offset_is_that_part_of_its_recording(tmp_path, suffix):
    whole = long_recording(tmp_path, suffix)
    audio, times = f"long.{suffix}", [(0.0, 1.0), (1.25, 0.5), (2.0, None), (2.9, 0.4), (0, None), (0.5, 2)]
    row = {"audio_filepath": audio, "text": "x"}
    rows = [row | {"offset": start} | ({"duration": length} if length else {}) for start, length in times]
    spec, report = nemo(tmp_path, *rows)
    source = open_source(spec)
    assert report.bad == ()
    frames = len(whole)
    for sample, (start, stop) in enumerate(
        [(0, 16000), (20000, 28000), (32000, frames), (46400, frames), (0, frames), (8000, 40000)]
    ):
        got = decoded(source, sample)
        assert (source.lengths["audio"][sample], got["audio_rate"], got["text"]) == (stop - start, 16000, "x")
        np.testing.assert_allclose(got["audio"], whole[start:stop], atol=0 if suffix in ("wav", "flac") else 2e-3)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
def test_a_part_of_a_recording_whose_size_a_pipe_left_open_is_that_part(tmp_path, subtype):
    soundfile.write(tmp_path / "long.wav", np.linspace(-0.5, 0.5, 16000), 16000, subtype=subtype)
    raw = (tmp_path / "long.wav").read_bytes()
    whole = soundfile.read(tmp_path / "long.wav", dtype="float32")[0]
    (tmp_path / "long.wav").write_bytes(raw[:4] + struct.pack("<I", 36) + raw[8:40] + bytes(4) + raw[44:])
    spec, report = nemo(tmp_path, {"audio": "long.wav", "offset": 0.25, "duration": 0.5}, {"audio": "long.wav"})
    source = open_source(spec)
    assert report.bad == ()
    assert decoded(source, 0)["audio"].tolist() == whole[4000:12000].tolist()
    assert decoded(source, 1)["audio"].tolist() == whole.tolist()


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_a_recording_that_lost_its_second_half_is_a_bad_row_with_each_of_its_parts(tmp_path, suffix):
    long_recording(tmp_path, suffix)
    raw = (tmp_path / f"long.{suffix}").read_bytes()
    (tmp_path / f"long.{suffix}").write_bytes(raw[: len(raw) // 2])
    write_audio(tmp_path / "whole.wav")
    row = {"audio": f"long.{suffix}", "text": "x"}
    _, report = nemo(tmp_path, row, row | {"offset": 0, "duration": 0.5}, {"audio": "whole.wav", "text": "y"})
    assert (report.samples, dict(report.bad_counts)) == (1, {"truncated": 2})
    assert [bad.line for bad in report.bad] == [1, 2]


def test_a_stretch_of_plain_wav_is_a_range_of_bytes(tmp_path, monkeypatch):
    whole = long_recording(tmp_path, "wav")
    spec, _ = nemo(tmp_path, {"audio": "long.wav", "offset": 1, "duration": 0.01})
    source, asked, pread = open_source(spec), [], os.pread
    monkeypatch.setattr(source.files.seen, "has", lambda *_status: True)
    monkeypatch.setattr(os, "pread", lambda *how: asked.append(how[1:]) or pread(*how))
    assert len(raw_of(source, 0)) == 320
    assert asked == [(44, 0), (320, 44 + 32000)]
    assert decoded(source, 0)["audio"].tolist() == whole[16000:16160].tolist()


@pytest.mark.parametrize(
    ("offset", "duration", "reason", "detail"),
    [
        (3.0, 1, "outside_recording", "expected a part of a recording of 3 s, got one from 3 s to 4 s"),
        (2, 1.6, "outside_recording", "expected a part of a recording of 3 s, got one from 2 s to 3.6 s"),
        (-1, 2, "outside_recording", "got one from -1 s to 1 s"),
        (1, 0, "empty_stretch", "expected an end after the beginning, got one from 1 s to 1 s"),
        (1, -0.5, "empty_stretch", "got one from 1 s to 0.5 s"),
        ("soon", 1, "malformed", "expected seconds as offset and duration, got soon and 1"),
        ("nan", 1, "malformed", "got nan and 1"),
        (1, "nan", "malformed", "got 1 and nan"),
        ("inf", 1, "malformed", "got inf and 1"),
    ],
)
def test_a_part_that_the_recording_has_not_is_a_bad_row(tmp_path, offset, duration, reason, detail):
    long_recording(tmp_path, "wav")
    row = {"audio": "long.wav", "offset": offset, "duration": duration}
    _, report = nemo(tmp_path, row, {"audio": "long.wav"})
    (bad,) = report.bad
    assert (bad.where, bad.line, bad.reason, detail in bad.detail) == (str(tmp_path / "m.jsonl"), 1, reason, True)


def test_parts_have_names_and_identities_of_their_own(tmp_path):
    long_recording(tmp_path, "flac")
    rows = [{"audio": "long.flac", "offset": offset, "duration": 1.0} for offset in (0.5, 1.5)]
    spec, _ = nemo(tmp_path, *rows, {"audio": "long.flac"})
    source = open_source(spec)
    assert [source.name(sample) for sample in range(3)] == ["long.flac@0.5", "long.flac@1.5", "long.flac"]
    assert ", 16000 frames from 8000, row " in source.identity(0)
    assert len({source.identity(sample) for sample in range(3)}) == 3


@pytest.mark.fault(29)
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_recording_that_changed_is_named_also_where_it_is_decoded(tmp_path, suffix):
    long_recording(tmp_path, suffix)
    spec, _ = nemo(tmp_path, {"audio": f"long.{suffix}", "offset": 1})
    source, path = open_source(spec), tmp_path / f"long.{suffix}"
    raw = raw_of(source, 0)
    os.utime(path, ns=(1, 1))
    assert raw_of(source, 0) == raw, "equal bytes of another time are a copy"
    source.decode(0, raw)
    path.write_bytes(other_sound(path))
    os.utime(path, ns=(2, 2))
    with pytest.raises(ReadError, match=rf"m.jsonl, line 1\): {OTHER_BYTES}"):
        raw_of(source, 0)
    if not raw:
        with pytest.raises(ReadError, match=rf"m.jsonl, line 1\): {OTHER_BYTES}"):
            source.decode(0, raw)


def test_an_index_of_whole_files_is_what_it_was(tmp_path, source):
    assert not {"start", "channel"} & set(source.indexed.numbers)
