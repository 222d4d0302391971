"""Values in chunks are read as h5py reads them; what is not plainly so is left to it."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader_server.sources.hdf5.file import ChunkedValues

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS, BANDS = 23, 3
VALUES = np.random.default_rng(0).normal(size=(ROWS, BANDS)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        yield file


def opened(dataset: h5py.Dataset) -> tuple[ChunkedValues, list[int]]:
    """The dataset as it lies in the file, and how many bytes were read of that each time."""
    dataset.file.flush()
    sizes: list[int] = []

    def read(offset: int, nbytes: int) -> bytes:
        sizes.append(nbytes)
        with open(dataset.file.filename, "rb") as raw:  # noqa: PTH123 - its descriptor
            return os.pread(raw.fileno(), nbytes, offset)

    assert ChunkedValues.can_read(dataset)
    return ChunkedValues(dataset, read), sizes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunk=st.integers(1, ROWS + 2),
    compression=st.sampled_from([None, "gzip"]),
    dtype=st.sampled_from(["float32", "int8"]),
    places=st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)).map(sorted), max_size=6),
)
def test_rows_are_those_that_the_library_reads(
    tmp_path: Path, chunk: int, compression: str | None, dtype: str, places: list[list[int]]
) -> None:
    with h5py.File(tmp_path / "b.h5", "w") as file:
        how = {"chunks": (min(chunk, ROWS), BANDS), "compression": compression}
        dataset = file.create_dataset("values", data=(VALUES * 9).astype(dtype), **how)
        values, _ = opened(dataset)
        for begin, end in places:
            assert values.read(begin, end) == dataset[begin:end].tobytes()


def test_a_dataset_of_one_axis_and_one_that_grows(file: h5py.File) -> None:
    dataset = file.create_dataset("values", data=np.arange(10), chunks=(4,), maxshape=(None,), compression="gzip")
    values, _ = opened(dataset)
    assert values.read(3, 10) == np.arange(3, 10).tobytes()


def test_of_what_is_not_compressed_only_the_rows_are_read(file: h5py.File) -> None:
    values, sizes = opened(file.create_dataset("values", data=VALUES, chunks=(8, BANDS)))
    assert values.read(7, 10) == VALUES[7:10].tobytes()
    assert sizes == [12, 24]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"chunks": (8, 2)},
        {"chunks": (8, BANDS), "compression": "lzf"},
        {"chunks": (8, BANDS), "compression": "gzip", "shuffle": True},
        {"chunks": (8, BANDS), "compression": "gzip", "fletcher32": True},
    ],
    ids=str,
)
def test_what_lies_otherwise_is_for_the_library(file: h5py.File, how: dict[str, Any]) -> None:
    assert not ChunkedValues.can_read(file.create_dataset("values", data=VALUES, **how))


def test_chunks_that_are_not_there_or_left_a_filter_out_are_for_the_library(file: h5py.File) -> None:
    dataset = file.create_dataset("values", VALUES.shape, np.float32, chunks=(8, BANDS), compression="gzip")
    dataset[8:16] = VALUES[8:16]
    values, _ = opened(dataset)
    assert values.read(8, 16) == VALUES[8:16].tobytes()
    assert values.read(7, 9) is None
    dataset.id.write_direct_chunk((16, 0), VALUES[:8].tobytes(), filter_mask=1)
    values, _ = opened(dataset)
    assert values.read(16, 17) is None


@pytest.mark.parametrize(
    "cut", [zlib.compress(b"too few"), b"no deflate", zlib.compress(VALUES[:8].tobytes())[:-1] + b"?"]
)
def test_a_damaged_chunk_is_for_the_library_to_name(file: h5py.File, cut: bytes) -> None:
    dataset = file.create_dataset("values", data=VALUES, chunks=(8, BANDS), compression="gzip")
    dataset.id.write_direct_chunk((0, 0), cut)
    assert opened(dataset)[0].read(0, 1) is None
