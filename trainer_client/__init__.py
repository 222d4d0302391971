"""The trainer's side of Stoker: `connect` to a running job and iterate over its batches.

Importing this package does not import TensorFlow.

In the examples, `endpoint` is that of a running job with the streams `train`, `dev` (for evaluation), `leased` (in
queue mode) and `elastic`; `feed` and `dev` are feeds of the first two, just connected; `model` is a compiled Keras
model of `audio`, and `folder` a new folder. `pipelines` is the endpoint of another job, whose stream `train` is a
pipeline of the module `my_pipeline`, and whose stream `sent` takes graphs.
"""

from __future__ import annotations

import shared

#: As in `typing`, which takes as long to import as all that a command imports before it handles signals.
TYPE_CHECKING = False

if getattr(shared, "DISTRIBUTION", None) != "stoker":
    raise ImportError(
        f"expected stoker's own package `shared`, got {getattr(shared, '__file__', None) or list(shared.__path__)}. "
        "Another folder of that name comes first on sys.path: rename it, or start from another directory."
    )

if TYPE_CHECKING:
    from typing import Any

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
    from trainer_client.connecting import connect
    from trainer_client.distributing import distribute
    from trainer_client.feed import Feed
    from trainer_client.roles import Role, role
    from trainer_client.session.batch_iterator import Reading
    from trainer_client.tf.pipelines.pipeline import run_pipeline
    from trainer_client.training.checkpoints.feed_checkpoint import FeedCheckpoint
    from trainer_client.training.checkpoints.initial_values import InitialValues
    from trainer_client.training.evaluating.validation import Validation
    from trainer_client.training.runs.early_stop import EarlyStop
    from trainer_client.training.runs.elastic import run_elastic
    from trainer_client.training.runs.run_loop import Run
    from trainer_client.training.runs.stop_rules import LevelledOff, NoProgress, Worsening
    from trainer_client.training.runs.until import Until
    from trainer_client.training.strategies.cluster import cluster_resolver, device_function, start_server

__all__ = [
    "Batch",
    "ClosedError",
    "DataError",
    "EarlyStop",
    "EndedError",
    "Feed",
    "FeedCheckpoint",
    "InitialValues",
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

#: Module of each public name, imported when the name is first used: some need TensorFlow, and commands have to handle
#: signals before they spend half a second on imports.
_MODULES = {
    "Batch": "trainer_client.batch",
    "ClosedError": "shared.errors",
    "cluster_resolver": "trainer_client.training.strategies.cluster",
    "connect": "trainer_client.connecting",
    "DataError": "shared.errors",
    "device_function": "trainer_client.training.strategies.cluster",
    "distribute": "trainer_client.distributing",
    "EarlyStop": "trainer_client.training.runs.early_stop",
    "EndedError": "shared.errors",
    "Feed": "trainer_client.feed",
    "FeedCheckpoint": "trainer_client.training.checkpoints.feed_checkpoint",
    "InitialValues": "trainer_client.training.checkpoints.initial_values",
    "LevelledOff": "trainer_client.training.runs.stop_rules",
    "LostError": "shared.errors",
    "NoProgress": "trainer_client.training.runs.stop_rules",
    "PeerError": "shared.errors",
    "ProtocolError": "shared.errors",
    "ReadError": "shared.errors",
    "Reading": "trainer_client.session.batch_iterator",
    "RefusedError": "shared.errors",
    "Role": "trainer_client.roles",
    "role": "trainer_client.roles",
    "Run": "trainer_client.training.runs.run_loop",
    "run_elastic": "trainer_client.training.runs.elastic",
    "run_pipeline": "trainer_client.tf.pipelines.pipeline",
    "SampleError": "shared.errors",
    "SettingsError": "shared.errors",
    "start_server": "trainer_client.training.strategies.cluster",
    "StokerError": "shared.errors",
    "Until": "trainer_client.training.runs.until",
    "Validation": "trainer_client.training.evaluating.validation",
    "WorldChangedError": "shared.errors",
    "Worsening": "trainer_client.training.runs.stop_rules",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first used, and return its value.

    Raise AttributeError for any other name; errors of the import, such as of a missing library, pass through.
    """
    from importlib import import_module  # not above, for the same reason as `typing`

    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    raise AttributeError(f"module 'trainer_client' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion: most of them are imported only when first used."""
    return sorted(__all__)
