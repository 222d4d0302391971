"""PyTorch: the batches of a feed as tensors over the slots' own memory.

    feed = trainer_client.connect("tcp://127.0.0.1:7400", **trainer_client.torch.ranks())
    data = trainer_client.torch.FeedTensors(feed, device="cuda")
    while feed.epoch < 3:
        for batch in data:
            loss = train_step(batch)

Rules: no byte is copied but on the way to a device. A slot comes back with the last tensor over it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from shared.errors import SettingsError
from shared.extras import pip_install
from shared.wire.strings import StringArray
from trainer_client.given_batches import GivenBatches

try:
    import torch
except ImportError as error:
    raise ImportError(f"trainer_client.torch needs PyTorch ({error}): {pip_install('torch')}") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from trainer_client.batch import Batch
    from trainer_client.feed import Feed

__all__ = ["FeedTensors", "ranks"]


class FeedTensors(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Whole batches as tensors, from the feed's cursor to the end of its epoch.

    Iterate over it, or give it to a `DataLoader` with `batch_size=None`. A batch counts as trained on once the next is
    asked for.

    Args:
        feed: The feed, of one rank.
        device: Where tensors go: they are copied there from pinned memory while the loop goes on. On the CPU they lie
            in the feed's own memory.

    Raises:
        SettingsError: The feed holds several ranks, or another process than its own reads the data.

    Example:
        >>> import trainer_client.torch
        >>> for batch in trainer_client.torch.FeedTensors(feed):
        ...     loss = batch["audio"].mean()
        >>> feed.epoch
        1
    """

    def __init__(self, feed: Feed, *, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self._device = torch.device(device)
        self._given = GivenBatches(feed, self._tensor, "FeedTensors")

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            raise _read_elsewhere(f"a DataLoader with num_workers={worker.num_workers}")
        return iter(self._given)

    def __reduce__(self) -> NoReturn:
        raise _read_elsewhere("one that is sent to another process")

    def _tensor(self, array: NDArray[Any] | StringArray) -> torch.Tensor | list[Any]:
        """Return a tensor over the array's memory on the CPU, or a copy on another device; strings as lists.

        PyTorch's errors pass.
        """
        if isinstance(array, StringArray):
            return array.tolist()
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.pin_memory().to(self._device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the feed's position as plain values: after the batch that was given last. Call it after its step.

        That batch counts as trained on from then on.

        Returns:
            A dict that JSON can hold.

        Raises:
            LostError: No worker says how many batches the epoch has, or, in queue mode, the coordinator did not answer.
            StokerError: The feed's own error, if it failed or was closed.
        """
        return self._given.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state_dict` returned.

        Args:
            state: What `state_dict` returned, in this process or an earlier one.

        Raises:
            SettingsError: The state is something else, or of another job, stream or plan.
            RefusedError: Other ranks stand at another cursor.
            LostError: The coordinator did not answer.
            StokerError: The feed's own error, if it failed or was closed.
        """
        self._given.restore(state)


def _read_elsewhere(got: str) -> SettingsError:
    return SettingsError(
        expected="a dataset that is read by the process that trains", got=got, where="FeedTensors",
        remedy="Leave num_workers out: the job's workers prepare batches ahead.",
    )  # fmt: skip


def ranks() -> dict[str, int]:
    """Return `rank` and `world` for `connect`: the process group's if there is one, else torchrun's, else 0 of 1.

    Returns:
        A dict with both.

    Raises:
        SettingsError: RANK or WORLD_SIZE is not a number, or only one of them is set.

    Example:
        >>> import trainer_client.torch
        >>> trainer_client.torch.ranks()
        {'rank': 0, 'world': 1}
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return {"rank": torch.distributed.get_rank(), "world": torch.distributed.get_world_size()}
    numbers = {"rank": os.environ.get("RANK", ""), "world": os.environ.get("WORLD_SIZE", "")}
    if not any(numbers.values()):
        return {"rank": 0, "world": 1}
    try:
        return {name: int(value) for name, value in numbers.items()}
    except ValueError:
        raise SettingsError(
            expected="numbers in RANK and WORLD_SIZE, as torchrun sets them",
            got=f"RANK={numbers['rank']!r}, WORLD_SIZE={numbers['world']!r}", where="the environment",
            remedy="Start with torchrun, or pass rank and world to connect.",
        ) from None  # fmt: skip
