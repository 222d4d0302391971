"""A builder with a feature cache: the same batches, with less decoding."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as own

from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.feature_cache.cache import FeatureCache, as_bytes, from_bytes
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.bad_samples import index
from tests.support.in_memory import Steps, memory_want
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DRAWING = ("logmel", "spec_augment", "characters")


def job_of(folder: Path, *transforms: str, cached: str = "1 GiB", **how: Any) -> JobFile:
    job = write_job(
        folder, samples=30, longest_s=0.3, transforms=transforms, job=f'feature_cache_bytes = "{cached}"', **how
    )
    index(job)
    return JobFile(job)


class Building:
    """Builds all batches of an epoch, as one worker would that starts now."""

    def __init__(self, job: JobFile, *, cached: bool = True) -> None:
        self.stream = Stream(job, "train")
        self.features = FeatureCache.open(job, self.stream) if cached else None
        self.builder = Builder(self.stream, Quarantine(job.state / "quarantine.jsonl"), Steps(), self.features)

    def epoch(self, epoch: int, **how: Any) -> tuple[list[bytes], Counter[str]]:
        """The bytes of all batches, and how many samples were kept and decoded."""
        payloads, counts = [], Counter[str]()
        for number in range(self.builder.batches(epoch, 1)):
            want = memory_want(number=number, epoch=epoch, group=1, **how)
            prepared = self.builder.prepare(want)
            payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
            built = self.builder.build(want, prepared, payload)
            payloads.append(payload.tobytes())
            counts += Counter(kept=built.kept, decoded=built.decoded)
        return payloads, counts

    def close(self) -> None:
        """As at a worker's end."""
        if self.features is not None:
            self.features.close()
        self.stream.close()


@pytest.fixture
def building() -> Iterator[Any]:
    opened: list[Building] = []

    def building(job: JobFile, **how: Any) -> Building:
        opened.append(Building(job, **how))
        return opened[-1]

    yield building
    for one in opened:
        one.close()


@pytest.mark.parametrize("transforms", [("logmel", "characters"), _DRAWING], ids=["all of it", "a part"])
def test_batches_from_the_cache_are_those_without_it(tmp_path, building, transforms) -> None:
    job = job_of(tmp_path, *transforms)
    plain = building(job, cached=False)
    one = building(job)
    for epoch in range(2):
        assert one.epoch(epoch) == (plain.epoch(epoch)[0], {"kept" if epoch else "decoded": 30})
    other = building(job)  # of the same machine, or after a restart
    assert other.epoch(2) == (plain.epoch(2)[0], {"kept": 30})


def test_kept_samples_are_not_read(tmp_path, building) -> None:
    job = job_of(tmp_path, "logmel", "characters")
    one = building(job)
    first, _ = one.epoch(0)
    for clip in (tmp_path / "clips").iterdir():
        clip.unlink()
    assert one.epoch(0)[0] == first


def test_kept_samples_are_not_fetched_ahead(tmp_path, building, monkeypatch) -> None:
    job = job_of(tmp_path, "logmel", "characters")
    one, expected = building(job), list[int]()
    monkeypatch.setattr(one.stream.source, "looks_ahead", lambda: True)
    monkeypatch.setattr(one.stream.source, "expect", lambda samples: expected.extend(samples.tolist()))
    one.epoch(0)
    assert set(expected) == set(range(30))
    expected.clear()
    one.epoch(1)
    assert expected == []


@pytest.mark.parametrize("time_put_back", [False, True])
def test_a_mended_file_is_read_again(tmp_path, building, time_put_back) -> None:
    job = job_of(tmp_path, "logmel", "characters")
    with closing(building(job)) as one:
        first, _ = one.epoch(0)
    clips = sorted((tmp_path / "clips").iterdir())
    raw = bytearray(clips[0].read_bytes())
    raw[-200:] = bytes(200)
    times = clips[0].stat()
    clips[0].write_bytes(raw)
    os.utime(clips[0], ns=(times.st_atime_ns, times.st_mtime_ns) if time_put_back else (1, 1))
    index(job.path)
    again, plain = building(job), building(job, cached=False)
    got, counts = again.epoch(0)
    assert got == plain.epoch(0)[0] != first
    assert counts == {"kept": 29, "decoded": 1}


def test_other_settings_find_nothing(tmp_path, building) -> None:
    building(job_of(tmp_path, "logmel", "characters")).epoch(0)
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace("bands = 40", "bands = 20"))
    other = building(JobFile(tmp_path / "job.toml"))
    assert other.epoch(0)[1] == {"decoded": 30}


def test_what_draws_behind_may_have_other_settings(tmp_path, building) -> None:
    job = job_of(tmp_path, *_DRAWING)
    building(job).epoch(0)
    job.path.write_text(job.path.read_text() + "\n[streams.train.spec_augment]\nband_stripes = 0\n")
    assert building(JobFile(job.path)).epoch(0)[1] == {"kept": 30}


def test_a_suspect_is_read_and_decoded(tmp_path, building) -> None:
    job = job_of(tmp_path, "logmel", "characters")
    one = building(job)
    first, _ = one.epoch(0)
    assert one.epoch(0, attempt=1) == (first, {"decoded": 30})


def test_culprits_are_masked_though_they_are_kept(tmp_path, building) -> None:
    job = job_of(tmp_path, "logmel", "characters")
    one, plain = building(job), building(job, cached=False)
    one.epoch(0)
    for each in (one, plain):
        each.builder.culprits.find(each.stream.identity(3))
    assert one.epoch(0)[0] == plain.epoch(0)[0]


@pytest.mark.parametrize(
    ("transforms", "cached"), [(("speed_perturb", "logmel", "characters"), "1 GiB"), (("logmel", "characters"), "0 B")]
)
def test_there_is_none_where_nothing_can_be_kept(tmp_path, building, transforms, cached) -> None:
    one = building(job_of(tmp_path, *transforms, cached=cached))
    assert one.features is None
    one.epoch(0)
    assert not (tmp_path / ".stoker" / "features").exists()


@pytest.mark.fault(66)
@pytest.mark.parametrize("closed", ["features", "features/ledger"])
def test_without_the_right_to_write_there_is_none(building, caplog, closed) -> None:
    with folder_for_all() as folder:
        job = job_of(folder, "logmel", "characters")
        first = building(job)
        first.close()
        if closed == "features":
            shutil.rmtree(folder / ".stoker" / "features")
        with as_another_user():
            without = FeatureCache.open(job, first.stream)
        assert without is None
    assert "feature cache is closed: samples are made anew" in caplog.text
    assert f"Permission denied: '{folder / '.stoker' / closed}'" in caplog.text


# --- values as bytes and back ---

_DTYPES = st.sampled_from(["float32", "float64", "int16", "int32", "int64", "uint8", "bool", "complex64"])
_ARRAYS = own.arrays(_DTYPES, own.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary()
_VALUES = _ARRAYS | _PLAIN | st.text(st.characters(exclude_categories=["Cs"])) | st.just(np.float32(0.5))


@given(st.dictionaries(st.text("abc"), _VALUES, max_size=5))
def test_values_come_back_as_they_were(values: dict[str, Any]) -> None:
    blob = as_bytes(values)
    assert blob is not None
    back = from_bytes(bytearray(blob))
    assert list(back) == list(values)
    for key, value in values.items():
        assert type(back[key]) is type(value)
        if isinstance(value, np.ndarray):
            assert (back[key].dtype, back[key].shape) == (value.dtype, value.shape)
            assert back[key].tobytes() == value.tobytes()
            assert back[key].flags.writeable
            assert back[key].flags.aligned
        else:
            assert back[key] == value


@pytest.mark.parametrize(
    "value",
    [[1, 2], {"a": 1}, object(), np.array([None]), np.ma.array([1]), 2**70, "\ud800", float],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_bytes_is_not_kept(value: object) -> None:
    assert as_bytes({"good": 1, "other": value}) is None
