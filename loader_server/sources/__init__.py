"""Sources: where samples live, and what the index has of each of them.

A module that defines a source, of this package or a user's own, imports all that it needs from here; `docs/sources.md`
shows how to write one.
"""

from __future__ import annotations

from loader_server.sources.files.file_facts import FileFacts, changed
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.errors import DataError, ReadError, SampleError, SettingsError
from shared.settings.parsers import (
    amount,
    by_key,
    byte_count,
    choice,
    duration_s,
    flag,
    number,
    setting,
    text,
    texts,
    whole,
)
from shared.wire.batch_layout import Field

__all__ = [
    "BadRow",
    "DataError",
    "Field",
    "FileFacts",
    "Found",
    "Indexed",
    "Inventory",
    "ReadError",
    "SampleError",
    "SettingsError",
    "Source",
    "amount",
    "by_key",
    "byte_count",
    "changed",
    "choice",
    "duration_s",
    "flag",
    "number",
    "setting",
    "text",
    "texts",
    "whole",
]
