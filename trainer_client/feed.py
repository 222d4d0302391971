"""Public face of a feed: iterating it gives numpy minibatches, `dataset()` gives them to TensorFlow.

Rules: the cursor moves by what was trained on, never by what was read. An iterator starts at the cursor; `trained(n)`
moves it, and so does reading an iterator to its end if `trained` was not called meanwhile. The room `session` holds
what is behind it. It imports TensorFlow only when asked for a dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from typing_extensions import Self

from trainer_client.session.call_checks import only_here, refused, seconds, whole
from trainer_client.session.shared_results import refuse_unsendable_results
from trainer_client.tf.element_structure import ElementStructure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    import tensorflow as tf

    from shared.wire.batch_layout import BucketShape
    from trainer_client.batch import Batch
    from trainer_client.session.batch_iterator import Reading
    from trainer_client.session.feed_session import FeedSession
    from trainer_client.tf.element_structure import Keys

__all__ = ["Feed"]


class Feed:
    """A stream's batches for one trainer, and the cursor of what it has trained on; `connect` makes one.

    Reading moves nothing: the cursor moves by what is reported as trained on. A feed works in `with`, belongs to the
    process that connected it, and closes itself once neither it nor anything made of it is referenced.

    Iterating it reads from the cursor to the end of its epoch. If the loop reads to the end and nobody called
    `trained` meanwhile, the epoch counts as trained on.

    Example:
        >>> for batch in feed:
        ...     pass
        >>> feed.epoch, feed.number
        (1, 0)
    """

    def __init__(self, session: FeedSession) -> None:
        self._session = session

    @property
    def shapes(self) -> tuple[BucketShape, ...]:
        """The padded shapes that batches come in, each with `rows` and `lengths`, the padded length of each key.

        Example:
            >>> shape = feed.shapes[0]
            >>> shape.rows > 0, sorted(shape.lengths)
            (True, ['audio', 'text'])
        """
        return self._session.spec.array_shapes

    def tag(self, number: int) -> str:
        """Return the source's name for a sample, such as the path of its recording.

        Args:
            number: The sample's number, as it stands in a batch's `tag`.

        Returns:
            The name by which the source knows the sample.

        Raises:
            SettingsError: The stream has no sample with this number.
            StokerError: No worker answered in time (LostError), or the feed failed or was closed (its own error).

        Example:
            >>> feed.tag(0)
            'clips/00000.wav'
        """
        return self._session.receiver.ask_names([whole(number, "number", "tag")])[0]

    @property
    def rank(self) -> int:
        """The first rank that this trainer occupies; rank 0 is the chief, which saves.

        Example:
            >>> feed.rank
            0
        """
        return self._session.ranks.rank

    @property
    def world(self) -> int:
        """How many ranks there are in all.

        Example:
            >>> feed.world
            1
        """
        return self._session.ranks.world

    def __iter__(self) -> Iterator[Batch]:
        with self._session.open() as batches:
            for batch in batches:
                yield batch
                self._session.cursor.settle_read()
        self._session.cursor.count_to_end(batches.start, batches.rounds)

    def open(self) -> Reading:
        """Start reading at the cursor, and return the reading; the cursor stays where it is.

        Returns:
            An iterator over the batches to the end of the epoch.

        Raises:
            SettingsError: All epochs that `connect(epochs=)` named are over.
            RefusedError: The other ranks stand at another cursor.
            StokerError: The coordinator did not answer (LostError), or the feed failed or was closed (its own error).

        Example:
            >>> with feed.open() as reading:
            ...     first = next(reading)
            ...     feed.trained()
            >>> first.number, feed.number
            (0, 1)
        """
        return self._session.open()

    def interrupt(self, error: BaseException) -> None:
        """Raise an error in all readers, present and later, unless one stopped them before; any thread may call it.

        Args:
            error: The exception to raise there.

        Raises:
            SettingsError: `error` is no exception.

        Example:
            >>> reading = feed.open()
            >>> feed.interrupt(TimeoutError("no more time"))
            >>> next(reading)
            Traceback (most recent call last):
            TimeoutError: no more time
        """
        if not isinstance(error, BaseException):
            raise refused("an exception", error, "feed.interrupt")
        self._session.interrupt(error)

    @property
    def epoch(self) -> int:
        """The cursor's epoch: how many epochs were trained on to their end.

        Example:
            >>> feed.epoch
            0
        """
        return self._session.cursor.at.epoch

    @property
    def number(self) -> int:
        """The cursor's batch number: the first one of the epoch that was not yet trained on.

        Example:
            >>> feed.number
            0
        """
        return self._session.cursor.at.number

    def rounds_left(self) -> int:
        """Return how many rounds are left from the cursor to the end of its epoch.

        Returns:
            The number of steps of the whole world that the epoch still has.

        Raises:
            SettingsError: The stream is in queue mode, where it depends on the speed of the other trainers.
            StokerError: No worker answered (LostError), or the feed failed or was closed (its own error).

        Example:
            >>> left = feed.rounds_left()
            >>> with feed.open() as reading:
            ...     batch = next(reading)
            ...     feed.trained()
            >>> left - feed.rounds_left()
            1
        """
        return self._session.cursor.rounds_left()

    def trained(self, rounds: int = 1) -> None:
        """Report rounds as trained on, which moves the cursor past them.

        In an evaluation stream in lockstep this does nothing, nor once a reading to the end has counted the epoch.

        Args:
            rounds: How many more rounds; a round is one step of the whole world.

        Raises:
            SettingsError: More rounds than were read and not yet reported, no number from 0 on, or a forked process.
            StokerError: No worker answered, in lockstep (LostError), or the feed failed or was closed (its own error).

        Example:
            >>> with feed.open() as reading:
            ...     for batch in reading:
            ...         feed.trained()
            >>> feed.epoch, feed.number
            (1, 0)
        """
        rounds = whole(rounds, "rounds", "feed.trained")
        self._session.cursor.refuse_unread(rounds)
        self._session.cursor.count(rounds)

    def waited(self, wait_s: float) -> None:
        """Report how long the training loop waited for a step's data, for metrics and each epoch's log line.

        Args:
            wait_s: The seconds between the end of a step and the data of the next.

        Raises:
            SettingsError: `wait_s` is no number of seconds from 0 on.

        Example:
            >>> import time
            >>> began_s = time.perf_counter()
            >>> batch = next(feed.open())
            >>> feed.waited(time.perf_counter() - began_s)
        """
        self._session.count_step_wait(seconds(wait_s, "wait_s", "feed.waited", may_be_zero=True))

    def computed(self) -> None:
        """Report that this trainer's part of a step is done, before it waits for others: `status` names slow ranks.

        Example:
            >>> for batch in feed:
            ...     feed.computed()
        """
        self._session.receiver.standing.end_computation()

    def state(self) -> dict[str, Any]:
        """Return the cursor as plain values, for a checkpoint of your own.

        Returns:
            A dict that JSON can hold: job, stream, plan digest and position, or in queue mode what is done.

        Raises:
            StokerError: In queue mode: no answer came (LostError), or the feed failed or was closed (its own error).

        Example:
            >>> state = feed.state()
            >>> state["stream"], state["epoch"], state["number"]
            ('train', 0, 0)
        """
        return self._session.cursor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a cursor that `state` returned; in queue mode all trainers of the stream are taken there.

        Args:
            state: What `state` returned, in this run of the job or an earlier one.

        Raises:
            SettingsError: `state` is something else, or of another job, stream or plan.
            RefusedError: Other ranks stand at another cursor.
            StokerError: The coordinator did not answer (LostError), or the feed failed or was closed (its own error).

        Example:
            >>> saved = feed.state()
            >>> for batch in feed:
            ...     pass
            >>> feed.restore(saved)
            >>> feed.epoch
            0
        """
        self._session.cursor.restore(state)

    def finish(self, work: Callable[[], object]) -> bool:
        """Do something in only one of the trainers, once all epochs are over; for queue mode.

        Waits until all batches are settled. If that trainer dies, or `work` raises (here as well), another one does it.

        Args:
            work: A function without arguments, such as one that exports the model.

        Returns:
            True in the trainer that did it, False in the others; in all of them once it is done.

        Raises:
            SettingsError: `work` is no function, or the feed is not one in queue mode that trains for given `epochs`.
            StokerError: The coordinator did not answer (LostError), the job ended (EndedError), or the feed failed.

        Example:
            >>> with trainer_client.connect(endpoint, stream="leased", epochs=1) as leased:
            ...     for batch in leased:
            ...         pass
            ...     leased.finish(lambda: print("exported"))
            exported
            True
        """
        if not callable(work):
            raise refused("a function without arguments", work, "feed.finish")
        return self._session.cursor.finish(work)

    def aggregate(
        self, values: Mapping[str, float], *, rows: int, epoch: int | None = None, step: int = 0
    ) -> dict[str, float]:
        """Return means over all ranks, the same in each of them; waits until all ranks have reported.

        In queue mode the means are over the reports so far. `loader-server status` shows the latest ones.

        Args:
            values: This trainer's means, by name.
            rows: How many rows they are over, by which they are weighted.
            epoch: The epoch for which all ranks report. None: the cursor's.
            step: The step for which all ranks report.

        Returns:
            The weighted means by name; NaN for one that is not finite.

        Raises:
            SettingsError: A value is no number, a name is too long, there are too many, or a count makes no sense.
            StokerError: Coordinator or rank lost (LostError), the job ended (EndedError), or the feed's own error.

        Example:
            >>> feed.aggregate({"loss": 0.5}, rows=32)
            {'loss': 0.5}
        """
        refuse_unsendable_results(values)
        at = self.epoch if epoch is None else whole(epoch, "epoch", "aggregate", most=2**31)
        rows, step = whole(rows, "rows", "aggregate"), whole(step, "step", "aggregate")
        shared = self._session.results.share(values, rows=rows, epoch=at, step=step, wait=True)
        assert shared is not None
        return shared

    def dataset(
        self,
        *,
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as `tf.data` calls it
    ) -> tf.data.Dataset:
        """Return the batches as a `tf.data.Dataset`, for `fit` or a loop of your own.

        Each iteration reads from the cursor to the end of its epoch. Each of `inputs`, `targets` and `weights` is a
        key, or a tuple or dict of keys; without any, an element is a dict of all keys. A feed of several ranks warns.

        Args:
            inputs: The keys that the model is called with.
            targets: The keys that the loss compares with.
            weights: The key of the rows' weights, as a rule `"weight"`: masked rows have 0 there.
            map: A function that makes an element of the dict of all keys, instead of the other three.

        Returns:
            The data set.

        Raises:
            SettingsError: A key is not there, `map` comes with others, targets come without `inputs`, or the stream is
                in queue mode and its batches are made whole. Errors of `map` pass through.

        Example:
            >>> data = feed.dataset(inputs=("audio", "audio_length"), targets="text", weights="weight")
            >>> (audio, length), text, weight = next(iter(data))
            >>> audio.dtype.name, text.shape[0] == weight.shape[0]
            ('float32', True)
        """
        from trainer_client.tf import dataset

        return dataset.make(self._session, ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map))

    def pipeline(
        self,
        function: Callable[[Any], tf.data.Dataset] | Literal[True] = True,  # noqa: FBT002 - as a job says it
        *,
        device: str | None = None,
    ) -> tf.data.Dataset:
        """Return what a `dataset_pipeline(context)` makes here of the elements that workers made.

        For a stream with `source = "pipeline"`.

        Args:
            function: The function that the job file names. True: the default pipeline.
            device: The device on which it puts elements. None: the first accelerator, or the CPU if there is none.

        Returns:
            The data set.

        Raises:
            SettingsError: The stream is no pipeline or in queue mode, or `function` is no function, does not call the
                marker exactly once, or returns no data set. Its own errors pass through.

        Example:
            >>> with trainer_client.connect(pipelines, stream="train") as feed:
            ...     data = feed.pipeline(my_pipeline.dataset_pipeline)
            ...     print(sorted(next(iter(data))))
            ['x']
        """
        from trainer_client.tf.pipelines import pipeline

        return pipeline.make(self._session, function, device or "")

    def distributed(
        self,
        strategy: tf.distribute.Strategy,
        *,
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as above
    ) -> tf.distribute.DistributedDataset:
        """Return the data set that gives each replica of a strategy batches of its own.

        Args:
            strategy: The strategy that the feed was connected with.
            inputs: As for `dataset`.
            targets: As for `dataset`.
            weights: As for `dataset`.
            map: As for `dataset`.

        Returns:
            The distributed data set, which `fit` takes as well.

        Raises:
            SettingsError: The feed has other ranks than the strategy, a key is not there, `map` comes with others, or
                targets come without `inputs`; or queue mode with batches made whole. Errors of `map` pass through.

        Example:
            >>> import tensorflow as tf
            >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
            >>> with trainer_client.connect(endpoint, stream="train", strategy=strategy) as feed:
            ...     data = feed.distributed(strategy, inputs="audio", targets="text", weights="weight")
            ...     audio, text, weight = next(iter(data))
        """
        from trainer_client.tf import dataset

        structure = ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map)
        return dataset.distributed(self._session, strategy, structure)

    def warm_up(
        self,
        step: Callable[[Any], Any],
        *,
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as above
    ) -> None:
        """Run a step once on each of the shapes, largest first, with masked rows only.

        Shapes are compiled before training starts. Errors of `map` and `step`, as of a shape too large, pass through.

        Args:
            step: The function to call, with an element as `dataset` gives them.
            inputs: As for `dataset`.
            targets: As for `dataset`.
            weights: As for `dataset`.
            map: As for `dataset`.

        Raises:
            SettingsError: A key is not there, `map` comes with others, or targets come without `inputs`.
            StokerError: The feed's own error, if it failed or was closed.

        Example:
            >>> tried = []
            >>> feed.warm_up(lambda element: tried.append(element[0].shape[0]), inputs="audio", targets="text")
            >>> len(tried) == len(feed.shapes)
            True
        """
        from trainer_client.tf import dataset

        structure = ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map)
        dataset.warm_up(self._session, step, structure)

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still referenced stay valid.

        Args:
            timeout_s: How long to wait for the receive thread, which tells the coordinator and the workers.

        Raises:
            SettingsError: `timeout_s` is no number of seconds from 0 on.

        Example:
            >>> feed.close()
            >>> next(feed.open())
            Traceback (most recent call last):
            trainer_client.ClosedError: ...
        """
        self._session.close(seconds(timeout_s, "timeout_s", "feed.close", may_be_zero=True))

    def __reduce__(self) -> NoReturn:
        """Raise SettingsError: a feed cannot be pickled."""
        raise only_here("a feed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
