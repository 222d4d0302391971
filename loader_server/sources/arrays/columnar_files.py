"""What the formats of columns have in common: their settings, a file's groups, and errors that tell of a broken file.

Rules: nothing here reads files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader_server.sources.image_files import colours_setting, resize_setting
from shared.settings.parsers import byte_count, setting, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BROKEN", "ColumnarSettings", "GroupsOfFile", "text_of"]

#: What reading broken files raises; pyarrow's own errors are of these kinds. An OSError with an
#: errno is not pyarrow's but the disk's.
BROKEN = (OSError, ValueError, KeyError, NotImplementedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarSettings:
    """Settings of a stream with source = "parquet" or "arrow", besides those of every stream."""

    paths: tuple[str, ...] = setting(texts, "files of one schema, or folders of them, relative to the job file")
    columns: tuple[str, ...] = setting(texts, "the columns that are read; all, if left out", default=())
    cache: int = setting(
        byte_count, "how much decoded data each worker keeps; a window should fit", default=512 * 2**20
    )
    resize: tuple[int, ...] = resize_setting()
    colours: str = colours_setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOfFile:
    """A file's columns with their Arrow types, and its groups.

    For each group `rows` is its number of rows, and `places` where it is, in the format's own terms.
    """

    types: Mapping[str, Any]
    #: What `datasets` calls columns that are files, if it wrote this one.
    features: Mapping[str, str] = field(default_factory=dict)
    #: Rows of each group.
    rows: list[int] = field(default_factory=list)
    #: Where each group is: its number in the file, or the byte where it begins.
    places: list[int] = field(default_factory=list)


def text_of(error: Exception) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split())
