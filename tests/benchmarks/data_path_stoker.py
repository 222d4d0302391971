"""Stoker as a path of the data path benchmark: a coordinator, workers, and a feed read through `tf.data`.

Rules: processes are started as `loader-server` starts them, with the stamped source beside the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainer_client
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.keys import make_keys
from tests.benchmarks.data_path_source import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.benchmarks.data_path_payloads import Payload, Shape
    from trainer_client import Batch, Feed

__all__ = ["loaders", "make_job", "opened", "planned_shapes", "start_loaders"]

_ROOT = Path(__file__).resolve().parents[2]

_JOB = """
[job]
name = "path"
{job}

[streams.train]
source = "{source}"
{stream}
"""


def make_job(folder: Path, stream: str, *, source: str = "stamped", keys: bool = False, settings: str = "") -> Path:
    """A job file with its index, in a folder of its own; `settings` are further ones of the job."""
    register()
    folder.mkdir(parents=True)
    if keys:
        make_keys(folder / "keys")
    path = folder / "job.toml"
    of_job = "\n".join([settings, *['keys = "keys"'] * keys])
    path.write_text(_JOB.format(job=of_job, source=source, stream=stream))
    index_streams(JobFile(path), ["train"], processes=1)
    return path


def planned_shapes(job: Path, most: int) -> list[Shape]:
    """The shapes of the first batches of an epoch."""
    register()
    stream = Stream(JobFile(job), "train")
    epoch = stream.plan.epoch(0, 1)
    shapes = []
    for number in range(min(most, epoch.batches)):
        shape = epoch.batch(number).shape
        by_key: Shape = {}
        for field in stream.fields:
            by_key[field.key] = (shape.rows, *(shape.lengths[field.key] if n is None else n for n in field.shape))
        shapes.append(by_key)
    stream.close()
    return shapes


@contextmanager
def loaders(job: Path, workers: int = 1) -> Iterator[str]:
    """A running coordinator and workers; the coordinator's endpoint."""
    with ExitStack() as stack:
        endpoint, _ = start_loaders(stack, job, workers)
        yield endpoint


def start_loaders(
    stack: ExitStack, job: Path, workers: int, *, address: str = "127.0.0.1", inside: Sequence[str] = ()
) -> tuple[str, list[int]]:
    """Start a coordinator and workers that end with `stack`; return the coordinator's endpoint and the workers' ids.

    `inside` begins each command, such as that of a network namespace which has `address`.
    """
    listen = ["--listen", f"tcp://{address}:*"]
    if address != "127.0.0.1" and not (job.parent / "keys").exists():
        listen.append("--insecure")
    endpoint, _ = _started(stack, [*inside], ["coordinator", str(job), *listen])
    worker = ["worker", str(job), *listen, "--coordinator", endpoint]
    return endpoint, [_started(stack, [*inside], worker)[1] for _ in range(workers)]


def _started(stack: ExitStack, inside: list[str], arguments: Sequence[str]) -> tuple[str, int]:
    reading, writing = os.pipe()
    program = [sys.executable, "-m", "tests.benchmarks.data_path_source", *arguments, "--ready-fd", str(writing)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    process = subprocess.Popen(
        [*inside, *program],
        pass_fds=[writing],
        env=environment,
        cwd=_ROOT,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    os.close(writing)
    with os.fdopen(reading) as ready:
        return str(json.loads(ready.readline())["endpoint"]), process.pid


@contextmanager
def opened(job: Path, payload: Payload, path: str) -> Iterator[Iterator[Any]]:
    """Elements with the payload's keys, epoch after epoch."""
    keys = str(job.parent / "keys") if (job.parent / "keys").exists() else ""
    by_memory = not path.startswith("tcp")
    with loaders(job) as endpoint, trainer_client.connect(endpoint, shared_memory=by_memory, keys=keys) as feed:
        yield _ADAPTERS.get(path, _datasets)(feed, payload.keys)


def _datasets(feed: Feed, keys: tuple[str, ...]) -> Iterator[Any]:
    data = feed.dataset(map=lambda batch: tuple(batch[key] for key in keys))
    while True:
        yield from data


def _tensors(feed: Feed, keys: tuple[str, ...]) -> Iterator[Any]:
    from trainer_client.torch import FeedTensors  # PyTorch only where it is measured

    return _parts(FeedTensors(feed), keys)


def _arrays(feed: Feed, keys: tuple[str, ...]) -> Iterator[Any]:
    from trainer_client.jax import FeedArrays  # JAX only where it is measured

    return _parts(FeedArrays(feed), keys)


def _parts(batches: Iterable[Batch], keys: tuple[str, ...]) -> Iterator[Any]:
    while True:
        for batch in batches:
            yield tuple(batch[key] for key in keys)


#: How batches are read, if not as a dataset of TensorFlow's.
_ADAPTERS = {"torch_tensors": _tensors, "jax_arrays": _arrays}
