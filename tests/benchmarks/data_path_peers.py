"""What the data path is measured against: `tf.data service`, torch, Grain, and the raw limits of memory and sockets.

Each is opened with the shapes of its batches and gives elements without end: tuples of a value for each key, made anew
by a copy of the template and a stamp, in one process beside the consumer's (memcpy: in its own). A peer that is not
installed raises ImportError, and the benchmark says so.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.data_path_payloads import largest, template, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tests.benchmarks.data_path_payloads import Shape

__all__ = ["PEERS", "tf_server"]

_ROOT = Path(__file__).resolve().parents[2]

#: Buffers that the raw paths go round in: more than fit into the last-level cache, as slots are.
_BUFFERS = 8

Shapes = list["Shape"]


def _padded(shape: Shape) -> list[str]:
    return [key for key, sizes in shape.items() if len(sizes) > 1]


class _Maker:
    """Makes the batch of a number with numpy; picklable, for it travels to the peers' processes."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._templates = {key: template(key, largest(shapes, key)) for key in _padded(shapes[0])}

    def __call__(self, number: int) -> tuple[NDArray[Any], ...]:
        shape = self._shapes[number % len(self._shapes)]
        return tuple(self._value(key, sizes, number) for key, sizes in shape.items())

    def _value(self, key: str, sizes: tuple[int, ...], number: int) -> NDArray[Any]:
        if len(sizes) == 1:
            return np.full(sizes, number % 97, np.int32)
        made = self._templates[key][: math.prod(sizes)].reshape(sizes).copy()
        made[:, 0] = number
        return made


# --- tf.data service ---


def _tf_batches(shapes: Shapes) -> Any:
    """The same batches, made by TensorFlow's ops: one pass over the memory of each."""
    import tensorflow as tf

    stencils = {key: tf.constant(template(key, largest(shapes, key))) for key in _padded(shapes[0])}
    sizes_of = {key: tf.constant([shape[key] for shape in shapes], tf.int32) for key in shapes[0]}
    fixed = len(shapes) == 1

    def value(key: str, number: Any) -> Any:
        sizes = tf.constant(shapes[0][key]) if fixed else sizes_of[key][tf.cast(number % len(shapes), tf.int32)]
        if key not in stencils:
            return tf.fill(sizes, tf.cast(number % 97, tf.int32))
        stencil = stencils[key]
        made = tf.reshape(stencil[: tf.reduce_prod(sizes)], sizes) + tf.cast(number, stencil.dtype)
        return tf.ensure_shape(made, [n if fixed else None for n in shapes[0][key]])

    return tf.data.Dataset.range(2**40).map(lambda number: tuple(value(key, number) for key in shapes[0]))


@contextmanager
def _tfdata(shapes: Shapes, compression: str | None) -> Iterator[Iterator[Any]]:
    import tensorflow as tf

    service = tf.data.experimental.service
    with tf_server() as target:
        policy = service.ShardingPolicy.OFF
        distributed = service.distribute(policy, target, compression=compression)
        yield iter(_tf_batches(shapes).apply(distributed))


@contextmanager
def tf_server() -> Iterator[str]:
    """A dispatcher and one worker, in a process of their own."""
    command = [sys.executable, "-m", "tests.benchmarks.data_path_peers"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_ROOT
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()  # its shutdown can take 20 s


def _serve_tf() -> None:
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(dispatcher.target, flush=True)
    sys.stdin.read()
    del worker


# --- torch and Grain ---


@contextmanager
def _torch(shapes: Shapes) -> Iterator[Iterator[Any]]:
    import torch

    maker = _Maker(shapes)

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc, type-arg]
        def __iter__(self) -> Iterator[Any]:
            return (tuple(map(torch.from_numpy, maker(number))) for number in itertools.count())

    yield iter(torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=1))


@contextmanager
def _grain(shapes: Shapes) -> Iterator[Iterator[Any]]:
    import absl.flags
    import grain

    absl.flags.FLAGS(["benchmark"])
    data = grain.MapDataset.range(2**30).map(_Maker(shapes)).to_iter_dataset()
    yield iter(data.mp_prefetch(grain.MultiprocessingOptions(num_workers=1)))


# --- the raw limits ---


@contextmanager
def _memcpy(shapes: Shapes) -> Iterator[Iterator[Any]]:
    yield _copies(shapes)


def _copies(shapes: Shapes) -> Iterator[tuple[NDArray[Any], ...]]:
    """Copy and stamp, into memory that is used again."""
    stencils = {key: template(key, largest(shapes, key)) for key in _padded(shapes[0])}
    buffers = [{key: np.zeros_like(stencil) for key, stencil in stencils.items()} for _ in range(_BUFFERS)]
    for number, shape in values_of(shapes):
        made = []
        for key, stencil in stencils.items():
            size = math.prod(shape[key])
            value = buffers[number % _BUFFERS][key][:size]
            np.copyto(value, stencil[:size])
            value.reshape(shape[key])[:, 0] = number
            made.append(value)
        yield tuple(made)


@contextmanager
def _raw_zmq(shapes: Shapes) -> Iterator[Iterator[Any]]:
    import multiprocessing

    import zmq

    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.setsockopt(zmq.RCVHWM, 4)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    process = multiprocessing.get_context("spawn").Process(target=_push, args=(port, shapes), daemon=True)
    process.start()
    try:
        yield _pulled(pull, shapes)
    finally:
        process.terminate()
        process.join()
        context.destroy(linger=0)


def _pulled(pull: Any, shapes: Shapes) -> Iterator[tuple[NDArray[np.uint8], ...]]:
    most = sum(8 * largest(shapes, key) for key in shapes[0])
    buffers = [np.zeros(most, np.uint8) for _ in range(_BUFFERS)]
    for number in itertools.count():
        buffer = buffers[number % _BUFFERS]
        yield (buffer[: pull.recv_into(buffer.data)],)


def _push(port: int, shapes: Shapes) -> None:
    import zmq

    socket = zmq.Context().socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 4)
    socket.connect(f"tcp://127.0.0.1:{port}")
    trackers: list[Any] = []
    for number, values in enumerate(_copies(shapes)):
        if number >= _BUFFERS // 2:
            trackers[number - _BUFFERS // 2].wait()
            trackers[number - _BUFFERS // 2] = None
        whole = max(values, key=lambda value: value.nbytes)  # the other keys are less than a hundredth of it
        trackers.append(socket.send(whole.data, copy=False, track=True))


PEERS = {
    "tfdata_service": lambda shapes: _tfdata(shapes, None),
    "tfdata_service_default": lambda shapes: _tfdata(shapes, "AUTO"),
    "torch": _torch,
    "grain": _grain,
    "memcpy": _memcpy,
    "raw_zmq": _raw_zmq,
}

if __name__ == "__main__":
    _serve_tf()
