"""Shar folders without Lhotse: how lines are completed, and what is broken or missing."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import numpy as np
import pytest
import soundfile

from loader_server.sources.cuts.shar_folders import PROBLEM, shard_lines, shards_of
from loader_server.sources.files.opening import Files
from shared.errors import DataError
from tests.support.sources import decoded, index_source, open_source, spec_of
from tests.support.stores import plain_server

RATE = 8000


def wav(number):
    file = io.BytesIO()
    soundfile.write(file, np.full(800 + number, number / 9), RATE, format="wav", subtype="PCM_16")
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def tar_of(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def recording(number):
    source = {"type": "shar", "channels": [0], "source": ""}
    frames = 800 + number
    about = {"sampling_rate": RATE, "num_samples": frames, "duration": frames / RATE, "channel_ids": [0]}
    return {"id": f"r{number}", "sources": [source], **about}


def features(number):
    shape = {"num_frames": 999, "num_features": 2, "frame_shift": 0.01, "sampling_rate": RATE}
    place = {"storage_type": "shar", "storage_path": "", "storage_key": ""}
    return {"type": "x", **shape, "start": 0, "duration": (number + 1) / 100, **place}


def write(folder, shards, *, with_values=True):
    """A Shar folder of shards with these cuts each, with recordings, features, and a field that is no data."""
    (folder / "shar").mkdir()
    for place, numbers in enumerate(shards):
        cuts, audio, arrays, values = [], [], [], []
        for number in numbers:
            name = f"a/c{number}"
            cut = {"id": name, "start": 0, "duration": (number + 1) / 100, "channel": 0, "supervisions": []}
            cuts.append({**cut, "type": "MonoCut", "recording": recording(number), "features": features(number)})
            audio += [(f"{name}.wav", wav(number)), (f"{name}.json", json.dumps(recording(number)).encode())]
            array = np.full((number + 1, 2), number, np.float32)
            arrays += [(f"{name}.npy", npy(array)), (f"{name}.json", json.dumps(features(number)).encode())]
            values.append({"cut_id": name, "topic": f"t{number}"})
        for field, members in (("recording", audio), ("features", arrays)):
            (folder / f"shar/{field}.{place:06}.tar").write_bytes(tar_of(members))
        for field, tables in (("cuts", cuts), ("topic", values)) if with_values else (("cuts", cuts),):
            raw = "".join(f"{json.dumps(table)}\n" for table in tables).encode()
            (folder / f"shar/{field}.{place:06}.jsonl.gz").write_bytes(gzip.compress(raw))
    return folder / "shar"


def indexed(folder, **how):
    spec = spec_of("lhotse", folder, **{"paths": ["shar"], "values": "features", **how})
    report = index_source(spec)
    return report, open_source(spec)


def test_features_and_values_of_a_folder_are_read_without_lhotse(tmp_path):
    write(tmp_path, [range(3), range(3, 5)])
    report, source = indexed(tmp_path, custom={"topic": "text"})
    assert (report.bad, source.samples, source.parts) == ((), 5, (0, 3))
    for n in range(5):
        sample = decoded(source, n)
        assert sample["features"].tolist() == [[n, n]] * (n + 1)
        assert (source.name(n), sample["topic"]) == (f"a/c{n}", f"t{n}")


def test_a_recording_is_found_in_its_tar_file(tmp_path):
    write(tmp_path, [range(3)])
    spec = spec_of("lhotse", tmp_path, paths=["shar"], use_lhotse=True)
    report = index_source(spec)
    assert (report.samples, report.bad) == (3, ())
    source = open_source(spec)
    raw = next(iter(source.read([1])))
    assert wav(1) in raw
    path = tmp_path / "shar/recording.000000.tar"
    assert source.indexed_files().file_at(2) == (str(path), path.stat().st_size)


def test_a_folder_may_be_remote(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    write(tmp_path / "data", [range(3), range(3, 5)])
    with plain_server(tmp_path / "data", ranges=True) as target:
        report, source = indexed(tmp_path / "here", paths=[f"http://{target}/shar/"], custom={"topic": "text"})
        assert (report.bad, source.samples, source.files.are_remote) == ((), 5, True)
        source.expect(np.arange(5))
        for n in range(5):
            sample = decoded(source, n)
            assert (sample["features"].tolist(), sample["topic"]) == ([[n, n]] * (n + 1), f"t{n}")
        source.look_for_changes(1.0)
        source.close()


def test_a_tar_file_that_was_cut_short_has_bad_rows_at_its_end(tmp_path):
    path = write(tmp_path, [range(4)]) / "features.000000.tar"
    path.write_bytes(path.read_bytes()[: 5 * 1024 + 700])
    report, source = indexed(tmp_path)
    assert source.samples < 4
    assert {row.reason for row in report.bad} == {"no_data"}
    path = "shar/features.000000.tar"
    assert report.bad[-1].detail == f"expected data of the cut in {path}, got none"
    assert report.bad[-1].line == 4


def test_data_of_another_cut_are_a_bad_row(tmp_path):
    write(tmp_path, [range(3)])
    path = tmp_path / "shar/topic.000000.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"cut_id": "a/c0", "topic": "x"}\n{"cut_id": "b"}\nnonsense\n'))
    report, source = indexed(tmp_path)
    assert source.samples == 1
    assert [(row.reason, row.detail) for row in report.bad] == [
        ("no_data", 'expected data of the cut in shar/topic.000000.jsonl.gz, got those of "b"'),
        ("no_data", 'expected data of the cut in shar/topic.000000.jsonl.gz, got those of ""'),
    ]


def test_placeholders_are_no_data(tmp_path):
    folder = write(tmp_path, [range(2)], with_values=False)
    members = [("a/c0.nodata", b""), ("a/c0.nometa", b""), ("a/c1.npy", npy(np.zeros((2, 2), np.float32)))]
    (folder / "features.000000.tar").write_bytes(tar_of([*members, ("a/c1.json", json.dumps(features(1)).encode())]))
    report, source = indexed(tmp_path)
    assert source.samples == 1
    assert [(row.line, row.reason) for row in report.bad] == [(1, "no_data")]


def test_a_manifest_in_a_tar_file_that_is_none_makes_a_bad_row(tmp_path):
    folder = write(tmp_path, [range(2)], with_values=False)
    members = [("a/c0.npy", npy(np.zeros((1, 2), np.float32))), ("a/c0.json", b"[1]")]
    more = [("a/c1.npy", npy(np.zeros((2, 2), np.float32))), ("a/c1.json", json.dumps(features(1)).encode())]
    (folder / "features.000000.tar").write_bytes(tar_of([*members, *more, ("odd", b"")]))
    report, source = indexed(tmp_path)
    assert (source.samples, [row.reason for row in report.bad]) == (1, ["no_data"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "features.000001.tar").unlink(),
            'cuts .2., got 1 of "features"',
        ),
        (lambda folder: [path.unlink() for path in folder.glob("cuts*")], "a Shar folder with cuts, got only features"),
        (
            lambda folder: (folder / "features.000000.tar").write_bytes(gzip.compress(b"x")),
            "a tar file that is not compressed, got one that is compressed by gzip",
        ),
        (lambda folder: (folder / "features.000000.tar").write_bytes(b"x" * 999), "a tar file, got another one"),
        (lambda folder: (folder / "cuts.000000.jsonl.gz").write_bytes(b"x"), "a whole gzip file, got BadGzipFile"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path, change, message):
    change(write(tmp_path, [range(2), range(2, 4)]))
    with pytest.raises(DataError, match=message):
        indexed(tmp_path)


def test_a_folder_without_the_setting_is_refused_with_the_setting(tmp_path):
    write(tmp_path, [range(2)])
    with pytest.raises(DataError, match="for a Shar folder write use_lhotse = true"):
        indexed(tmp_path, values="audio")


def test_the_stamp_tells_of_all_files(tmp_path):
    folder = write(tmp_path, [range(2)])
    for path in folder.iterdir():
        before = spec_of("lhotse", tmp_path, paths=["shar"], values="features").make().stamp()
        path.touch()
        assert spec_of("lhotse", tmp_path, paths=["shar"], values="features").make().stamp() != before


def test_a_line_that_is_no_cut_stays_as_it_is(tmp_path):
    folder = write(tmp_path, [range(2)])
    (folder / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(b'nonsense\n{"id": "a/c1"}\n'))
    files = Files(tmp_path)
    lines = [line for _, line in shard_lines(shards_of("shar", files)[0], files)]
    assert lines[0] == b"nonsense\n"
    assert PROBLEM not in json.loads(lines[1])
    assert json.loads(lines[1])["custom"] == {"topic": "t1"}
