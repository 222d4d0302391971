"""What users call: `connect(...)` gives a `Feed`; iterating it gives numpy minibatches, `dataset()` gives them to
TensorFlow.

Rules: the cursor moves by what was trained on, never by what was read: an iterator opens at the cursor, and only
`trained(n)`, or draining an iterator to its end without having called it, moves it. This module must not know
sockets, and imports TensorFlow only when asked for a dataset.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Self

from shared.errors import SettingsError
from shared.keys import ClientKeys
from shared.memory import boot_id
from shared.rounds import rounds, rounds_left
from shared.wire.parts import Cursor
from trainer_client.batch import Batch, owned
from trainer_client.core.connections import MOST_REMOTE
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Position, Ranks
from trainer_client.epoch_account import Accounts, ReadTimes
from trainer_client.network.outbox import Item, Reader
from trainer_client.network.receiver import Receiver, ReceiverSettings, trainer_name
from trainer_client.tf import ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import tensorflow as tf
    from numpy.typing import NDArray

    from shared.metrics.server import MetricsServer
    from shared.wire.layout import BucketShape, Field, Tensor
    from trainer_client.core.stream_spec import StreamSpec

__all__ = ["Feed", "Reading", "connect"]

#: How long a consumer that is short of slots waits for one before it gets a copy.
_PATIENCE_S = 0.02
_LOOK_AGAIN_S = 0.0005


def connect(  # noqa: PLR0913 - the one door for users: each is a keyword with a default
    endpoint: str,
    *,
    stream: str = "train",
    job: str = "",
    rank: int = 0,
    replicas: int = 1,
    world: int = 0,
    strategy: tf.distribute.Strategy | None = None,
    prefetch: int | None = None,
    prefetch_bytes: int = 2**30,
    shared_memory: bool = True,
    verify: bool = False,
    workers: int = 16,
    keys: str = "",
    connect_timeout_s: float = 60.0,
    lost_timeout_s: float = 60.0,
    metrics_port: int | None = None,
    metrics_targets: str | Path | None = None,
) -> Feed:
    """Attach to a stream of a running job.

    `rank` of `world` is this trainer's place in a data-parallel job, and `replicas` how many consecutive ranks it
    occupies; a `strategy` fills in all three. `prefetch` batches a replica are asked for ahead (8; up to 32 if they are
    small), within `prefetch_bytes` of buffers. The feed talks to all workers of its own host, and to so many `workers`
    of other hosts. With a `metrics_port` (0: any free one) it serves its metrics to Prometheus on loopback, and says
    where in a file in the folder `metrics_targets`.
    """
    if strategy is not None:
        from trainer_client.tf.dataset import ranks_of  # noqa: PLC0415 - TensorFlow only when it is used

        rank, replicas, world = ranks_of(strategy)
    ranks = Ranks(rank=rank, replicas=replicas, world=world or replicas)
    _refuse_nonsense(ranks, prefetch, workers)
    return Feed(
        ReceiverSettings(
            core=CoreSettings(
                job=job,
                stream=stream,
                ranks=ranks,
                incarnation=secrets.randbits(63),
                name=trainer_name(),
                boot_id=boot_id(),
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                shared_memory=shared_memory,
                verify=verify,
                workers=workers,
                lost_timeout_s=lost_timeout_s,
            ),
            endpoint=endpoint,
            coordinator_keys=ClientKeys.read(keys, "trainer", to="coordinator") if keys else None,
            worker_keys=ClientKeys.read(keys, "trainer", to="worker") if keys else None,
            connect_timeout_s=connect_timeout_s,
        ),
        MetricsSettings(port=metrics_port, targets=metrics_targets),
    )


#: More batches ahead than this are memory and nothing else.
_MOST_PREFETCH = 1024


def _refuse_nonsense(ranks: Ranks, prefetch: int | None, workers: int) -> None:
    if not 0 <= ranks.rank <= ranks.world - ranks.replicas or ranks.replicas < 1:
        got = f"rank {ranks.rank}, replicas {ranks.replicas}, world {ranks.world}"
        raise _nonsense("rank >= 0 and rank + replicas <= world", got, "Ranks count from 0; world counts all ranks.")
    if prefetch is not None and not 1 <= prefetch <= _MOST_PREFETCH:
        raise _nonsense(f"prefetch from 1 to {_MOST_PREFETCH}", str(prefetch), "Leave it out: 8 is usual.")
    if not 1 <= workers <= MOST_REMOTE:
        raise _nonsense(f"workers from 1 to {MOST_REMOTE}", str(workers), "Leave it out: 16 is usual.")


def _nonsense(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="connect", remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where metrics are served (None: nowhere), and the folder to say so in."""

    port: int | None = None
    targets: str | Path | None = None


class Feed:
    """A stream's batches for one trainer, and the cursor of what it has trained on."""

    def __init__(self, settings: ReceiverSettings, metrics: MetricsSettings = MetricsSettings()) -> None:
        self._receiver = Receiver(settings)
        self._ranks = settings.core.ranks
        #: Called in the consumer's thread when slots run short, before copies are handed out: a framework may let go.
        self.on_short_of_slots: Callable[[], None] | None = None
        self.copied = 0
        self._told_of_copies = False
        self._stated = False
        #: A drained iterator counted its epoch, and nothing was opened since: `trained` has nothing to add.
        self._all_counted = False
        self._exposition: MetricsServer | None = None
        try:
            answer = self._receiver.attach(None)
            #: What was read and waited for.
            self.accounts = Accounts(self._spec.fields)
            self._serve_metrics(metrics)
        except BaseException:
            self.close()
            raise
        self._next_group = answer.next_group
        self._at = Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group)

    def _serve_metrics(self, settings: MetricsSettings) -> None:
        if settings.port is not None:
            from trainer_client.metrics import serve  # noqa: PLC0415 - prometheus_client only when it is used

            self._exposition = serve(self, self._receiver, port=settings.port, targets=settings.targets)

    # --- what the stream is ---

    @property
    def _spec(self) -> StreamSpec:
        return self._receiver.spec

    @property
    def fields(self) -> tuple[Field, ...]:
        """Key, dtype and shape of one row, for each array of a batch."""
        return self._spec.fields

    @property
    def shapes(self) -> tuple[BucketShape, ...]:
        """The padded shapes that batches come in."""
        return self._spec.shapes

    @property
    def replicas(self) -> int:
        """How many batches this trainer gets a round, one for each of its ranks."""
        return self._ranks.replicas

    @property
    def at_a_time(self) -> int:
        """How many batches a framework had better take over at once, where handing over costs more than copying."""
        return self._spec.at_a_time

    @property
    def evaluation(self) -> bool:
        """Whether each opening gives the same epoch."""
        return self._spec.evaluation

    @property
    def epoch(self) -> int:
        """The epoch of the cursor."""
        return self._at.epoch

    @property
    def cursor(self) -> int:
        """The first batch number of the epoch that was not yet trained on."""
        return self._at.number

    @property
    def waited_s(self) -> float:
        """Seconds that consumers have waited in `next`."""
        return self.accounts.counts.wait_s

    @property
    def error(self) -> BaseException | None:
        """What stopped the feed, kept for those whose framework swallowed it."""
        return self._receiver.outbox.error

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        with self.open() as reading:
            yield from reading
        self.drained(reading)

    def open(self) -> Reading:
        """Read from the cursor to the end of its epoch; moves nothing."""
        self._all_counted = False
        self._receiver.outbox.forget_interrupt()
        if not self._stated and self._ranks.world > self._ranks.replicas and not self.evaluation:
            self._reattach(self._at)  # other ranks are there: all must stand at one place
        return Reading(self, self._receiver, self._at)

    def interrupt(self, error: BaseException) -> None:
        """Whoever waits for a batch, or comes to wait, gets this error."""
        self._receiver.outbox.interrupt(error)

    def nudge(self) -> None:
        """Whoever waits for a batch looks up, and waits on."""
        self._receiver.outbox.nudge()

    # --- the cursor ---

    def trained(self, rounds: int = 1) -> None:
        """So many more rounds (steps of the whole world) were trained on: the cursor moves behind them."""
        if self.evaluation or self._all_counted:
            return
        for _ in range(rounds):
            self._step()

    def _step(self) -> None:
        batches = self._batches()
        at = self._at
        one = next(rounds(at.number, batches, at.group, self._ranks.world))
        self.accounts.trained(at.epoch, at.number)
        self._move(Position(at.epoch, one.stop, at.group), batches)
        if one.stop >= batches:
            self._tell_of(at.epoch, batches)

    def _move(self, to: Position, batches: int) -> None:
        self._at = to if to.number < batches else Position(to.epoch + 1, 0, self._next_group)
        self._receiver.standing.trained_to = (self._at.epoch, self._at.number)

    def drained(self, reading: Reading) -> None:
        """An iterator came to its end: if nobody counted its rounds, all of them were trained on."""
        start = reading.start
        if self._at != start:
            return
        self.accounts.trained(start.epoch, start.number, reading.rounds)
        self._tell_of(start.epoch, self._receiver.batches(start.epoch, start.group))
        if not self.evaluation:
            self._all_counted = True
            self._move(Position(start.epoch + 1, 0, self._next_group), 1)

    def _tell_of(self, epoch: int, batches: int) -> None:
        """An epoch is over: a line for people."""
        account = self.accounts.close(epoch)
        if account is not None:
            line = account.line(now_s=time.perf_counter(), batches=batches)
            self._receiver.log.info("epoch done", epoch=epoch, **line)

    def waited(self, wait_s: float) -> None:
        """The training loop waited so long for the data of a step: what counts, where a reader runs ahead of it."""
        self.accounts.stepped(self._at.epoch, wait_s)
        self._receiver.standing.waited_s += wait_s

    def rounds_left(self) -> int:
        """Rounds from the cursor to the end of its epoch."""
        return rounds_left(self._at.number, self._batches(), self._at.group, self._ranks.world)

    def most_rounds(self) -> int:
        """No epoch has more rounds than this."""
        group = max(self._at.group, self._next_group)
        return rounds_left(0, -(-self._spec.most_batches // group) * group, group, self._ranks.world)

    def _batches(self) -> int:
        return self._receiver.batches(self._at.epoch, self._at.group)

    def tag(self, number: int) -> str:
        """What the source calls the sample with this number, as it stands in a batch's `tag`."""
        return self._receiver.name(number)

    def state(self) -> dict[str, Any]:
        """The cursor, as plain values for a checkpoint of your own."""
        at = self._at
        return {
            "job": self._spec.job,
            "stream": self._spec.stream,
            "plan_digest": self._spec.plan_digest,
            "epoch": at.epoch,
            "number": at.number,
            "group": at.group,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a cursor that `state` gave; refused if it is of another plan, or if other ranks stand elsewhere."""
        mine = self.state()
        for name in ("job", "stream", "plan_digest"):
            if state.get(name) != mine[name]:
                raise SettingsError(
                    expected=f"a cursor of {name} {mine[name]}",
                    got=str(state.get(name)),
                    where="restore",
                    remedy="Job file or data changed since the checkpoint: restore them, or start without it.",
                )
        self._reattach(Position(int(state["epoch"]), int(state["number"]), int(state["group"])))

    def rewind(self) -> None:
        """Go to the very beginning: a model without a checkpoint has trained on nothing."""
        if (self._at.epoch, self._at.number) != (0, 0):
            self._reattach(Position(0, 0, self._at.group))

    def _reattach(self, at: Position) -> None:
        self._stated = True
        self.accounts.forget()
        answer = self._receiver.attach(Cursor(at.epoch, at.number, at.group, self._spec.plan_digest))
        self._next_group = answer.next_group
        self._move(Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group), answer.batches)

    # --- TensorFlow ---

    def dataset(self, **form: Any) -> tf.data.Dataset:  # noqa: ANN401 - see tf.dataset.make
        """A `tf.data.Dataset`: `inputs=`, `targets=`, `weights=` name keys for `fit`, or `map=` is a function."""
        from trainer_client.tf import dataset  # noqa: PLC0415 - TensorFlow only when it is used

        return dataset.make(self, **form)

    def distributed(self, strategy: tf.distribute.Strategy, **form: Any) -> Any:  # noqa: ANN401 - as above
        """The per-replica dataset of a strategy; the feed was connected with it."""
        from trainer_client.tf import dataset  # noqa: PLC0415 - TensorFlow only when it is used

        return dataset.distributed(self, strategy, **form)

    def warm_up(self, step: Callable[[Any], Any], **form: Any) -> None:  # noqa: ANN401 - as above
        """Run a step through each of the shapes once, largest first, with masked rows only."""
        from trainer_client.tf import dataset  # noqa: PLC0415 - TensorFlow only when it is used

        dataset.warm_up(self, step, **form)

    # --- the end ---

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still looked at stay whole."""
        ctrl_c.forget(self)
        exposition, self._exposition = self._exposition, None
        if exposition is not None:
            exposition.close(timeout_s)
        self._receiver.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- handing out ---

    def _batch(self, item: Item) -> Batch:
        receiver, header = self._receiver, item.header
        layout = self._spec.layout(header.shape)
        assert layout is not None
        data = receiver.memory.slot(item.slot)[: layout.nbytes]
        # The reserve serves one head after the other: a consumer that keeps batches must never sit on it.
        copied = item.slot == receiver.line.slots.reserve or self._is_short_of_slots()
        data = data.copy() if copied else owned(data, item)
        return Batch(layout.arrays(data), data, header)

    def _stack(self, items: Sequence[Item], keys: Collection[str]) -> dict[str, NDArray[np.generic]]:
        layout = self._spec.layout(items[0].header.shape)
        assert layout is not None
        payloads = [self._receiver.memory.slot(item.slot) for item in items]
        tensors = [tensor for tensor in layout.tensors if tensor.key in keys or tensor.key in self.accounts.keys]
        return {tensor.key: _stack_of(tensor, payloads) for tensor in tensors}

    def _is_short_of_slots(self) -> bool:
        """Whether the consumer holds so many slots that this batch has to be copied out."""
        outbox, most = self._receiver.outbox, max(1, self._receiver.line.slots.slots - 2)
        if outbox.held() <= most:  # this one counts
            return False
        if self.on_short_of_slots is not None:
            self.on_short_of_slots()
            until_s = time.monotonic() + _PATIENCE_S
            while outbox.held() > most and time.monotonic() < until_s:
                time.sleep(_LOOK_AGAIN_S)
            if outbox.held() <= most:
                return False
        self.copied += 1
        if not self._told_of_copies:
            self._told_of_copies = True
            self._receiver.log.warning("batches are copied out, because the consumer keeps many", kept=most)
        return True


def _stack_of(tensor: Tensor, payloads: Sequence[NDArray[np.uint8]]) -> NDArray[np.generic]:
    raw = np.empty((len(payloads), tensor.nbytes), np.uint8)
    for place, payload in zip(raw, payloads, strict=True):
        place[:] = tensor.lies_in(payload)
    return raw.view(tensor.dtype).reshape(len(payloads), *tensor.shape)


class Reading:
    """One pass from where it was opened to the end of that epoch."""

    def __init__(self, feed: Feed, receiver: Receiver, start: Position) -> None:
        self.start = start
        self._feed = feed
        self._receiver = receiver
        self._reader = Reader(start)

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Batch:
        began_s = time.perf_counter()
        item = self._take()
        taken_s = time.perf_counter()
        batch = self._feed._batch(item)  # noqa: SLF001 - a reading is a part of its feed
        self._account([item], batch, began_s, taken_s)
        return batch

    def stacked(self, keys: Collection[str], most: int) -> dict[str, NDArray[np.generic]]:
        """The next batches, as far as they are there and of one shape, in arrays with one more axis before the others.

        A framework that takes so long for each array that it is handed is better off with few; their slots are free
        again at once.
        """
        began_s = time.perf_counter()
        first = self._take()
        taken_s = time.perf_counter()
        items = [first, *self._receiver.outbox.take_alike(self._reader, first, most - 1)]
        arrays = self._feed._stack(items, keys)  # noqa: SLF001 - as below
        self._account(items, arrays, began_s, taken_s)
        return arrays

    def _take(self) -> Item:
        item = self._receiver.outbox.take(self._reader)
        if item is None:
            raise StopIteration
        return item

    def _account(self, items: Sequence[Item], arrays: Mapping[str, Any], began_s: float, taken_s: float) -> None:
        conversion_s = time.perf_counter() - taken_s
        times = ReadTimes(at_s=taken_s, wait_s=taken_s - began_s, conversion_s=conversion_s)
        accounts, standing = self._feed.accounts, self._receiver.standing
        accounts.read([item.header for item in items], arrays, times)
        if accounts.counts.step_wait_s is None:  # where a loop tells what its steps waited, that counts
            standing.waited_s = accounts.counts.wait_s

    @property
    def rounds(self) -> int:
        """Rounds taken so far."""
        return self._reader.taken // self._feed.replicas

    def close(self) -> None:
        """End early; moves nothing."""
        self._receiver.outbox.leave(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
