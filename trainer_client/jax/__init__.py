"""JAX: the batches of a feed as arrays, over the slots' own memory where JAX computes on the CPU.

    feed = trainer_client.connect("tcp://127.0.0.1:7400", **trainer_client.jax.ranks())
    data = trainer_client.jax.FeedArrays(feed)
    while feed.epoch < 3:
        for batch in data:
            state, loss = train_step(state, batch["audio"], batch["text"], batch["weight"])

Rules: a slot comes back once the steps that use its arrays are through. Arrays of 64 bits, such as `tag`, stay numpy's
unless `jax_enable_x64` is on, because JAX would silently cut them to 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.extras import pip_install
from shared.wire.strings import StringArray
from trainer_client.given_batches import GivenBatches

try:
    import jax
except ImportError as error:
    raise ImportError(f"trainer_client.jax needs JAX ({error}): {pip_install('jax')}") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from trainer_client.batch import Batch
    from trainer_client.feed import Feed

__all__ = ["FeedArrays", "ranks"]

#: Bytes of a number of 64 bits.
_WIDE = 8


class FeedArrays:
    """Whole batches as arrays, from the feed's cursor to the end of its epoch.

    A batch counts as trained on once the next is asked for.

    Args:
        feed: The feed, of one rank.
        sharding: How the rows of all processes' batches are spread as one array. None: each process has arrays of its
            own.

    Raises:
        SettingsError: The feed holds several ranks.

    Example:
        >>> import trainer_client.jax
        >>> for batch in trainer_client.jax.FeedArrays(feed):
        ...     loss = batch["audio"].mean()
        >>> feed.epoch
        1
    """

    def __init__(self, feed: Feed, *, sharding: jax.sharding.Sharding | None = None) -> None:
        self._sharding = sharding
        self._given = GivenBatches(feed, self._array, "FeedArrays")

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._given)

    def _array(self, array: NDArray[Any] | StringArray) -> jax.Array | NDArray[Any] | StringArray:
        """Return the array as one of JAX, or as it is if JAX would cut its 64 bits or it has strings.

        With a sharding, it is this process's part of an array of all processes. Errors of JAX pass through.
        """
        if isinstance(array, StringArray):
            return array
        if array.dtype.itemsize >= _WIDE and not jax.config.jax_enable_x64:
            return array
        if self._sharding is None:
            return jax.device_put(array)
        return jax.make_array_from_process_local_data(self._sharding, array)

    def get_state(self) -> dict[str, Any]:
        """Return the feed's position as plain values: after the batch that was given last. Call it after its step.

        That batch counts as trained on from then on.

        Returns:
            A dict that JSON can hold.

        Raises:
            LostError: No worker says how many batches the epoch has, or, in queue mode, the coordinator did not answer.
            StokerError: The feed's own error, if it failed or was closed.
        """
        return self._given.state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` returned; in queue mode all trainers are taken back.

        Args:
            state: What `get_state` returned, in this process or an earlier one.

        Raises:
            SettingsError: The state is something else, or of another job, stream or plan.
            RefusedError: Other ranks stand at another cursor.
            LostError: The coordinator did not answer.
            StokerError: The feed's own error, if it failed or was closed.
        """
        self._given.restore(state)


def ranks() -> dict[str, int]:
    """Return `rank` and `world` for `connect`: this process among those of `jax.distributed`.

    Returns:
        A dict with both.

    Example:
        >>> import trainer_client.jax
        >>> trainer_client.jax.ranks()
        {'rank': 0, 'world': 1}
    """
    return {"rank": jax.process_index(), "world": jax.process_count()}
