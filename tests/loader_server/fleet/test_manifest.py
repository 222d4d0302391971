"""Manifests: what comes back, where offsets lie, and what is refused of one that came from elsewhere."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.fleet.manifest import Manifest, is_safe_name, sha256
from shared.errors import DataError
from tests.loader_server.fleet.bundles import FILES, PIECE, made


def fields(**changes):
    return msgpack.unpackb(made().encoded) | changes


def refused(**changes):
    with pytest.raises(DataError) as error:
        Manifest.decode(msgpack.packb(fields(**changes)))
    return error.value.got


def entry(name, content=b""):
    return [name, len(content), sha256(content), sha256(content) if content else b""]


def test_it_comes_back_as_it_was_with_the_same_digest():
    manifest = made()
    again = Manifest.decode(manifest.encoded)
    assert again == manifest
    assert again.digest == manifest.digest == sha256(manifest.encoded).hex()


def test_any_other_byte_is_another_digest():
    changed = made({**FILES, "index/index-train/meta.json": b"[]"})
    assert changed.digest != made().digest


def test_each_offset_lies_where_the_bytes_are_and_no_piece_spans_two_files():
    manifest = made()
    everything = manifest.encoded + b"".join(FILES.values())
    offset, found = 0, b""
    while (place := manifest.place_of(offset)) is not None:
        assert 0 < place.nbytes <= PIECE
        content = everything[offset : offset + place.nbytes]
        if place.file is not None:
            assert content == FILES[place.file.name][place.start : place.start + place.nbytes]
            assert place.file.has_piece(place.start // PIECE, content)
        found += content
        offset += place.nbytes
    assert found == everything
    assert manifest.nbytes == sum(map(len, FILES.values()))


def test_pieces_are_those_that_the_size_has():
    last = made().files[-1]
    assert last.count == 3
    assert [last.piece_nbytes(number) for number in range(3)] == [PIECE, PIECE, 4]
    assert not last.has_piece(2, b"Tail")


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../job.toml", "a/../b", "a//b", "a/", ".ssh", "a/.b", "a\\b", "a\0b", "a\nb", "x" * 256,
     "/".join("abcdefghi"), "é" * 200],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(name):
    assert not is_safe_name(name)
    assert "a file called" in refused(files=[*fields()["files"], entry(name)])


@pytest.mark.parametrize("name", ["job.toml", "a/b/c/d/e/f/g/h", "a%2Fb c.npy", "größe.npy", "x..y", "-"])
def test_names_that_users_give_are_allowed(name):
    assert is_safe_name(name)


@given(st.text(max_size=30))
def test_a_safe_name_never_leaves_its_folder(name):
    if is_safe_name(name):
        assert not name.startswith("/")
        assert not {"", ".", ".."} & set(name.split("/"))


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"format": 2}, "other fields"),
        ({"more": 1}, "other fields"),
        ({"files": {}}, "no list of files"),
        ({"files": [entry("index/a")]}, "no job.toml"),
        ({"files": [entry("job.toml"), entry("job.toml")]}, "two things called job.toml"),
        ({"files": [entry("job.toml"), entry("a"), entry("a/b")]}, "two things called a"),
        ({"files": [["job.toml", 5, b"x" * 32, b""]]}, "too few or too many checksums"),
        ({"files": [["job.toml", 5, b"x" * 31, b"x" * 32]]}, "no checksums"),
        ({"files": [["job.toml", -1, b"x" * 32, b""]]}, "out of bounds"),
        ({"files": [["job.toml", True, b"x" * 32, b"x" * 32]]}, "out of bounds"),
        ({"named": {"a": "files/7"}}, "that the bundle lacks"),
        ({"named": [1]}, "no table of names"),
        ({"indexes": {"../index": "0"}}, "an index in a folder elsewhere"),
        ({"job": "../digits"}, "no name of a job"),
        ({"job": "a/b"}, "no name of a job"),
        ({"folder": "data"}, "no absolute folder"),
        ({"limit": 2**41}, "out of bounds"),
    ],
)
def test_what_is_no_manifest_is_refused(changes, got):
    assert got in refused(**changes)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(content):
    with pytest.raises(DataError):
        Manifest.decode(content)


@given(st.data())
def test_any_cut_or_changed_manifest_is_survived(data):
    content = bytearray(made().encoded)
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        assert all(is_safe_name(file.name) for file in Manifest.decode(bytes(content)).files)


def test_files_beyond_the_limit_are_refused_the_later_ones_first():
    assert made().refused == frozenset()
    assert made(limit=8).refused == {"index/index-train/columns/a%2Fb c.npy"}
    assert made(limit=0).refused == {name for name, content in FILES.items() if name != "files/0.npz"} | {"files/0.npz"}


def test_what_a_host_does_not_take_changes_nothing_of_what_it_keeps():
    index = frozenset(name for name in FILES if name.startswith("index/"))
    kept, others = made().without(index), {**FILES, "index/index-train/meta.json": b"[]"}
    assert [file.name for file in kept.files] == ["job.toml", "files/0.npz"]
    assert made(others).without(index).digest == kept.digest
    assert made({**FILES, "job.toml": b"other"}).without(index).digest != kept.digest
