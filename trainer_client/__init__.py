"""The trainer's side of Stoker: `connect` to a running job and iterate over its batches.

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shared

if getattr(shared, "DISTRIBUTION", None) != "stoker":
    raise ImportError(
        f"expected stoker's own package `shared`, got {getattr(shared, '__file__', None) or list(shared.__path__)}. "
        "Another folder of that name comes first on sys.path: rename it, or start from another directory."
    )

from shared.errors import (
    ClosedError,
    DataError,
    LostError,
    PeerError,
    ProtocolError,
    ReadError,
    RefusedError,
    SampleError,
    SettingsError,
    StokerError,
)
from trainer_client.batch import Batch
from trainer_client.feed import Feed, Reading, connect

if TYPE_CHECKING:
    from trainer_client.callbacks import FeedCheckpoint

__all__ = [
    "Batch",
    "ClosedError",
    "DataError",
    "Feed",
    "FeedCheckpoint",
    "LostError",
    "PeerError",
    "ProtocolError",
    "ReadError",
    "Reading",
    "RefusedError",
    "SampleError",
    "SettingsError",
    "StokerError",
    "connect",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module holds
    """`FeedCheckpoint` needs Keras; it is imported when it is first named."""
    if name == "FeedCheckpoint":
        from trainer_client.callbacks import FeedCheckpoint  # noqa: PLC0415

        return FeedCheckpoint
    raise AttributeError(f"module 'trainer_client' has no attribute {name!r}")
