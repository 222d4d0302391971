"""Recordings, images, moments and lists in lists, as `datasets` keeps them in Parquet and Arrow files."""

from __future__ import annotations

import importlib.util
import io
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.arrays.arrow_types import kind_of
from loader_server.sources.arrays.file_columns import FileColumns
from loader_server.sources.source import OfJob
from loader_server.stream import Stream
from shared.errors import DataError, ReadError, SampleError
from shared.wire.batch_layout import Field
from tests.loader_server.sources.arrays.hub_golden import GOLDEN, ROWS, columns_of, read_back, write_hub
from tests.support.sources import decoded, index_source, open_source, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport


def opened(folder: Path, *paths: str, source: str = "parquet", **settings: Any) -> tuple[Any, IndexReport]:
    spec = spec_of(source, folder, paths=list(paths), **settings)
    report = index_source(spec)
    return open_source(spec), report


def files(*raw: bytes | None, paths: list[str | None] | None = None) -> pa.Array:
    rows = [{"bytes": each, "path": path} for each, path in zip(raw, paths or [None] * len(raw), strict=True)]
    return pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def picture(height: int, width: int, mode: str = "RGB", **saving: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, **{"format": "png", **saving})
    return file.getvalue()


def clip(frames: int = 80, rate: int = 8000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.full(frames, 0.25), rate, format="wav", subtype="PCM_16")
    return file.getvalue()


def bad_row(folder: Path, column: pa.Array, **settings: Any) -> tuple[str, str]:
    """The reason and the detail of the only bad row of a column."""
    pq.write_table(pa.table({"odd": column, "number": range(len(column))}), folder / "a.parquet")
    (bad,) = opened(folder, "a.parquet", **settings)[1].bad
    return bad.reason, bad.detail


# --- what `datasets` wrote ---


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """The files, and their values as the library reads them: anew if it is installed, else those that were kept."""
    folder = tmp_path_factory.mktemp("hub") / "set"
    if importlib.util.find_spec("datasets") is not None:
        write_hub(folder)
        return folder, read_back(folder)
    shutil.copytree(GOLDEN, folder)
    return folder, dict(np.load(GOLDEN / "values.npz"))


@pytest.mark.parametrize(
    ("source", "path"), [("parquet", "data/train-*.parquet"), ("parquet", "data"), ("arrow", "saved/train")]
)
def test_a_data_set_of_the_hub_has_the_values_that_its_own_library_reads(
    hub: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, source: str, path: str
) -> None:
    folder, values = hub
    shutil.copytree(folder, tmp_path / "set")
    found, report = opened(tmp_path, f"set/{path}", source=source)
    assert (report.samples, report.bad_counts) == (ROWS, {})
    assert found.fields == (
        Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),
        Field(key="image", dtype="uint8", shape=(12, 16, 3)),
        Field(key="when", dtype="int64", shape=()),
        Field(key="boxes", dtype="float32", shape=(None, 4)),
        Field(key="grid", dtype="int32", shape=(None, 3)),
        Field(key="label", dtype="int64", shape=()),
    )
    given = columns_of(ROWS)
    for row in range(ROWS):
        sample = decoded(found, row)
        assert list(sample) == ["audio", "audio_rate", "image", "when", "boxes", "grid", "text", "label"]
        for key in ("audio", "when", "boxes", "grid", "label"):
            expected = values[f"{key}_{row}"]
            assert sample[key].dtype == expected.dtype
            assert np.array_equal(sample[key], expected), (key, row)
        assert (sample["audio_rate"], sample["text"]) == (8000, str(values[f"text_{row}"]))
        # Values that were kept may be another JPEG library's, whose last bits differ.
        assert np.abs(sample["image"].astype(int) - values[f"image_{row}"]).max() <= 3
        pixels = np.asarray(Image.open(io.BytesIO(given["image"][row]["bytes"])).convert("RGB"))
        assert np.abs(sample["image"].astype(int) - pixels).max() <= 3
        assert {key: int(lengths[row]) for key, lengths in found.lengths.items()} == {
            "audio": len(sample["audio"]),
            "audio_rate": 8000,
            "boxes": row % 4,
            "grid": 2,
            "text": len(sample["text"]),
        }


def test_a_speech_set_of_the_hub_becomes_log_mel_features(hub: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(hub[0] / "data", tmp_path / "data")
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "parquet"\npaths = ["data"]\ncolumns = ["audio", "text"]\n'
        'transforms = ["logmel", "characters"]\nlength = "audio"\nbudget = "20 s"\n'
        '[streams.train.logmel]\nrate = 8000\n[streams.train.characters]\nunknown = "drop"\n'
    )
    job = JobFile(tmp_path / "job.toml")
    index_streams(job, ["train"])
    stream = Stream(job, "train")
    assert [(field.key, field.shape) for field in stream.chain.fields] == [("audio", (None, 80)), ("text", (None,))]
    assert {"libsndfile", "soundfile"} <= stream.source.versions.keys()


def test_no_file_column_no_library(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": [1, 2]}), tmp_path / "a.parquet")
    source, _ = opened(tmp_path, "a.parquet")
    assert (source.versions, source.gathers) == ({}, True)


# --- which files a column holds ---


@pytest.mark.parametrize("raw", [clip(), picture(2, 3), picture(2, 3, format="jpeg"), picture(2, 3, format="webp")])
def test_a_column_that_no_library_describes_is_known_by_its_first_bytes(tmp_path: Path, raw: bytes) -> None:
    pq.write_table(pa.table({"x": files(None, raw), "n": [1, 2]}), tmp_path / "a.parquet")
    source, report = opened(tmp_path, "a.parquet")
    assert report.bad_counts == {"null": 1}
    # Of images alone the first axis is the length, as for all rows of one shape.
    assert source.fields[0].shape == ((None,) if raw[:4] == b"RIFF" and raw[8:12] == b"WAVE" else (None, 3, 3))


@pytest.mark.parametrize(
    ("feature", "raw", "got"),
    [
        ("Video", b"anything", "a column of Video, as `datasets` calls it"),
        ("", b"anything", "bytes that Pillow knows no format for"),
        ("", None, "no bytes in any row"),
    ],
)
def test_a_column_of_other_files_is_refused_by_name(tmp_path: Path, feature: str, raw: bytes, got: str) -> None:
    table = pa.table({"x": files(raw), "n": [1]})
    if feature:
        about = f'{{"info": {{"features": {{"x": {{"_type": "{feature}"}}, "n": {{"dtype": "int64"}}}}}}}}'
        table = table.replace_schema_metadata({"huggingface": about})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r'expected recordings or images in "x", got .*columns = \[…\]') as refused:
        opened(tmp_path, "a.parquet")
    assert refused.value.got == got
    source, _ = opened(tmp_path, "a.parquet", columns=["n"])
    assert [field.key for field in source.fields] == ["n"]


# --- rows that cannot be used ---


def test_a_recording_that_is_none_is_a_bad_row(tmp_path: Path) -> None:
    reason, detail = bad_row(tmp_path, files(clip(), b"RIFF but no audio at all"))
    assert reason == "undecodable"
    assert detail.startswith('"odd": expected WAV, FLAC, OGG or MP3, got ')


def test_an_image_that_is_none_is_a_bad_row(tmp_path: Path) -> None:
    reason, detail = bad_row(tmp_path, files(picture(2, 3), b"no image at all"))
    assert reason == "undecodable"
    assert "expected JPEG, PNG or another image that Pillow reads, got bytes that Pillow knows no format for" in detail


def test_an_image_of_another_size_is_a_bad_row_that_tells_of_resize(tmp_path: Path) -> None:
    reason, detail = bad_row(tmp_path, files(picture(2, 3), picture(4, 3)))
    assert reason == "other_size"
    assert "expected 2 x 3 pixels, as the first image has, got 4 x 3. Write resize = [2, 3]" in detail


def test_an_image_that_would_lose_bits_is_a_bad_row(tmp_path: Path) -> None:
    assert bad_row(tmp_path, files(picture(2, 3), picture(2, 3, "I;16")))[0] == "deep_image"


def test_a_file_that_is_only_named_is_a_bad_row_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.wav").write_bytes(clip())
    reason, detail = bad_row(tmp_path, files(clip(), None, paths=[None, str(tmp_path / "secret.wav")]))
    assert reason == "not_embedded"
    assert "secret.wav': write the data set by save_to_disk or to_parquet, which put the files into it" in detail


def test_a_struct_without_bytes_and_path_is_a_bad_row(tmp_path: Path) -> None:
    assert bad_row(tmp_path, files(clip(), None)) == ("null", 'expected "odd" with bytes, got neither bytes nor a path')


def test_a_null_in_place_of_a_file_is_a_bad_row(tmp_path: Path) -> None:
    column = pa.array([{"bytes": clip(), "path": None}, None], files(None).type)
    assert bad_row(tmp_path, column)[0] == "null"


def test_files_that_would_be_too_large_are_bad_rows(tmp_path: Path) -> None:
    huge = picture(3000, 3000)
    pq.write_table(pa.table({"x": files(picture(2, 3), huge), "n": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\nlargest_sample = "1 MB"\nmax_bad = 0.9\n'
        '[streams.train]\nsource = "parquet"\npaths = ["a.parquet"]\nlength = "x"\nbudget = "20 steps"\n'
    )
    assert index_streams(JobFile(tmp_path / "job.toml"), ["train"])["train"].bad_counts == {"over_largest_sample": 1}


def test_files_that_broke_since_are_bad_samples(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": files(picture(40, 30, format="jpeg"))}), tmp_path / "a.parquet")
    source, _ = opened(tmp_path, "a.parquet")
    (raw,) = source.read([0])
    with pytest.raises(SampleError, match="Truncated"):
        source.decode(0, raw[:-200])


@pytest.mark.parametrize(("suffix", "kept"), [("flac", 0.5), ("wav", 0.5), ("ogg", 0.5)])
def test_a_recording_that_lost_its_end_is_never_used(tmp_path: Path, suffix: str, kept: float) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).uniform(-0.5, 0.5, 20_000), 8000, format=suffix)
    raw = file.getvalue()
    pq.write_table(pa.table({"x": files(raw, raw[: int(kept * len(raw))])}), tmp_path / "a.parquet")
    source, report = opened(tmp_path, "a.parquet")
    assert len(decoded(source, 0)["x"]) == 20_000
    if report.samples == 2:  # a FLAC file's header tells nothing of it
        with pytest.raises(SampleError, match="flac decoder lost sync"):
            decoded(source, 1)
    else:
        assert report.bad_counts == {"truncated": 1}


def test_a_recording_of_other_frames_than_its_header_said_is_a_bad_sample() -> None:
    kind = replace(kind_of("x", files(None).type), holds="audio")
    found = FileColumns("RGB", (), OfJob()).decode(clip(80), kind, 80, "here")
    assert (len(found["x"]), found["x_rate"]) == (80, 8000)
    with pytest.raises(SampleError, match="expected 81 frames, as the recording's header says, got 80"):
        FileColumns("RGB", (), OfJob()).decode(clip(80), kind, 81, "here")


def test_many_are_decoded_at_once_if_they_are_small(tmp_path: Path) -> None:
    columns = {"x": files(clip(), clip(90)), "n": [1, 2], "t": ["a", "b"], "v": [[1], [2, 3]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    source, _ = opened(tmp_path, "a.parquet")
    found = source.decode_all([1, 0], list(source.read([1, 0])))
    assert {key: type(column) for key, column in found.items()} == {
        **dict.fromkeys(("x", "x_rate", "t", "v"), list),
        "n": np.ndarray,
    }
    assert ([len(audio) for audio in found["x"]], found["n"].tolist(), found["t"]) == ([90, 80], [2, 1], ["b", "a"])
    assert source.decode_all([], []) is None
    large = opened(tmp_path, written_long(tmp_path))[0]
    assert large.decode_all([0, 1], list(large.read([0, 1]))) is None


def written_long(folder: Path) -> str:
    """A file of two recordings that together are more than are decoded at once."""
    pq.write_table(pa.table({"x": files(clip(3_000_000), clip(3_000_000))}), folder / "long.parquet")
    return "long.parquet"


# --- images ---


def test_images_are_resized_and_converted(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, format="png")
    pq.write_table(pa.table({"x": files(picture(7, 9, "L"), file.getvalue())}), tmp_path / "a.parquet")
    source, report = opened(tmp_path, "a.parquet", resize=[8, 6], colours="L")
    assert (report.samples, source.fields) == (2, (Field(key="x", dtype="uint8", shape=(None, 6, 1)),))
    expected = Image.fromarray(noise).convert("L").resize((6, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(decoded(source, 1)["x"][..., 0], np.asarray(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_stand_upright(tmp_path: Path, orientation: int) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(noise).save(file, format="png", exif=exif)
    pq.write_table(pa.table({"x": files(file.getvalue())}), tmp_path / "a.parquet")
    source, _ = opened(tmp_path, "a.parquet")
    # By Exif: mirrored, turned by half, both, or with rows and columns exchanged.
    upright = {
        1: noise,
        2: noise[:, ::-1],
        3: noise[::-1, ::-1],
        4: noise[::-1],
        5: noise.swapaxes(0, 1),
        6: np.rot90(noise, -1),
        7: np.rot90(noise, 2).swapaxes(0, 1),
        8: np.rot90(noise),
    }[orientation]
    assert np.array_equal(decoded(source, 0)["x"], upright)
    assert source.fields[0].shape == (None, *upright.shape[1:])


# --- lists in lists, and times ---


@pytest.mark.parametrize(
    ("arrow", "rows", "shape"),
    [
        (pa.list_(pa.list_(pa.float32())), [[], [[1, 2]], [[3, 4], [5, 6]]], (None, 2)),
        (pa.large_list(pa.list_(pa.int8())), [[[1, 2, 3]]], (None, 3)),
        (pa.list_(pa.list_(pa.list_(pa.int32()))), [[], [[[1, 2]], [[3, 4]]]], (None, 1, 2)),
        (pa.list_(pa.list_(pa.list_(pa.int32(), 2))), [[[[1, 2]], [[3, 4]]]], (None, 1, 2)),
        (pa.list_(pa.list_(pa.list_(pa.int32()), 1)), [[[[1, 2]], [[3, 4]]]], (None, 1, 2)),
        (pa.list_(pa.list_(pa.int64()), 2), [[[1, 2, 3], [4, 5, 6]]], (None, 3)),
    ],
)
def test_lists_in_lists_are_arrays(tmp_path: Path, arrow: Any, rows: list[Any], shape: tuple[Any, ...]) -> None:
    pq.write_table(pa.table({"x": pa.array(rows, arrow)}), tmp_path / "a.parquet")
    source, report = opened(tmp_path, "a.parquet")
    assert (source.fields[0].shape, report.bad_counts) == (shape, {})
    for row, values in enumerate(rows):
        assert decoded(source, row)["x"].tolist() == values


@pytest.mark.parametrize(
    ("arrow", "rows", "bad"),
    [
        (pa.list_(pa.list_(pa.float32())), [[[1, 2]], [[1, 2], [3]], [], [[5, 6], [7, 8]]], [1]),
        (pa.list_(pa.list_(pa.float32())), [[[1, 2]], [[1, 2], []], [[1, 2], None], [[3, 4]]], [1, 2]),
        (pa.list_(pa.list_(pa.list_(pa.int8()))), [[[[1], [2]]], [[[1], [2, 3]]], [[[1]]], [[[4], [5]]]], [1, 2]),
        (pa.list_(pa.list_(pa.list_(pa.int8()), 2)), [[[[1], [2]]], [[[1], [2, 3]]], [[[4], [5]]]], [1]),
        (pa.list_(pa.list_(pa.int8()), 2), [[[1], [2]], [[1], [2, 3]], [[4], [5]]], [1]),
    ],
)
def test_a_row_whose_inner_lists_differ_is_a_bad_one(
    tmp_path: Path, arrow: Any, rows: list[Any], bad: list[int]
) -> None:
    pq.write_table(pa.table({"x": pa.array(rows, arrow)}), tmp_path / "a.parquet")
    source, report = opened(tmp_path, "a.parquet")
    assert [row.line for row in report.bad] == bad
    assert {row.reason for row in report.bad} <= {"unequal_lists", "null"}
    good = [row for place, row in enumerate(rows) if place not in bad]
    assert [decoded(source, sample)["x"].tolist() for sample in range(source.samples)] == good


def test_lists_that_are_all_empty_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([[], [[]]], pa.list_(pa.list_(pa.int8())))}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match='a row of "x" that shows how long its inner lists are, got only empty ones'):
        opened(tmp_path, "a.parquet")


@pytest.mark.parametrize(
    ("arrow", "dtype"),
    [
        (pa.timestamp("s"), "int64"),
        (pa.timestamp("ns", "UTC"), "int64"),
        (pa.date32(), "int32"),
        (pa.date64(), "int64"),
        (pa.time32("ms"), "int32"),
        (pa.time64("us"), "int64"),
        (pa.duration("us"), "int64"),
    ],
)
def test_times_are_integers_in_their_unit(tmp_path: Path, arrow: Any, dtype: str) -> None:
    day = 86_400_000 if arrow == pa.date64() else 1
    numbers = [0, 3 * day, None, 7 * day]
    column = pa.array(numbers, getattr(pa, dtype)()).view(arrow)
    lists = pa.array([[0], [day, None], [], [5 * day]], pa.list_(getattr(pa, dtype)())).cast(pa.list_(arrow))
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, pa.schema({"x": arrow, "many": pa.list_(arrow)})) as stream,
    ):
        stream.write_table(pa.table({"x": column, "many": lists}))
    source, report = opened(tmp_path, "a.arrow", source="arrow")
    assert [row.line for row in report.bad] == [1, 2]
    assert [(field.key, field.dtype) for field in source.fields] == [("x", dtype), ("many", dtype)]
    sample = decoded(source, 1)
    assert (sample["x"].tolist(), sample["many"].tolist()) == (7 * day, [5 * day])


def test_a_column_whose_unit_changes_between_files_is_refused(tmp_path: Path) -> None:
    for name, unit in (("a", "us"), ("b", "ns")):
        pq.write_table(pa.table({"when": pa.array([1], pa.timestamp(unit))}), tmp_path / f"{name}.parquet")
    with pytest.raises(
        DataError, match=r'"when" as timestamp\[us\] \[\], as in the files before, got "when" as timest'
    ):
        opened(tmp_path, "a.parquet", "b.parquet")


def test_a_column_that_becomes_one_of_files_is_refused(tmp_path: Path) -> None:
    for name, column in (("a", files(clip())), ("b", pa.array(["a.wav"]))):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match='"x" as encoded, as in the files before, got "x" as text'):
        opened(tmp_path, "a.parquet", "b.parquet")


# --- groups ---


def test_groups_of_files_are_segments_of_their_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": files(*[clip()] * 600)}), tmp_path / "a.parquet", row_group_size=100)
    source, _ = opened(tmp_path, "a.parquet")
    assert source.segments.tolist() == [0, 300, 600]
    assert source.fields[0].per_second == 8000


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_rows_of_arrow_files_that_are_larger_than_the_cache_are_read_alone(
    tmp_path: Path, compression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table(
        {"x": files(*(clip(100 + row) for row in range(40))), "n": range(40), "t": [f"č{row}" for row in range(40)]}
    )
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=options) as file,
    ):
        file.write_table(table, max_chunksize=10)
    small, _ = opened(tmp_path, "a.arrow", source="arrow", cache="6 kB")
    large, _ = opened(tmp_path, "a.arrow", source="arrow")
    rows = [33, 2, 14, 39, 0]
    assert list(small.read(rows)) == list(large.read(rows))
    # Compressed batches would be unpacked for each row: those are kept, as groups of Parquet files are.
    assert (len(small.unread(np.arange(40))), len(large.unread(np.arange(40)))) == (4 if compression is None else 3, 1)
    assert [len(decoded(small, row)["x"]) for row in rows] == [100 + row for row in rows]
    if compression is None:
        data = (tmp_path / "a.arrow").read_bytes()
        (tmp_path / "a.arrow").write_bytes(data[:-600] + bytes(600))
        with pytest.raises(ReadError):
            list(small.read([33]))


def test_recordings_of_several_rates_have_no_time(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": files(clip(), clip(rate=16000))}), tmp_path / "a.parquet")
    source, _ = opened(tmp_path, "a.parquet")
    assert (source.fields[0].per_second, source.lengths["x_rate"].tolist()) == (None, [8000, 16000])
