"""Two ways to train asynchronously, measured side by side: `python -m tests.benchmarks.parameter_servers [--json]`.

One is TensorFlow's `ClusterCoordinator`, where every batch goes from the chief to a worker; the other is ours, where
each worker has a feed of its own, and only variables and gradients go to servers. Besides, rows of tables of which
workers hold nothing, with tables of up to ten million rows. All processes are on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.quick_import import quick_import
from shared.wire.codec import encode
from shared.wire.message_parts import DoneSet, EpochDone, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


# --- rows on demand ---

TABLE_ROWS, DIM, BATCH_IDS = (10**4, 10**5, 10**6, 10**7), 16, 1000


class Filled:
    """A checkpoint with so many rows, which are made as they are read."""

    def __init__(self, rows: int, dim: int) -> None:
        self._rows, self._dim = rows, dim

    def pieces(self, _name: str, nbytes: int) -> Iterator[list[Any]]:
        """As those of a checkpoint."""
        step = nbytes // (8 + 4 * self._dim)
        for start in range(0, self._rows, step):
            ids = np.arange(start, min(self._rows, start + step), dtype=np.int64)
            yield [ids, np.ones((len(ids), self._dim), np.float32)]


@contextmanager
def trainer_of_table(dim: int, hosts: list[str]) -> Iterator[Any]:
    """A trainer of a model with one served table, its connections, which count bytes, and a step of the model."""
    import keras  # after TensorFlow
    import tensorflow as tf

    from trainer_client.layers import ServedEmbedding
    from trainer_client.training.loop.step import TrainStep
    from trainer_client.training.servers.served_model import ServedModel, SharesSettings
    from trainer_client.training.servers.served_optimizer import CollectedGradients
    from trainer_client.training.servers.server_connections import ServerConnections

    class Counting(ServerConnections):
        nbytes = 0

        def ask(self, questions: Any, heed: Any = None) -> Any:
            replies = super().ask(questions, heed)
            self.nbytes += sum(len(encode(message)) + len(frame) for message, frame in questions.values())
            self.nbytes += sum(len(encode(message)) + len(frame) for message, frame in replies.values())
            return replies

    connections = Counting(hosts, None, 120.0)
    try:
        model = keras.Sequential(
            [keras.Input((1,), dtype="int64"), ServedEmbedding("words", dim), keras.layers.Dense(1)]
        )
        shares = SharesSettings(staleness=2**40, most=0, memory=None)
        optimizer = keras.optimizers.SGD(0.001)
        trainer = ServedModel(model, optimizer, connections, shares)
        kept = CollectedGradients(optimizer, model.trainable_variables, goes_on=False)
        step = TrainStep(model, "mse", kept)
        step.takes_rows = True
        graph = tf.function(step, reduce_retracing=True, autograph=False)

        def train(ids: Any, lease: Lease) -> None:
            trainer.pull()
            graph((tf.constant(ids[:, None]), tf.zeros((len(ids), 1, 1)), tf.ones(len(ids))))
            trainer.tables.raise_failure()
            assert trainer.push(lease, kept.read(), kept.read_rows())

        yield trainer, connections, train
    finally:
        connections.close()


def give(trainer: Any, saved: Any) -> None:
    """Have servers hold the rows of a checkpoint, in place of all they had."""
    trainer.look()
    trainer.withdraw()
    trainer.serve(DoneSet((EpochDone(0, 0, ()),)), 0, saved)
    assert trainer.look()


def rows_on_demand(many: int) -> dict[str, Any]:
    """Steps of a thousand ids each, by how many rows the table has, with so many servers."""
    hosts, found = [f"tcp://{free_host()}" for _ in range(many)], {}
    with ExitStack() as stack:
        for at in range(many):
            start(stack, "server", *(["first"] if at == 0 else []), hosts[at], *(hosts[1:] if at == 0 else []))
        trainer, connections, _ = stack.enter_context(trainer_of_table(DIM, hosts))
        random, numbers = np.random.default_rng(0), iter(range(10**6))
        for rows in TABLE_ROWS:
            give(trainer, Filled(rows, DIM))

            def step(rows: int = rows) -> None:
                ids = np.sort(random.choice(rows, BATCH_IDS, replace=False)).astype(np.int64)
                trainer.tables.rows(trainer.tables.forms[0], ids, training=True)
                gradients = {"words": (ids, np.ones((BATCH_IDS, DIM), np.float32))}
                trainer.push(Lease(0, next(numbers), 1), {}, gradients)

            for _ in range(3):
                step()
            before = connections.nbytes
            timed_step = timed(50, 2 * BATCH_IDS * (8 + 4 * DIM), step)
            trainer.tables.raise_failure()
            # Three more steps warm up.
            found[f"step of {BATCH_IDS} rows of {rows}"] = timed_step | {"bytes": (connections.nbytes - before) // 53}
    return found


def bounded(rows: int, dim: int, limit_mib: int) -> dict[str, float]:
    """Train, save and restore a table with so many MiB for all that is allocated meanwhile; how much that was."""
    from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
    from trainer_client.training.checkpoints.saved_tables import SavedTables

    host = f"tcp://{free_host()}"
    with ExitStack() as stack:
        start(stack, "server", "first", host)
        trainer, _, step = stack.enter_context(trainer_of_table(dim, [host]))
        checkpoints = CheckpointFolder(stack.enter_context(tempfile.TemporaryDirectory()), 1)
        form, random = trainer.tables.forms[0], np.random.default_rng(0)

        def train(number: int) -> None:
            step(random.choice(rows, BATCH_IDS), Lease(0, number, 1))

        def save() -> SavedTables:
            trainer.save(0)
            record = {
                "tables": [[form.name, form.dim, form.rows, form.seed, form.initializer, form.first, form.second]]
            }
            checkpoints.write({}, record, trainer.tables.saved_arrays())
            read = checkpoints.read_last()
            assert read is not None
            return SavedTables(*read)

        give(trainer, Filled(10 * BATCH_IDS, dim))  # so that all code has run once
        train(0)
        give(trainer, save())
        before = own_mib("VmData"), own_mib("RssAnon")
        resource.setrlimit(resource.RLIMIT_DATA, (int((before[0] + limit_mib) * 2**20),) * 2)
        give(trainer, Filled(rows, dim))
        peak = own_mib("RssAnon")
        for number in range(50):
            train(number)
        saved = save()
        peak = max(peak, own_mib("RssAnon"))
        give(trainer, saved)
        peak = max(peak, own_mib("RssAnon"))
        trainer.save(0)
        answer, _ = trainer.tables._piece(0, 0, 0, 0)
        return {
            "table_mib": rows * (8 + 4 * dim) / 2**20, "grown_mib": round(peak - before[1], 1),
            "limit_mib": limit_mib, "rows_restored": answer.rows,
        }  # fmt: skip


def own_mib(what: str) -> float:
    """What the kernel says of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


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
    elif words[:1] == ["bounded"]:
        rows, dim, limit_mib = map(int, words[1:])
        print(json.dumps(bounded(rows, dim, limit_mib)))
    elif words[:1] == ["rows"]:
        print(json.dumps(rows_on_demand(int(words[1]))))
    elif words[:1] == ["server"]:
        is_first = words[1] == "first"
        endpoint, *others = words[1 + is_first :]
        serve(endpoint, others, is_first=is_first)
    else:
        sides = {
            "one server": served(1) | rows_on_demand(1), "two servers": served(2) | rows_on_demand(2),
            "ClusterCoordinator": coordinated(tf),
        }  # fmt: skip
        if options.json:
            print(json.dumps(sides))
            return
        for side, found in sides.items():
            for what, figures in found.items():
                more = f", {figures['bytes']} bytes" if "bytes" in figures else ""
                times = f"{figures['ms']} ms ({figures['cpu_ms']} CPU here)"
                print(f"{side}: {what}: {times}, {figures['mb_per_s']} MB/s{more}")


if __name__ == "__main__":
    main()
