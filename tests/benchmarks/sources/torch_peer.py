"""A torch DataLoader as speech toolkits' users have it: a data set of samples, one process, batches padded together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.benchmarks.sources.row import measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.benchmarks.sources.row import Pass

__all__ = ["torch_loader"]


class _Items:
    """A data set of as many samples, each an array, as `read` gives."""

    def __init__(self, size: int, read: Callable[[int], Any]) -> None:
        self._size = size
        self._read = read

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> Any:
        import torch  # a peer that may not be there

        return torch.from_numpy(self._read(place))


def _padded(samples: list[Any]) -> Any:
    from torch.nn.utils.rnn import pad_sequence  # a peer that may not be there

    return pad_sequence(samples, batch_first=True)


def _sizes(batches: Iterable[Any]) -> Iterator[int]:
    """How many rows they have; the first ones are not asked for before."""
    for batch in batches:
        yield len(batch)


def torch_loader(size: int, rows: int, read: Callable[[int], Any], *, padded: bool = True) -> Callable[[], Pass]:
    """Each call reads all samples, shuffled, in batches of so many rows, `padded` or stacked.

    ImportError without torch.
    """
    made: list[Any] = []

    def epoch() -> Pass:
        if not made:
            from torch.utils.data import DataLoader  # a peer that may not be there

            how = {
                "shuffle": True,
                "num_workers": 1,
                "persistent_workers": True,
                "collate_fn": _padded if padded else None,
            }
            made.append(DataLoader(_Items(size, read), batch_size=rows, **how))
            return measured(map(len, iter(made[0])))  # so that its process has started
        return measured(_sizes(made[0]))

    return epoch
