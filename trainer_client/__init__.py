"""The trainer's side of Stoker: `connect` to a running job and iterate over its batches.

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
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
    EndedError,
    LostError,
    PeerError,
    ProtocolError,
    ReadError,
    RefusedError,
    SampleError,
    SettingsError,
    StokerError,
    WorldChangedError,
)
from trainer_client.batch import Batch
from trainer_client.feed import Feed, Reading, connect
from trainer_client.roles import Role, role
from trainer_client.runs.elastic import run_elastic
from trainer_client.runs.run import Run
from trainer_client.runs.stop_rules import LevelledOff, NoProgress, Worsening
from trainer_client.runs.until import Until

if TYPE_CHECKING:
    from trainer_client.callbacks import FeedCheckpoint
    from trainer_client.early_stop import EarlyStop
    from trainer_client.tf.cluster import cluster_resolver, device_function, start_server
    from trainer_client.tf.pipelines.alone import run_pipeline
    from trainer_client.tf.pipelines.distribute import distribute
    from trainer_client.validation import Validation

__all__ = [
    "Batch",
    "ClosedError",
    "DataError",
    "EarlyStop",
    "EndedError",
    "Feed",
    "FeedCheckpoint",
    "LevelledOff",
    "LostError",
    "NoProgress",
    "PeerError",
    "ProtocolError",
    "ReadError",
    "Reading",
    "RefusedError",
    "Role",
    "Run",
    "SampleError",
    "SettingsError",
    "StokerError",
    "Until",
    "Validation",
    "WorldChangedError",
    "Worsening",
    "cluster_resolver",
    "connect",
    "device_function",
    "distribute",
    "role",
    "run_elastic",
    "run_pipeline",
    "start_server",
]

#: The names that need TensorFlow, and their modules.
_NEED_TENSORFLOW = {
    "EarlyStop": "trainer_client.early_stop",
    "FeedCheckpoint": "trainer_client.callbacks",
    "cluster_resolver": "trainer_client.tf.cluster",
    "device_function": "trainer_client.tf.cluster",
    "distribute": "trainer_client.tf.pipelines.distribute",
    "run_pipeline": "trainer_client.tf.pipelines.alone",
    "start_server": "trainer_client.tf.cluster",
    "Validation": "trainer_client.validation",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module holds
    """Import what needs TensorFlow when it is first named."""
    if name in _NEED_TENSORFLOW:
        return getattr(import_module(_NEED_TENSORFLOW[name]), name)
    raise AttributeError(f"module 'trainer_client' has no attribute {name!r}")
