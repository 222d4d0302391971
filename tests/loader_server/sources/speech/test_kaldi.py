"""The kaldi source: folders as Kaldi has them, joined, read, and every line accounted for."""

from __future__ import annotations

import os
from pathlib import Path

import kaldiio
import numpy as np
import pytest
import soundfile

from loader_server.conformance.case import SourceCase
from loader_server.conformance.checks import check_source
from loader_server.sources.files import archived_parts
from loader_server.sources.speech import kaldi_features
from loader_server.sources.speech.kaldi_ark import ark_header, ark_values
from loader_server.sources.speech.kaldi_folder import KaldiTable
from shared.errors import DataError, ReadError
from tests.loader_server.sources.speech.kaldi_data import RATE, features, table, write_features, write_recordings
from tests.support.forked_pools import forked_pools
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of


def indexed(base: Path, *paths: str, values: str = "audio", **how):
    spec = spec_of("kaldi", base, paths=list(paths) or ["data"], values=values, **how)
    report = index_source(spec)
    return open_source(spec), [(Path(bad.where).name, bad.line, bad.reason) for bad in report.bad], report


# --- audio ---


def test_recordings_have_text_and_speaker_whatever_the_order_of_tables(tmp_path):
    audio = write_recordings(tmp_path / "data", "b", "a", "c", suffix="flac")
    table(tmp_path / "data", "text", "a one  two ", "c drei Bäume", "b")
    table(tmp_path / "data", "utt2spk", "c tom", "a ann", "b\tann")
    source, bad, _ = indexed(tmp_path)
    assert bad == []
    assert [source.name(n) for n in range(3)] == ["b", "a", "c"]
    assert [decoded(source, n)["text"] for n in range(3)] == ["", "one  two", "drei Bäume"]
    assert [decoded(source, n)["speaker"] for n in range(3)] == ["ann", "ann", "tom"]
    assert source.lengths["text"].tolist() == [0, 8, 10]
    assert source.fields[0].per_second == RATE
    for n, key in enumerate("bac"):
        assert decoded(source, n)["audio"].tolist() == audio[key].tolist()
    assert source.place(1) == (str(tmp_path / "data/wav.scp"), 2)


def test_segments_are_parts_of_recordings_as_kaldiio_cuts_them(tmp_path):
    write_recordings(tmp_path / "data", "rec1", "rec2")
    lines = ("u1 rec2 0.5 1.25", "u2 rec1 0.0 0.1", "u3 rec1 0.05 2.3", "u4 rec1 0.05 0.2", "u5 rec2 1.5 -1")
    table(tmp_path / "data", "segments", *lines)
    source, bad, _ = indexed(tmp_path)
    assert bad == []
    table(tmp_path / "data", "as_kaldi", *lines[:2], "u3 rec1 0.05 2.0", lines[3], "u5 rec2 1.5 2.0")
    theirs = kaldiio.load_scp(str(tmp_path / "data/wav.scp"), segments=str(tmp_path / "data/as_kaldi"))
    for n in range(5):
        rate, samples = theirs[f"u{n + 1}"]
        got = decoded(source, n)
        assert (got["audio_rate"], source.lengths["audio"][n]) == (rate, len(samples))
        np.testing.assert_array_equal(got["audio"], samples.astype(np.float32) / 32768)


def test_a_thousand_segments_have_the_frames_that_kaldiio_takes(tmp_path):
    rng = np.random.default_rng(8)
    audio = rng.integers(-(2**14), 2**14, 60 * 16_000).astype(np.int16)
    soundfile.write(tmp_path / "long.wav", audio, 16_000)
    table(tmp_path / "data", "wav.scp", f"long {tmp_path / 'long.wav'}")
    begins = rng.uniform(0, 58, 1000)
    ends = [*(begins[:990] + rng.uniform(0.01, 2, 990)), *([-1] * 10)]
    digits = rng.integers(2, 7, 1000)
    lines = [f"u{n:04} long {begins[n]:.{digits[n]}f} {ends[n]:.{digits[n]}f}" for n in range(1000)]
    table(tmp_path / "data", "segments", *lines)
    source, bad, _ = indexed(tmp_path)
    assert bad == []
    theirs = kaldiio.load_scp(str(tmp_path / "data/wav.scp"), segments=str(tmp_path / "data/segments"))
    for n in range(1000):
        _, samples = theirs[f"u{n:04}"]
        np.testing.assert_array_equal(decoded(source, n)["audio"], samples.astype(np.float32) / 32768)


# --- recordings in archives ---


def write_archive(folder: Path, *, kind: str, keys: tuple[str, ...] = ("a", "b", "c")) -> dict[str, np.ndarray]:
    """Write recordings into wav.ark by kaldiio: as WAV, or by soundfile in this format; return them by key."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        key: np.random.default_rng(n).integers(-9000, 9000, 4000 + 100 * n).astype(np.int16)
        for n, key in enumerate(keys)
    }
    how = {} if kind == "riff" else {"write_function": "soundfile", "write_kwargs": {"format": kind}}
    archive = {key: (RATE, array) for key, array in made.items()}
    kaldiio.save_ark(str(folder / "wav.ark"), archive, scp=str(folder / "wav.scp"), **how)
    return made


@pytest.mark.parametrize("kind", ["riff", "wav", "flac"])
def test_recordings_in_archives_are_kaldiios(tmp_path, kind):
    write_archive(tmp_path / "data", kind=kind)
    source, bad, _ = indexed(tmp_path)
    assert bad == []
    for n, (key, (rate, samples)) in enumerate(kaldiio.load_scp(str(tmp_path / "data/wav.scp")).items()):
        got = decoded(source, n)
        scaled = samples / 32768 if samples.dtype == np.int16 else samples
        np.testing.assert_array_equal(got["audio"], scaled.astype(np.float32))
        assert (source.name(n), got["audio_rate"], source.lengths["audio"][n]) == (key, rate, len(samples))
    assert source.fields[0].per_second == RATE
    assert len({source.identity(n) for n in range(3)}) == 3
    source.look_for_changes(9.0)
    files = source.indexed_files()
    assert {files.file_at(n)[0] for n in range(files.count)} == {str(tmp_path / "data/wav.ark")}


def test_segments_of_recordings_in_archives_beside_files_of_their_own(tmp_path):
    archived = write_archive(tmp_path / "data", kind="flac", keys=("a",))
    plain = write_recordings(tmp_path / "plain", "p")
    scp = (tmp_path / "data/wav.scp").read_text() + (tmp_path / "plain/wav.scp").read_text()
    (tmp_path / "data/wav.scp").write_text(scp)
    table(tmp_path / "data", "segments", "u1 a 0.1 0.3", "u2 p 0.5 1.0", "u3 a 0.2 -1", "u4 a 0 0.5")
    source, bad, _ = indexed(tmp_path)
    assert bad == []
    audio = archived["a"].astype(np.float32) / 32768
    for n, wanted in enumerate((audio[800:2400], plain["p"][4000:8000], audio[1600:], audio)):
        np.testing.assert_array_equal(decoded(source, n)["audio"], wanted)


def test_recordings_in_archives_that_cannot_be_used_are_bad_rows(tmp_path):
    write_archive(tmp_path / "data", kind="riff", keys=("a", "b"))
    kaldiio.save_ark(str(tmp_path / "numpy.ark"), {"n": np.arange(9)}, write_function="numpy")
    (tmp_path / "noise.ark").write_bytes(b"x AUDIO\x02\x10\x00" + bytes(16))
    first, second = (tmp_path / "data/wav.scp").read_text().splitlines()
    whole = (tmp_path / "data/wav.ark").read_bytes()
    (tmp_path / "cut.ark").write_bytes(whole[:-10])
    place = second.split(":")[1]
    entries = ("data/wav.ark:1", "numpy.ark:2", "noise.ark:2", f"cut.ark:{place}", "gone.ark:5", "data/wav.ark:999999")
    entries += (f"data/wav.ark:{'9' * 20}",)
    lines = [f"e{n} {tmp_path}/{entry}" for n, entry in enumerate(entries)]
    table(tmp_path / "data", "wav.scp", first, *lines)
    source, bad, report = indexed(tmp_path)
    there, no_recording = ("no_recording_there", "undecodable", "truncated", "missing_file"), "no_recording_there"
    reasons = (no_recording, no_recording, *there[1:], no_recording, no_recording)
    assert bad == [("wav.scp", 2 + n, reason) for n, reason in enumerate(reasons)]
    assert "RIFF or AUDIO from byte 1 of" in next(row.detail for row in report.bad if row.line == 2)
    assert len(decoded(source, 0)["audio"]) == 4000


def test_recordings_in_archives_keep_the_promises_of_all_sources(tmp_path):
    write_archive(tmp_path / "data", kind="flac", keys=("a", "b"))
    table(
        tmp_path / "data", "segments", *(f"u{n} {'ab'[n % 2]} {n / 100} {n / 50 + 0.1}" for n in range(12)), "x c 0 1"
    )

    def change() -> None:
        with (tmp_path / "data/wav.ark").open("ab") as file:
            file.write(b"more")

    case = SourceCase(spec=spec_of("kaldi", tmp_path, paths=["data"]), change=change, bad={"no_recording": 1})
    with forked_pools():
        results = check_source(case, tmp_path)
    assert [str(result) for result in results if result.passed is False] == []
    assert sum(result.passed is True for result in results) > 15


def test_an_archive_of_recordings_that_was_written_over_is_refused(tmp_path):
    write_archive(tmp_path / "data", kind="flac")
    source, _, _ = indexed(tmp_path)
    raw = (tmp_path / "data/wav.ark").read_bytes()
    (tmp_path / "data/wav.ark").write_bytes(raw[:-9] + bytes(9))
    with pytest.raises(ReadError, match=r"wav\.ark: expected the archive that was indexed"):
        raw_of(source, 0)


def test_a_channel_of_a_recording(tmp_path):
    (tmp_path / "data").mkdir()
    both = np.random.default_rng(0).uniform(-0.5, 0.5, (RATE, 2)).astype(np.float32)
    soundfile.write(tmp_path / "call.wav", both, RATE, subtype="FLOAT")
    table(tmp_path / "data", "wav.scp", "call call.wav")
    table(
        tmp_path / "data",
        "segments",
        "a call 0 0.5 A",
        "b call 0.5 1 1",
        "c call 0 1",
        "d call 0 1 2",
        "e call 0 1 x",
        "f call 0 1 B",
    )
    source, bad, report = indexed(tmp_path)
    half = RATE // 2
    assert decoded(source, 0)["audio"].tolist() == both[:half, 0].tolist()
    assert decoded(source, 1)["audio"].tolist() == both[half:, 1].tolist()
    np.testing.assert_allclose(decoded(source, 2)["audio"], both.mean(axis=1), atol=1e-7)
    assert decoded(source, 3)["audio"].tolist() == both[:, 1].tolist()
    assert bad == [("segments", 4, "wrong_channel"), ("segments", 5, "malformed")]
    assert report.bad[0].detail == "expected a channel from 0 to 1, got 2"
    assert len({source.identity(n) for n in range(4)}) == 4


def test_the_chosen_channel_is_that_of_recordings_and_of_segments_that_name_none(tmp_path):
    (tmp_path / "data").mkdir()
    both = np.random.default_rng(0).uniform(-0.5, 0.5, (100, 2)).astype(np.float32)
    soundfile.write(tmp_path / "call.wav", both, RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "mono.wav", both[:, :1], RATE, subtype="FLOAT")
    table(tmp_path / "data", "wav.scp", "call call.wav", "mono mono.wav")
    source, bad, report = indexed(tmp_path, channel=1)
    assert decoded(source, 0)["audio"].tolist() == both[:, 1].tolist()
    assert (bad, report.bad[0].detail) == ([("wav.scp", 2, "wrong_channel")], "expected a channel from 0 to 0, got 1")
    table(tmp_path / "data", "segments", "a call 0 -1", "b call 0 -1 A")
    source, bad, _ = indexed(tmp_path, channel=1)
    assert [decoded(source, n)["audio"].tolist() for n in range(2)] == [both[:, 1].tolist(), both[:, 0].tolist()]
    assert bad == []


def test_every_line_that_cannot_be_used_is_a_bad_row(tmp_path):
    write_recordings(tmp_path / "data", "r")
    table(
        tmp_path / "data",
        "wav.scp",
        f"r {tmp_path}/data/r.wav",
        f"s touch {tmp_path}/ran |",
        "t feats.ark:10",
        "v gone.wav",
    )
    rows = ["good r 0 1", "cmd s 0 1", "ark t 0 1", "gone v 0 1", "norec w 0 1", "late r 1.9 2.6", "back r 1 0.5"]
    rows += ["soon r 0 x", "good r 1 2", "mute r 0 1", "short", "", "after r 2 3", "inf r 0 inf"]
    table(tmp_path / "data", "segments", *rows)
    keys = [row.split()[0] for row in rows if row and row[:4] != "mute"]
    table(tmp_path / "data", "text", *(f"{key} x" for key in dict.fromkeys(keys)), "extra x", "good y")
    source, bad, report = indexed(tmp_path)
    reasons = ("command", "missing_file", "missing_file", "no_recording", "outside_recording", "empty_stretch")
    expected = [*enumerate(reasons, 2), (8, "malformed"), (9, "duplicate"), (10, "no_text"), (11, "malformed")]
    expected += [(12, "malformed"), (13, "outside_recording"), (14, "malformed")]
    assert bad == [("segments", *one) for one in expected] + [("text", 12, "only_text"), ("text", 13, "duplicate")]
    assert (source.samples, report.rows) == (1, 16)
    assert not (tmp_path / "ran").exists()
    details = {row.line: row.detail for row in report.bad if row.where.endswith("segments")}
    assert details[2] == (
        f"expected a file in wav.scp, got a command, which is never run (touch {tmp_path}/ran |): "
        "run the commands once, and name the files that they wrote"
    )
    assert details[5] == 'expected a line of the recording "w" in wav.scp, got none'
    assert details[6] == "expected a part of a recording of 2 s, got one from 1.9 s to 2.6 s"
    assert details[7] == "expected an end after the beginning, got one from 1 s to 0.5 s"
    assert details[9] == 'expected each key once, got "good" as in line 1'
    assert details[10] == 'expected a line of "mute" in text, got none'


@pytest.mark.parametrize("entry", ["cat a.wav |", "| tee a.wav", "-"])
def test_what_is_no_file_is_never_run_or_waited_for(tmp_path, entry):
    write_recordings(tmp_path / "data", "a")
    table(tmp_path / "data", "wav.scp", f"a {tmp_path}/data/a.wav", f"b {entry}")
    _, bad, report = indexed(tmp_path)
    assert bad == [("wav.scp", 2, "command")]
    assert f"got a command, which is never run ({entry})" in report.bad[0].detail


def test_lines_that_are_not_utf8_are_bad_rows(tmp_path):
    write_recordings(tmp_path / "data", "a", "b")
    (tmp_path / "data/text").write_bytes(b"a caf\xe9\nb fine\n\xff x\n")
    source, bad, report = indexed(tmp_path)
    assert (bad, source.name(0)) == ([("wav.scp", 1, "not_utf8"), ("text", 3, "only_text")], "b")
    assert report.bad[0].detail == "expected UTF-8, got the byte 0xe9"


def test_several_folders_are_parts_and_relative_paths_start_from_root(tmp_path):
    for name in ("one", "two"):
        write_recordings(tmp_path / "recipe" / name, name)
        table(tmp_path / "recipe" / name, "wav.scp", f"{name} {name}/{name}.wav")
    source, bad, _ = indexed(tmp_path, "recipe/one", "recipe/two", root="recipe")
    assert ([source.name(0), source.name(1)], source.parts, bad) == (["one", "two"], (0, 1), [])
    assert len(decoded(source, 1)["audio"]) == 2 * RATE
    table(tmp_path / "recipe/two", "text", "two x")
    with pytest.raises(DataError, match=r"expected a text in all folders or in none, got none in recipe/one"):
        indexed(tmp_path, "recipe/one", "recipe/two", root="recipe")


@pytest.mark.parametrize(
    ("paths", "values", "message"),
    [
        (
            ["data"],
            "features",
            r"data: expected a Kaldi data folder with the table feats.scp, got one without\. Mend `paths`",
        ),
        (["none"], "audio", r"none: expected a Kaldi data folder with the table wav.scp, got no such folder"),
        ([], "audio", r"expected at least one folder, got none\. Write paths"),
    ],
)
def test_a_folder_without_what_is_asked_for_is_refused(tmp_path, paths, values, message):
    write_recordings(tmp_path / "data", "a")
    with pytest.raises(DataError, match=message):
        index_source(spec_of("kaldi", tmp_path, paths=paths, values=values))


@pytest.mark.fault(29)
def test_a_table_that_changed_is_refused_and_one_that_was_touched_is_not(tmp_path):
    write_recordings(tmp_path / "data", "a")
    table(tmp_path / "data", "text", "a one")
    indexed(tmp_path)
    os.utime(tmp_path / "data/text", ns=(5, 5))
    spec = spec_of("kaldi", tmp_path, paths=["data"])
    assert open_source(spec).samples == 1
    table(tmp_path / "data", "text", "a two")
    with pytest.raises(DataError, match=r"data/text, index .*: expected the table that the index was made from"):
        open_source(spec)


def test_a_stamp_tells_of_all_files_that_are_named_and_of_tables_that_come(tmp_path):
    write_recordings(tmp_path / "data", "a", "b")
    (tmp_path / "data/b.wav").rename(tmp_path / "b.wav")
    spec = spec_of("kaldi", tmp_path, paths=["data"])
    stamps = [spec.make().stamp()]
    (tmp_path / "b.wav").rename(tmp_path / "data/b.wav")
    stamps.append(spec.make().stamp())
    table(tmp_path / "data", "segments", "u a 0 1")
    stamps += [spec.make().stamp(), spec.make().stamp()]
    assert len(set(stamps)) == 3
    assert stamps[2] == stamps[3]


# --- features ---


@pytest.mark.parametrize("compression", [None, 2, 3, 4, 5, 6, 7])
def test_features_are_kaldiios(tmp_path, compression):
    arrays = features(1, 3, 9, 40)
    write_features(tmp_path / "data", arrays, compression)
    source, bad, _ = indexed(tmp_path, values="features")
    theirs = kaldiio.load_scp(str(tmp_path / "data/feats.scp"))
    assert (bad, source.lengths["features"].tolist(), source.fields[0].shape) == ([], [1, 3, 9, 40], (None, 13))
    for n, key in enumerate(arrays):
        got = decoded(source, n)["features"]
        assert (got.dtype, got.shape, got.flags.c_contiguous) == (np.float32, arrays[key].shape, True)
        np.testing.assert_allclose(got, theirs[key], rtol=1e-5, atol=2e-5 if compression is None else 2e-4)


@pytest.mark.parametrize("shape", [(5, 3), (1, 4), (7,)])
def test_features_in_text_form(tmp_path, shape):
    arrays = {f"u{n}": np.random.default_rng(n).normal(size=shape).astype(np.float32) for n in range(3)}
    kaldiio.save_ark(str(tmp_path / "text.ark"), arrays, scp=str(tmp_path / "feats.scp"), text=True)
    table(tmp_path / "data", "feats.scp", *(tmp_path / "feats.scp").read_text().splitlines())
    source, bad, _ = indexed(tmp_path, values="features")
    assert bad == []
    for n, (key, wanted) in enumerate(kaldiio.load_scp(str(tmp_path / "feats.scp")).items()):
        got = decoded(source, n)["features"]
        np.testing.assert_array_equal(got, arrays[key])
        np.testing.assert_array_equal(got, wanted)
        assert source.lengths["features"][n] == shape[0]


def test_ranges_of_features_in_text_form_and_large_ones(tmp_path):
    array = np.arange(90_000, dtype=np.float32).reshape(30_000, 3)
    kaldiio.save_ark(str(tmp_path / "text.ark"), {"u": array}, text=True)
    table(tmp_path / "data", "feats.scp", "a text.ark:2", "b text.ark:2[10:19]")
    source, bad, _ = indexed(tmp_path, values="features")
    assert bad == []
    np.testing.assert_array_equal(decoded(source, 0)["features"], array)
    np.testing.assert_array_equal(decoded(source, 1)["features"], array[10:20])


def test_text_without_an_end_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(kaldi_features, "_MOST_TEXT_BYTES", 1000)
    write_features(tmp_path / "good", features(2, columns=3))
    (tmp_path / "text.ark").write_bytes(b"u  [ " + b"1 " * 9000 + b"]\n")
    table(tmp_path / "data", "feats.scp", (tmp_path / "good/feats.scp").read_text().strip(), "u text.ark:2")
    _, bad, _ = indexed(tmp_path, values="features")
    assert bad == [("feats.scp", 2, "truncated")]


def test_numbers_in_text_form_may_be_infinite_or_none(tmp_path):
    (tmp_path / "text.ark").write_bytes(b"u  [ 1 nan 1e999 ]\n")
    table(tmp_path / "data", "feats.scp", "u text.ark:2")
    source, _, _ = indexed(tmp_path, values="features")
    np.testing.assert_array_equal(decoded(source, 0)["features"], np.float32([1, np.nan, np.inf]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b" [\n 1 2 3 \n 4 5 ]\n", "no_matrix"),
        (b" [\n 1 2 three ]\n", "no_matrix"),
        (b" [ ]\n", "empty_matrix"),
        (b" [\n 1 2 3 \n", "truncated"),
    ],
)
def test_text_that_is_no_matrix_makes_a_bad_row(tmp_path, text, reason):
    (tmp_path / "text.ark").write_bytes(b"u " + text)
    write_features(tmp_path / "good", features(2, columns=3))
    good = (tmp_path / "good/feats.scp").read_text()
    table(tmp_path / "data", "feats.scp", good.strip(), "u text.ark:2")
    _, bad, _ = indexed(tmp_path, values="features")
    assert bad == [("feats.scp", 2, reason)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_vectors_and_doubles(tmp_path, dtype, shape):
    arrays = {key: np.arange(10)[: int(np.prod(shape))].reshape(shape).astype(dtype) for key in "ab"}
    write_features(tmp_path / "data", arrays)
    source, _, _ = indexed(tmp_path, values="features")
    assert source.fields[0].shape == (None, *shape[1:])
    assert decoded(source, 1)["features"].tolist() == arrays["b"].tolist()
    assert decoded(source, 1)["features"].dtype == np.float32


def test_features_that_cannot_be_used_are_bad_rows(tmp_path):
    arrays = features(4, 5, 6)
    write_features(tmp_path / "data", arrays)
    lines = (tmp_path / "data/feats.scp").read_text().splitlines()
    ark = tmp_path / "data/feats.ark"
    kaldiio.save_ark(str(tmp_path / "wide.ark"), features(3, columns=14))
    kaldiio.save_ark(str(tmp_path / "text.ark"), features(3), text=True)
    lines += [f"cmd copy-feats {ark} - |", f"part {lines[0].split()[1]}[0:2,0:5]", f"wide {tmp_path}/wide.ark:3"]
    lines += [f"written {tmp_path}/text.ark:9", "gone gone.ark:3", f"far {ark}:99999"]
    table(tmp_path / "data", "feats.scp", *lines)
    with ark.open("r+b") as file:
        file.truncate(ark.stat().st_size - 1)
    source, bad, report = indexed(tmp_path, values="features")
    reasons = ("truncated", "command", "range", "other_columns", "no_matrix", "missing_file", "no_matrix")
    assert bad == [("feats.scp", *one) for one in enumerate(reasons, 3)]
    assert source.samples == 2
    assert f"expected 327 bytes from byte {lines[2].rpartition(':')[2]} of {ark} on, got 326" in report.bad[0].detail
    assert report.bad[3].detail == "expected 13 columns, as the first features have, got 14"


def test_a_range_is_the_rows_that_kaldiio_takes_the_last_one_included(tmp_path):
    arrays = features(10, 7)
    write_features(tmp_path / "data", arrays)
    first, second = (line.split()[1] for line in (tmp_path / "data/feats.scp").read_text().splitlines())
    lines = [f"a {first}[2:4]", f"b {first}[0:0]", f"c {second}[0:6,:]", f"d {second}", f"e {first}[9:9,]"]
    table(tmp_path / "data", "feats.scp", *lines, f"over {first}[8:12]")
    source, bad, _ = indexed(tmp_path, values="features")
    assert (bad, source.lengths["features"].tolist()) == ([], [3, 1, 7, 7, 1, 2])
    theirs = kaldiio.load_scp(str(tmp_path / "data/feats.scp"))
    for n, key in enumerate("ab"):
        np.testing.assert_array_equal(decoded(source, n)["features"], theirs[key])
    rows = {2: arrays["u1"], 3: arrays["u1"], 4: arrays["u0"][9:], 5: arrays["u0"][8:]}
    for n, expected in rows.items():  # kaldiio has no columns in a range, and none that ends after its matrix, as Kaldi
        np.testing.assert_array_equal(decoded(source, n)["features"], expected)
    assert len({source.identity(n).partition(",")[2].partition(", row ")[0] for n in (2, 3)}) == 1
    assert len({source.identity(n).partition(",")[2] for n in (0, 1, 4, 5)}) == 4
    before = source.stamp()
    os.utime(tmp_path / "data/feats.ark", ns=(5, 5))
    assert source.stamp() != before


def test_where_all_features_are_whole_the_index_is_as_before_there_were_ranges(tmp_path):
    write_features(tmp_path / "data", features(10, 7))
    source, _, _ = indexed(tmp_path, values="features")
    assert list(source.indexed.numbers) == [
        *("folder", "line", "bytes", "mtime_ns", "content", "offset", "kind", "nbytes", "length_features")
    ]
    assert source.identity(0).rpartition(", row ")[0].endswith(" bytes from 3")


def test_ranges_that_are_not_in_their_matrix_are_bad_rows(tmp_path):
    write_features(tmp_path / "data", features(10))
    place = (tmp_path / "data/feats.scp").read_text().split()[1]
    ranges = ("0:9", "10:11", "0:13", "3:2", "a:b", ":", "")
    table(tmp_path / "data", "feats.scp", *(f"u{n} {place}[{said}]" for n, said in enumerate(ranges)))
    source, bad, report = indexed(tmp_path, values="features")
    assert source.samples == 1
    reasons = ("outside_matrix", "outside_matrix", *("range",) * 4)
    assert bad == [("feats.scp", *one) for one in enumerate(reasons, 2)]
    assert report.bad[0].detail.startswith("expected rows of the 10 from byte ")
    assert report.bad[0].detail.endswith(", got [10:11]")
    assert report.bad[2].detail == "expected a range of rows, as [0:99] is of a hundred, got [3:2]"


def test_an_archive_that_is_written_into_while_it_is_read_is_refused(tmp_path, monkeypatch):
    write_features(tmp_path / "data", features(4, 5))
    source, _, _ = indexed(tmp_path, values="features")
    ark, read = tmp_path / "data/feats.ark", source.files.read

    def write_into(*how):
        ark.write_bytes(ark.read_bytes()[:-4] + b"nine")
        return read(*how)

    monkeypatch.setattr(source.files, "read", write_into)
    with pytest.raises(ReadError, match=r"feats\.ark: expected the archive that was indexed"):
        raw_of(source, 0)


def test_an_archive_of_other_bytes_whose_time_was_put_back_is_refused(tmp_path):
    write_features(tmp_path / "data", features(4, 5))
    source, _, _ = indexed(tmp_path, values="features")
    ark = tmp_path / "data/feats.ark"
    content, times, before = ark.read_bytes(), ark.stat(), raw_of(source, 1)
    ark.write_bytes(content[:-4] + b"nine")
    os.utime(ark, ns=(times.st_atime_ns, times.st_mtime_ns))
    for look in (lambda: raw_of(source, 0), lambda: source.look_for_changes(1000.0)):
        with pytest.raises(ReadError, match=r"feats\.ark: expected the archive that was indexed .* with other bytes"):
            look()
    ark.write_bytes(content)
    os.utime(ark, ns=(times.st_atime_ns, times.st_mtime_ns))
    ark.chmod(0o600)
    assert raw_of(source, 1) == before


@pytest.mark.fault(29)
def test_an_archive_that_changed_is_refused_when_it_is_read(tmp_path):
    write_features(tmp_path / "data", features(4, 5))
    source, _, _ = indexed(tmp_path, values="features")
    ark = tmp_path / "data/feats.ark"
    before = raw_of(source, 1)
    os.utime(ark, ns=(5, 5))
    assert raw_of(source, 1) == before, "equal bytes of another time are a copy"
    ark.write_bytes(ark.read_bytes()[:-4] + b"nine")
    with pytest.raises(ReadError, match=r"feats.ark: expected the archive that was indexed"):
        raw_of(source, 1)


def test_bytes_that_are_no_matrix_have_no_header():
    whole = b"\0BFM \4\1\0\0\0\4\2\0\0\0" + bytes(8)
    header = ark_header(whole)
    assert header is not None
    assert ark_values(whole, header).tolist() == [[0, 0]]
    for damaged in (
        whole[:14],
        b"\0B" + whole[3:],
        whole.replace(b"FM", b"SM"),
        b"",
        b"\0BFM \4\xff\xff\xff\xff\4\2\0\0\0",
    ):
        assert ark_header(damaged) is None
    assert ark_header(whole.replace(b"\4\1", b"\5\1")) is None


def test_the_first_of_lines_with_one_key_counts_and_an_empty_table_has_none(tmp_path):
    table(tmp_path, "t", "b 1", "a 2", "b 3")
    table(tmp_path, "empty")
    found = KaldiTable(tmp_path / "t")
    assert found.find(found.keys).tolist() == [0, 1, 0]
    empty = KaldiTable(tmp_path / "empty")
    assert (len(empty), empty.find(found.keys).tolist(), found.find(empty.keys).tolist()) == (0, [-1] * 3, [])
    found.close()


@pytest.mark.parametrize("rows", [(2, 3, 4), (2,)])
def test_each_archive_is_looked_at_once_before_a_job_is_served(tmp_path, monkeypatch, rows):
    write_features(tmp_path / "a", features(*rows))
    write_features(tmp_path / "b", features(*rows))
    for name in "ab":
        os.utime(tmp_path / name / "feats.ark", ns=(1, 1))  # and they have one size: facts alone do not tell them apart
    source, _, _ = indexed(tmp_path, "a", "b", values="features")
    looked, has_content = [], archived_parts.has_content
    monkeypatch.setattr(archived_parts, "has_content", lambda *how: looked.append(how[0]) or has_content(*how))
    source.look_for_changes(1000.0)
    assert sorted(looked) == [f"{tmp_path}/{name}/feats.ark" for name in "ab"]
    source._recordings.look_for_changes(1000.0)
    assert len(looked) == 4, "it was written just now, so its status does not tell yet"
    (tmp_path / "b/feats.ark").write_bytes((tmp_path / "a/feats.ark").read_bytes()[:-4] + b"nine")
    with pytest.raises(ReadError, match=r"b/feats\.ark: expected the archive that was indexed"):
        source.look_for_changes(1000.0)


def test_utterances_in_the_order_of_their_names_lead_to_each_archive_once(tmp_path, monkeypatch):
    write_features(tmp_path / "data", features(2, 3, 4, 5))
    scp = tmp_path / "data/feats.scp"
    scp.write_text("".join(sorted(scp.read_text().splitlines(keepends=True), key=lambda line: -int(line[1]))))
    source, _, _ = indexed(tmp_path, values="features")
    looked, has_content = [], archived_parts.has_content
    monkeypatch.setattr(archived_parts, "has_content", lambda *how: looked.append(how[0]) or has_content(*how))
    source.look_for_changes(1000.0)
    assert len(looked) == 1


def test_an_archive_in_a_store_that_cannot_be_reached_makes_no_bad_row():
    class Unreachable:
        def facts(self, path):
            raise ReadError(expected="an answer", got="none", where=path, remedy="Try again.")

    with pytest.raises(ReadError):
        kaldi_features.ArchiveHeaders(Unreachable()).find("s3://bucket/feats.ark", 12, (0, 4), ("feats.scp", 1))
