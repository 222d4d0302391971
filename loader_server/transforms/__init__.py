"""Transforms: functions and classes that turn a raw sample into what is put into a batch.

A module that defines a transform, built-in or a user's own, imports all that it needs from here;
`docs/transforms.md` shows how to write one.
"""

from __future__ import annotations

from loader_server.transforms.declare import Outputs, transform
from shared.errors import SampleError, SettingsError
from shared.settings.parsers import (
    Amount,
    amount,
    by_key,
    byte_count,
    choice,
    duration_s,
    file,
    flag,
    number,
    numbers,
    setting,
    text,
    texts,
    whole,
)

__all__ = [
    "Amount",
    "Outputs",
    "SampleError",
    "SettingsError",
    "amount",
    "by_key",
    "byte_count",
    "choice",
    "duration_s",
    "file",
    "flag",
    "number",
    "numbers",
    "setting",
    "text",
    "texts",
    "transform",
    "whole",
]
