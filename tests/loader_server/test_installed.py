"""Versions of installed packages."""

from __future__ import annotations

import importlib.metadata

import pytest

from loader_server.installed import metadata_field, version_of


def test_all_that_is_installed_has_the_name_and_version_that_importlib_reads() -> None:
    for one in importlib.metadata.distributions():
        assert (metadata_field(one, "Name"), metadata_field(one, "Version")) == (one.name, one.version)


def test_what_is_not_installed_is_importlibs_error() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        version_of("nowhere")


class _Told(importlib.metadata.Distribution):
    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: object) -> object:  # type: ignore[override]
        raise NotImplementedError


@pytest.mark.parametrize("file", ["METADATA", "PKG-INFO"])
def test_only_the_head_counts(file: str) -> None:
    text = "Metadata-Version: 2.1\nName: first\nSummary: Version: 7\nVersion: 1.5\n\nVersion: 3\n"
    assert metadata_field(_Told({file: text}), "Version") == "1.5"
