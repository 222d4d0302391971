"""Records are found where they are, and what is wrong with a file is said once, where it is."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.records.tfrecord_file import records_from, refuse_no_records
from shared.errors import DataError
from tests.support.records import record

GOLDEN = Path(__file__).parents[3] / "support" / "golden"


@given(st.lists(st.binary(max_size=300), max_size=9), st.integers(1, 4))
def test_records_are_found_so_many_at_a_time(contents: list[bytes], most: int) -> None:
    data, start, found = b"".join(map(record, contents)), 0, []
    while start < len(data):
        part = records_from(data, start, most)
        assert part.broken == ""
        assert len(part.offsets) == min(most, len(contents) - len(found))
        found += [data[begin : begin + size] for begin, size in zip(part.offsets, part.sizes, strict=True)]
        start = part.stop
    assert found == contents


def test_checksums_are_those_that_are_written() -> None:
    data = record(b"abc") + record(b"")
    found = records_from(data, 0, 9)
    assert [int(one).to_bytes(4, "little") for one in found.checksums] == [data[15:19], data[-4:]]


def test_what_tensorflow_wrote_is_whole() -> None:
    data = (GOLDEN / "tensorflow.tfrecord").read_bytes()
    found = records_from(data, 0, 100)
    assert (len(found.offsets), found.stop, found.broken) == (2, len(data), "")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (1, "the file ends after 1 bytes of its header"),
        (11, "the file ends after 11 bytes of its header"),
        (12, "it has 5 bytes, but the file ends after 0 of them"),
        (15, "it has 5 bytes, but the file ends after 3 of them"),
        (20, "it has 5 bytes, but the file ends after 8 of them"),
    ],
)
def test_a_file_that_is_cut_short_keeps_the_records_before(left: int, said: str) -> None:
    whole = record(b"first")
    found = records_from(whole + record(b"other")[:left], 0, 9)
    assert (len(found.offsets), found.stop, found.broken) == (1, len(whole), said)


@pytest.mark.parametrize("place", [0, 3, 7, 8, 11])
def test_a_header_that_was_damaged_ends_the_file(place: int) -> None:
    data = bytearray(record(b"first") + record(b"second") + record(b"third"))
    data[len(record(b"first")) + place] ^= 1
    found = records_from(bytes(data), 0, 9)
    assert (len(found.offsets), found.stop) == (1, len(record(b"first")))
    assert found.broken == "the checksum of its size does not match"


def test_a_broken_record_counts_only_if_it_was_asked_for() -> None:
    data = record(b"first") + b"no"
    assert records_from(data, 0, 1).broken == ""
    assert records_from(data, 0, 2).broken


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_file_is_refused_with_the_remedy(pack: object) -> None:
    data = pack(record(b"first") * 9)  # type: ignore[operator]
    with pytest.raises(DataError, match=r"here: expected a TFRecord file that is not compressed.*GZIP or ZLIB.*gunzip"):
        refuse_no_records(data, records_from(data, 0, 9), "here")


def test_another_file_is_refused_and_one_whose_first_record_is_cut_is_not() -> None:
    data = b"a,b\n1,2\n3,4\n5,6\n7,8\n"
    with pytest.raises(DataError, match=r"here: expected a TFRecord file, got another one"):
        refuse_no_records(data, records_from(data, 0, 9), "here")
    cut = record(b"first")[:-2]
    refuse_no_records(cut, records_from(cut, 0, 9), "here")
