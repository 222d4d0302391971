"""Members are found as the standard library finds them, in every dialect; what is broken is said where it is."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.records.tar_members import BLOCK, BrokenTar, members_of
from tests.support.shards import tar_of

NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/"), min_size=1, max_size=120)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join).filter(lambda path: path.strip("/."))
STYLES = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def found(data: bytes) -> list[tuple[str, bytes]]:
    return [(one.name, data[one.offset : one.offset + one.size]) for one in members_of(data)]


@given(st.lists(st.tuples(PATHS, st.binary(max_size=1500)), max_size=5), st.sampled_from(STYLES))
def test_members_are_those_that_the_standard_library_finds(members: list[tuple[str, bytes]], style: int) -> None:
    try:
        data = tar_of(members, style)
    except ValueError:  # a name that is too long for this dialect
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = [(one.name, archive.extractfile(one).read()) for one in archive]  # type: ignore[union-attr]
    assert found(data) == expected == members


def test_one_can_begin_at_any_header() -> None:
    data = tar_of([("a.txt", b"one"), ("b" * 200 + ".txt", b"two"), ("c.txt", b"three")])
    headers = [one.header for one in members_of(data)]
    for place, header in enumerate(headers):
        assert [one.header for one in members_of(data, header)] == headers[place:]


def special(kind: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("it")
        info.type, info.linkname = kind, "elsewhere"
        archive.addfile(info)
        archive.addfile(tarfile.TarInfo("next"))
    return file.getvalue()


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        *((tarfile.SYMTYPE, "link"), (tarfile.LNKTYPE, "link"), (tarfile.GNUTYPE_SPARSE, "sparse_file")),
        *((tarfile.FIFOTYPE, "device"), (tarfile.CHRTYPE, "device"), (b"Z", "unknown_kind"), (tarfile.CONTTYPE, "")),
    ],
)
def test_what_is_no_plain_file_is_told_by_its_kind(flag: bytes, kind: str) -> None:
    assert [(one.name, one.kind) for one in members_of(special(flag))] == [("it", kind), ("next", "")]


def test_folders_are_left_out() -> None:
    assert [one.name for one in members_of(special(tarfile.DIRTYPE))] == ["next"]


def test_sparse_files_of_pax_are_no_plain_files() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("it")
        info.pax_headers = {"GNU.sparse.major": "1", "comment": "x = y\nz"}
        archive.addfile(info)
    assert [one.kind for one in members_of(file.getvalue())] == ["sparse_file"]


def test_sizes_may_be_written_in_bytes_or_in_pax() -> None:
    data = bytearray(tar_of([("a.txt", b"one")], tarfile.USTAR_FORMAT))
    data[124:136] = b"\x80" + (3).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:BLOCK])
    assert found(bytes(data)) == [("a.txt", b"one")]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("it")
        info.size, info.pax_headers = 3, {"size": "3"}
        archive.addfile(info, io.BytesIO(b"abc"))
    assert found(file.getvalue()) == [("it", b"abc")]


def broken(data: bytes) -> tuple[int, str, bool]:
    with pytest.raises(BrokenTar) as refused:
        found(data)
    return refused.value.at, str(refused.value), refused.value.cut


def test_what_is_broken_is_said_where_it_is() -> None:
    data = tar_of([("a.txt", b"one"), ("b.txt", b"x" * 600)])
    second = 2 * BLOCK
    said = "a member has 600 bytes, but the file ends after 590 of them"
    assert broken(data[: second + BLOCK + 590]) == (second, said, True)
    assert broken(data[: second + 100]) == (second, "the file ends without the mark of its end", True)
    assert broken(data[: second + 3 * BLOCK]) == (second + 3 * BLOCK, "the file ends without the mark of its end", True)
    assert broken(data[:100]) == (0, "the file ends without the mark of its end", False)
    for place in (0, 130, 150, 156, 400):
        damaged = bytearray(data)
        damaged[second + place] ^= 1
        assert broken(bytes(damaged)) == (second, "the checksum of a header does not match", False)


def test_a_pax_header_that_makes_no_sense_is_told() -> None:
    data = tar_of([("b" * 200, b"one")]).replace(b" path=", b"=path ")
    assert broken(data) == (0, "a pax header cannot be read", False)
