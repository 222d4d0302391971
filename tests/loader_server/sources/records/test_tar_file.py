"""Members are found as the standard library finds them, in every dialect, and become samples as WebDataset groups them.

What is broken is told with its place, what cannot be used with the reason.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.records.tar_file import BLOCK, BrokenTar, members_of, refuse_no_tar, samples_of
from shared.errors import DataError
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


def grouped(*names: str) -> list[tuple[str, list[str], str]]:
    data = tar_of((name, b"") for name in names)
    return [(one.key, list(one.members), one.reason) for one in samples_of(data)]


def test_members_of_one_key_that_follow_each_other_are_a_sample() -> None:
    assert grouped("a/1.jpg", "a/1.CLS", "a.b/1.seg.png", "a.b/1.txt", "a/1.txt", "./x.txt") == [
        ("a/1", ["jpg", "cls"], ""),
        ("a.b/1", ["seg.png", "txt"], ""),
        ("a/1", ["txt"], ""),
        ("./x", ["txt"], ""),
    ]


def test_what_webdataset_says_of_a_shard_is_left_out() -> None:
    assert grouped("__meta__", "__more__/a.json", "1.txt", "__x__.txt") == [("1", ["txt"], ""), ("__x__", ["txt"], "")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *(("/etc/1.txt", "unsafe_name"), ("a/../1.txt", "unsafe_name"), ("../1.txt", "unsafe_name")),
        *(("README", "no_suffix"), ("a/.hidden", "no_suffix"), ("b.txt/", "no_suffix"), ("\udcff.txt", "not_utf8")),
    ],
)
def test_a_name_that_cannot_be_used_is_told(name: str, reason: str) -> None:
    data = tar_of([(name, b"x"), ("good.txt", b"")])
    bad, good = samples_of(data)
    assert (bad.reason, good.reason) == (reason, "")
    assert ascii(name) in bad.detail


def test_a_member_that_is_there_twice_makes_its_sample_a_bad_one() -> None:
    (sample,) = samples_of(tar_of([("1.txt", b"a"), ("1.cls", b"2"), ("1.TXT", b"b")]))
    assert (sample.reason, sample.detail) == (
        "duplicate_member",
        "expected one member with this suffix, got '1.TXT' again",
    )
    assert list(sample.members) == ["txt", "cls"]


def test_a_broken_end_is_a_bad_sample_behind_the_others() -> None:
    data = tar_of([("1.txt", b"a"), ("2.txt", b"b"), ("2.cls", b"c")])
    samples = list(samples_of(data[: 5 * 512]))
    assert [(one.key, list(one.members), one.reason) for one in samples] == [
        ("1", ["txt"], ""),
        ("2", ["txt"], ""),
        ("", [], "broken_file"),
    ]
    said = "a member has 1 bytes, but the file ends after 0 of them: nothing from byte 2048 on can be read"
    assert samples[-1].detail == said


@pytest.mark.parametrize(
    ("pack", "kind"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz"), (None, "zstd")]
)
def test_a_compressed_shard_is_refused_with_the_remedy(pack: object, kind: str) -> None:
    data = tar_of([("1.txt", b"a" * 9000)])
    packed = pack(data) if pack is not None else b"\x28\xb5\x2f\xfd" + data  # type: ignore[operator]
    with pytest.raises(DataError, match=f"here: expected a tar file that is not compressed, got .* {kind}.*unpack it"):
        refuse_no_tar(packed, "here")


def test_what_is_no_tar_is_refused_and_one_that_is_cut_is_not() -> None:
    for data in (b"", b"a,b\n" * 300):
        with pytest.raises(DataError, match="here: expected a tar file, got another one: the"):
            refuse_no_tar(data, "here")
    refuse_no_tar(tar_of([("1.txt", b"abc")])[:514], "here")
    refuse_no_tar(tar_of([]), "here")
