"""The part of `pathlib.Path` that a remote file can offer, for readers of text that take either."""

from __future__ import annotations

import io
import posixpath
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from loader_server.sources.remote.urls import without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RemotePath"]


class RemotePath:
    """A remote file by its URL; `open_url` opens URLs."""

    def __init__(self, url: str, open_url: Callable[[str], BinaryIO]) -> None:
        self._url = url
        self._open_url = open_url
        self.name = posixpath.basename(urlsplit(url).path)
        self.suffix = posixpath.splitext(self.name)[1]

    def __str__(self) -> str:
        return without_credentials(self._url)

    @property
    def parent(self) -> RemotePath:
        """Return the folder that contains it."""
        return RemotePath(posixpath.dirname(self._url), self._open_url)

    def open(self, encoding: str, errors: str = "strict", newline: str | None = None) -> io.TextIOWrapper:
        """Open the file for reading as text."""
        return io.TextIOWrapper(self._open_url(self._url), encoding, errors, newline)
