"""Members become samples as WebDataset groups them, and what cannot be used is told."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest

from loader_server.sources.records.tar_samples import refuse_no_tar, samples_of
from shared.errors import DataError
from tests.support.shards import tar_of


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
