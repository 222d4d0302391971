"""Two ways to train asynchronously, measured side by side: `python -m tests.benchmarks.parameter_servers [--json]`.

One is TensorFlow's `ClusterCoordinator`, where every batch goes from the chief to a worker; the other is ours, where
each worker has a feed of its own, and only variables and gradients go to servers. All processes are on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from socket import socket
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.quick_import import quick_import
from shared.wire.message_parts import DoneSet, EpochDone, Lease

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, COLUMNS = 2500, 1000
BATCHES = {"10 MB": (2500, 1000), "13 KB": (13, 250)}


def free_host() -> str:
    """A host and port that nobody has."""
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def start(stack: ExitStack, *words: str, **environment: str) -> None:
    """Run this module in another process until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, *words], env={**os.environ, **environment})
    stack.callback(process.wait)
    stack.callback(process.kill)


def timed(times: int, nbytes: int, once: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU milliseconds of this process for each, and MB a second."""
    for _ in range(3):
        once()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(times):
        once()
    spent_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return {
        "ms": round(1e3 * spent_s / times, 2), "cpu_ms": round(1e3 * cpu_s / times, 2),
        "mb_per_s": round(nbytes * times / spent_s / 1e6, 1),
    }  # fmt: skip


def coordinated(tf: Any) -> dict[str, Any]:
    """`ClusterCoordinator` with one server and one worker."""
    cluster = {job: [free_host()] for job in ("ps", "worker", "chief")}
    with ExitStack() as stack:
        for job in ("ps", "worker"):
            task = {"cluster": cluster, "task": {"type": job, "index": 0}}
            start(stack, "task", TF_CONFIG=json.dumps(task))
        spec = tf.train.ClusterSpec(cluster)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variable = tf.Variable(tf.zeros((ROWS, COLUMNS)))

        @tf.function
        def step(batch: Any) -> Any:
            return tf.reduce_sum(batch[0, :1])

        @tf.function
        def update() -> Any:
            variable.assign_sub(variable * 0.001)
            return 0.0

        def ask(function: Any, *arguments: Any) -> None:
            coordinator.schedule(function, arguments)
            coordinator.join()

        found = {}
        for name, shape in BATCHES.items():
            batch = np.ones(shape, np.float32)
            found[f"batch of {name} through the chief"] = timed(
                50, batch.nbytes, lambda batch=batch: ask(step, tf.constant(batch))
            )
        found["10 MB of variables pulled and pushed"] = timed(30, 2 * 4 * ROWS * COLUMNS, lambda: ask(update))
        return found


def served(many: int) -> dict[str, Any]:
    """Ours, with so many servers."""
    import keras  # after TensorFlow

    from trainer_client.training.servers.served_model import ServedModel, SharesSettings
    from trainer_client.training.servers.server_connections import ServerConnections

    hosts = [f"tcp://{free_host()}" for _ in range(many)]
    with ExitStack() as stack:
        for at in range(many):
            start(stack, "server", *(["first"] if at == 0 else []), hosts[at], *(hosts[1:] if at == 0 else []))
        connections = ServerConnections(hosts, None, 120.0)
        stack.callback(connections.close)
        model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(COLUMNS, use_bias=False)])
        trainer = ServedModel(
            model, keras.optimizers.SGD(0.001), connections, SharesSettings(staleness=2**40, most=0, memory=None)
        )
        trainer.look()
        trainer.serve(DoneSet((EpochDone(0, 0, ()),)), 0)
        trainer.look()
        numbers = iter(range(10**6))
        dense = np.ones((ROWS, COLUMNS), np.float32)
        rows = (np.arange(0, ROWS, 25), dense[::25])
        return {
            "pull of 10 MB": timed(50, dense.nbytes, trainer.pull),
            "push of 10 MB": timed(50, dense.nbytes, lambda: trainer.push(Lease(0, next(numbers), 1), {0: dense})),
            "push of 100 rows": timed(50, rows[1].nbytes, lambda: trainer.push(Lease(0, next(numbers), 1), {0: rows})),
        }


def serve(endpoint: str, others: list[str], *, is_first: bool) -> None:
    """Be a parameter server."""
    import keras  # here alone

    from trainer_client.training.servers.service import ParameterServer
    from trainer_client.training.servers.share_store import ShareStore

    store = ShareStore(lambda: keras.optimizers.SGD(0.001))
    ParameterServer(endpoint, store, is_first=is_first, others=others).serve()


def main() -> None:
    """Print what was found."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    words = options.words
    with quick_import():
        import tensorflow as tf  # after the environment
    if words[:1] == ["task"]:
        config = json.loads(os.environ["TF_CONFIG"])
        spec, job = tf.train.ClusterSpec(config["cluster"]), config["task"]["type"]
        tf.distribute.Server(spec, job_name=job, task_index=0, protocol="grpc").join()
    elif words[:1] == ["server"]:
        is_first = words[1] == "first"
        endpoint, *others = words[1 + is_first :]
        serve(endpoint, others, is_first=is_first)
    else:
        sides = {"one server": served(1), "two servers": served(2), "ClusterCoordinator": coordinated(tf)}
        if options.json:
            print(json.dumps(sides))
            return
        for side, found in sides.items():
            for what, figures in found.items():
                print(f"{side}: {what}: {figures['ms']} ms ({figures['cpu_ms']} CPU here), {figures['mb_per_s']} MB/s")


if __name__ == "__main__":
    main()
