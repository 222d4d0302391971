"""What a sample may take: its size once decoded, compared while indexing and before memory is taken; a second look."""

from __future__ import annotations

import errno
import io
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from loader_server.index.folder import open_index
from loader_server.job_file import JobFile
from loader_server.machine.room import Room
from loader_server.sources import sample_limits
from loader_server.sources.audio.audio_files import decoded_audio, decoded_stretch, header_of_bytes
from loader_server.sources.audio.stretches import AudioStretch, Headers, Stretch
from loader_server.sources.files.opening import Files
from loader_server.sources.records.member_formats import MemberForm
from loader_server.sources.sample_limits import LARGEST_SAMPLE, look_twice, refuse_larger
from loader_server.sources.source import BadRow, OfJob
from loader_server.stream import open_source
from shared.errors import DataError, MachineError, ReadError, SampleError
from tests.support.claims import MOST_FLAC_SAMPLES, flac_that_claims
from tests.support.loaders import write_job
from tests.support.sources import index_source, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader_server.sources.registry import SourceSpec


def flac(samples: int = 1000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros((samples, channels)), 8000, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def limited(spec: SourceSpec, largest: int, *, cuts: bool = False) -> SourceSpec:
    return replace(spec, of_job=OfJob(largest_sample=largest, cuts=cuts))


def test_as_much_as_may_be_is_not_refused_and_a_byte_more_is() -> None:
    refuse_larger(100, 100, "here")
    refuse_larger(2**60, 0, "here")
    with pytest.raises(SampleError, match=r"here: expected at most 100 B decoded.*largest_sample.*, got 101 B") as bad:
        refuse_larger(101, 100, "here")
    assert bad.value.reason == "over_largest_sample"


@pytest.mark.fault(53)
def test_a_header_that_claims_more_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    raw = flac_that_claims(MOST_FLAC_SAMPLES, flac())
    assert header_of_bytes(raw, "here")[0] == MOST_FLAC_SAMPLES
    with pytest.raises(SampleError, match="got 256 GiB") as bad:
        decoded_audio(raw, "here")
    assert bad.value.reason == "over_largest_sample"
    (tmp_path / "a.flac").write_bytes(flac(1000, 2))
    with (tmp_path / "a.flac").open("rb") as file:
        assert len(decoded_stretch(file.fileno(), 10, 500, "here", largest=4 * 2 * 500)) == 500
        file.seek(0)
        with pytest.raises(SampleError, match=r"got 3\.906 KiB"):
            decoded_stretch(file.fileno(), 10, 500, "here", largest=4 * 2 * 500 - 1)


@pytest.mark.parametrize("channels", [1, 2])
def test_all_channels_count_because_all_are_decoded(tmp_path: Path, channels: int) -> None:
    nbytes = 4 * channels * 1000
    assert len(decoded_audio(flac(1000, channels), "here", largest=nbytes)[0]) == 1000
    with pytest.raises(SampleError, match="expected at most"):
        decoded_audio(flac(1000, channels), "here", largest=nbytes - 1)
    (tmp_path / "a.flac").write_bytes(flac(1000, channels))
    found = [
        Headers(Files(tmp_path), largest=largest).find(str(tmp_path / "a.flac"), Stretch(), ("list", 3))
        for largest in (nbytes, nbytes - 1, 0)
    ]
    assert [type(one) for one in found] == [AudioStretch, BadRow, AudioStretch]
    assert (found[1].where, found[1].line, found[1].reason) == ("list", 3, "over_largest_sample")  # type: ignore[union-attr]


def test_a_stretch_of_a_long_recording_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(flac(8000))
    headers = Headers(Files(tmp_path), largest=4 * 4000)
    assert isinstance(headers.find(str(tmp_path / "a.flac"), Stretch(0.25, 0.5), ("list", 3)), AudioStretch)
    assert isinstance(headers.find(str(tmp_path / "a.flac"), Stretch(), ("list", 3)), BadRow)


def test_members_of_shards_count_too() -> None:
    form = MemberForm("flac")
    assert form.look(flac(), "here", 4000)[0] == 1000
    with pytest.raises(SampleError, match=r"at most 3\.905 KiB"):
        form.look(flac(), "here", 3999)
    with pytest.raises(SampleError, match=r"at most 3\.905 KiB"):
        form.decode(flac(), "here", 3999)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_array_whose_header_claims_more_than_there_is_takes_no_memory(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(6, dtype=np.float32).reshape(3, 2), version=version)
    raw, form = file.getvalue(), MemberForm("npy", "float32", (2,))
    assert form.decode(raw, "here")["npy"].tolist() == [[0, 1], [2, 3], [4, 5]]
    claims = raw.replace(b"(3, 2), }" + 12 * b" ", b"(3000000000000, 2), }")
    assert len(claims) == len(raw)
    assert claims != raw
    with pytest.raises(SampleError, match="buffer is smaller"):
        form.decode(claims, "here")


def lines_spec(tmp_path: Path, *texts: str) -> SourceSpec:
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    return spec_of("lines", tmp_path, paths=["a.txt"])


def test_rows_whose_lengths_tell_are_left_out_with_file_and_line(tmp_path: Path) -> None:
    report = index_source(limited(lines_spec(tmp_path, "one", "three", "eleven", "two"), 5))
    assert [(row.where.rpartition("/")[2], row.line, row.reason) for row in report.bad] == [
        ("a.txt", 3, "over_largest_sample")
    ]
    assert report.samples == 3
    assert "as largest_sample in [job] says, got 6 B" in report.bad[0].detail


def test_lengths_count_with_the_dtype_and_shape_of_their_field(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_values=np.zeros((7, 3), np.float32), x_offsets=[0, 2, 5, 7])
    for largest, samples in ((4 * 3 * 3, 3), (4 * 3 * 3 - 1, 2)):
        report = index_source(limited(spec_of("numpy", tmp_path, paths=["a.npz"]), largest))
        assert report.samples == samples


def test_keys_of_objects_count_whatever_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "one", "b": "two"}\n{"a": "one", "b": "eleven"}\n')
    report = index_source(limited(spec_of("jsonl", tmp_path, paths=["a.jsonl"]), 8))
    assert [row.line for row in report.bad] == [2]


def test_the_limit_is_part_of_the_fingerprint_and_its_default_changes_none(tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, "one", "two")
    prints = {largest: index_source(limited(spec, largest)).fingerprint for largest in (LARGEST_SAMPLE, 2**20)}
    assert prints[LARGEST_SAMPLE] == index_source(spec).fingerprint
    assert prints[2**20] != prints[LARGEST_SAMPLE]
    assert index_source(limited(spec, 2**20, cuts=True)).fingerprint == prints[LARGEST_SAMPLE], "nothing is left out"


def test_an_index_that_was_made_with_another_limit_is_refused(tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, "one", "two")
    index_source(limited(spec, 2**20))
    open_source(limited(spec, 2**20), tmp_path / "index").source.close()
    with pytest.raises(DataError, match=r'made with largest_sample = "1073741824 B", got one made with "1048576 B"'):
        open_source(spec, tmp_path / "index")
    open_source(limited(spec, 2**20, cuts=True), tmp_path / "index").source.close()
    index_source(limited(lines_spec(tmp_path, "one", "eleven"), 5))
    with pytest.raises(DataError, match="no limit, as recordings are cut"):
        open_source(limited(spec, 5, cuts=True), tmp_path / "index")
    index_source(limited(spec, 2**20, cuts=True))
    open_source(limited(spec, 2**20), tmp_path / "index").source.close()
    index_source(limited(spec, 2**20))
    assert open_index(tmp_path / "index").meta.largest_sample == 2**20


def test_the_job_file_says_it_and_recordings_that_are_cut_are_not_measured_whole(tmp_path: Path) -> None:
    path = write_job(tmp_path, samples=2, job='largest_sample = "3 MiB"', stream='chunk = "1 s"')
    (tmp_path / "other.toml").write_text(path.read_text().replace('chunk = "1 s"', ""))
    cut, whole = (JobFile(file).recipes["train"].sources[0].of_job for file in (path, tmp_path / "other.toml"))
    assert (cut.largest_sample, cut.largest_indexed) == (3 * 2**20, 0)
    assert (whole.largest_sample, whole.largest_indexed) == (3 * 2**20, 3 * 2**20)


LARGEST = 2**30
ENOUGH = Room(memory=LARGEST, descriptors=64)


def raising(*errors: BaseException | None) -> Callable[[], int]:
    """Raise each in turn; None stands for an answer."""
    left = list(errors)

    def look() -> int:
        error = left.pop(0)
        if error is not None:
            raise error
        return 7

    return look


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[Room]:
    """What is free, whenever that is asked."""
    free = [ENOUGH]
    monkeypatch.setattr(sample_limits, "free_room", lambda: free[-1])
    return free


def look(*errors: BaseException | None) -> int:
    return look_twice(raising(*errors), LARGEST, lambda: "a.wav (list.csv, line 3)")


@pytest.mark.usefixtures("room")
def test_what_runs_out_once_is_looked_at_again() -> None:
    assert look(None) == 7
    assert look(MemoryError(), None) == 7
    assert look(OSError(errno.EMFILE, "Too many open files"), None) == 7


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_any_other_error_is_passed_on_at_once(error: BaseException) -> None:
    with pytest.raises(type(error)) as first:
        look(error)
    assert first.value is error
    with pytest.raises(type(error)) as second:
        look(MemoryError(), error)
    assert second.value is error


@pytest.mark.fault(53)
@pytest.mark.usefixtures("room")
def test_with_enough_free_it_is_the_samples_own_fault() -> None:
    read = ReadError(expected="a", got="b", where="c", remedy="d")
    read.__cause__ = OSError(errno.ENFILE, "Too many open files in system")
    with pytest.raises(SampleError, match=r"a.wav \(list.csv, line 3\): .*Too many open files in system, twice") as bad:
        look(MemoryError(), read)
    assert bad.value.reason == "exhausts"


@pytest.mark.fault(53)
@pytest.mark.parametrize(
    "left", [Room(memory=LARGEST - 1, descriptors=64), Room(memory=LARGEST, descriptors=63)], ids=["memory", "files"]
)
def test_with_less_free_it_is_the_machines(room: list[Room], left: Room) -> None:
    room.append(left)
    with pytest.raises(
        MachineError, match=r"got MemoryError: big, twice, with .* free, of which 1 GiB of memory and 64"
    ):
        look(MemoryError("big"), MemoryError("big"))
