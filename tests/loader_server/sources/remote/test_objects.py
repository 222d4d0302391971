"""Single remote files: their versions, and those that come whole."""

from __future__ import annotations

import io

import fsspec
import pytest

from loader_server.sources.files.file_facts import FileFacts
from loader_server.sources.remote.objects import Objects
from loader_server.sources.remote.retries import Retries
from shared.errors import ReadError


@pytest.fixture
def objects() -> Objects:
    """Of a store in memory, which is asked again without pauses."""
    return Objects(Retries(lambda _: None))


def write(name: str, content: bytes) -> str:
    with fsspec.filesystem("memory").open(f"/objects/{name}", "wb") as file:
        file.write(content)
    return f"memory://objects/{name}"


def test_a_version_fits_into_a_column_and_uses_all_of_it(objects: Objects) -> None:
    versions = [objects.facts(write(f"{n}", b"x" * n)).version for n in range(32)]
    assert len(set(versions)) == 32
    assert 2**62 <= max(versions) < 2**63


def test_a_file_that_came_in_part_is_asked_for_again_and_then_named(objects: Objects) -> None:
    url, into = write("short", b"12345"), io.BytesIO()
    with pytest.raises(
        ReadError, match=r"objects/short: expected to read the file, got 5 bytes of 7, at each of 5 att"
    ):
        objects.bring(url, FileFacts(bytes=7, version=1), into)
