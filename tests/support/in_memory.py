"""A stream that lives in memory, for what builds batches: its samples do what a test tells them to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.batches.batch_strings import BatchStrings
from loader_server.planning import PlannedBatch
from loader_server.sources.batch_columns import ragged
from loader_server.stream import Stream
from loader_server.transforms.chain import Chain
from shared.wire import messages as m
from shared.wire.batch_layout import BucketShape, Field, fields_of_batch
from shared.wire.message_parts import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loader_server.sources.batch_columns import Columns

__all__ = ["ColumnSource", "GatheringSource", "MemorySource", "MemoryStream", "Steps", "memory_want"]

TOKENS = Field(key="tokens", dtype="int32", shape=(None,))
RAW = (TOKENS, Field(key="third", dtype="float32", shape=()))

#: Rows of a batch, the last of which has no sample, and its padded length.
ROWS, LENGTH = 5, 6


@dataclass
class MemorySource:
    """Sample n is n tokens of value n + 1, at most five, and n / 3; `on_read` and `on_decode` are done before."""

    samples: int = 16
    on_read: dict[int, Callable[[], object]] = field(default_factory=dict)
    on_decode: dict[int, Callable[[], object]] = field(default_factory=dict)
    #: What it was told will be read soon, and whether it wants to hear of later ones.
    expected: list[int] = field(default_factory=list)
    far_away: bool = False
    fields = RAW
    gathers = reads_ahead = reads_at_once = False

    def expect(self, samples: np.ndarray) -> None:
        self.expected += samples.tolist()

    def looks_ahead(self) -> bool:
        return self.far_away

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        for sample in samples:
            self.on_read.get(sample, bool)()
            yield bytes([sample + 1])

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        self.on_decode.get(sample, bool)()
        return {"tokens": np.full(min(sample, 5), raw[0], np.int32), "third": sample / 3}

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        return None

    def name(self, sample: int) -> str:
        return f"sample-{sample}"

    def close(self) -> None:
        pass


class GatheringSource(MemorySource):
    """The same, and whole batches at once."""

    gathers = True

    def gather(self, samples: np.ndarray, out: dict[str, np.ndarray]) -> None:
        for row, sample in enumerate(samples.tolist()):
            self.on_decode.get(sample, bool)()
            length = min(sample, 5)
            out["tokens"][row, :length] = sample + 1
            out["tokens"][row, length:] = 0
            out["tokens_length"][row] = length
            if "third" in out:
                out["third"][row] = sample / 3


class ColumnSource(MemorySource):
    """The same, all samples of a batch decoded at once."""

    #: How often they were.
    together: int = 0

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns:
        decoded = [self.decode(*sample) for sample in zip(samples, raw, strict=True)]
        self.together += 1
        thirds = np.array([sample["third"] for sample in decoded], np.float32)
        return {"tokens": ragged([sample["tokens"] for sample in decoded], np.dtype(np.int32)), "third": thirds}


class _Plan:
    """Four samples a batch, in order; packed, the first three share a row."""

    def __init__(self, samples: int, *, packed: bool) -> None:
        self.batches = samples // (ROWS - 1)
        self.opened: list[tuple[int, int]] = []
        self._packed = packed

    def epoch(self, epoch: int, group: int) -> _Plan:
        self.opened.append((epoch, group))
        return self

    def batch(self, number: int) -> PlannedBatch:
        first = number * (ROWS - 1)
        samples = np.arange(first, first + ROWS - 1)
        if not self._packed:
            return PlannedBatch(samples=samples, bucket=0, shape=_shape(LENGTH))
        rows, offsets = np.array([0, 0, 0, 2]), np.array([0, 5, 10, 0])
        return PlannedBatch(samples=samples, bucket=0, shape=_shape(3 * 5), rows=rows, offsets=offsets)


def _shape(length: int) -> BucketShape:
    return BucketShape(rows=ROWS, lengths={"tokens": length})


class MemoryStream:
    """What `Builder` has to know of a stream."""

    name = "train"
    seed = 7
    float32 = "float32"
    masks_not_finite = False
    padding: Mapping[str, np.generic] = MappingProxyType({})
    values = Stream.values

    def __init__(
        self, source: MemorySource | None = None, transforms: tuple[str, ...] = (), *, packed: bool = False
    ) -> None:
        self.source = source or MemorySource()
        self.packed = packed
        self.chain = Chain.make(transforms, {}, "in memory", (TOKENS,) if packed else RAW)
        marks = ("tokens_segment", "tokens_position") if packed else ()
        self.fields = (
            *fields_of_batch(self.chain.fields),
            *(Field(key=mark, dtype="int32", shape=(None,)) for mark in marks),
        )
        self.plan = _Plan(self.source.samples, packed=packed)
        self.settings = SimpleNamespace(length="tokens")
        self.strings = BatchStrings()

    def shape(self, planned: BucketShape) -> BucketShape:
        lengths = {field.key: planned.lengths["tokens"] for field in self.fields if field.padded}
        return BucketShape(rows=planned.rows, lengths=lengths)

    def raw_lengths(self, sample: int) -> dict[str, int]:
        return {"tokens": min(sample, 5)}

    def identity(self, sample: int) -> str:
        return f"file-{sample}"


def memory_want(number: int = 0, **other: Any) -> m.Want:
    """A want of batch `number` of it."""
    fields: dict[str, Any] = {
        "job": "made-up", "stream": "train", "epoch": 0, "number": number, "empty": False, "group": 1,
        "plan_digest": "", "attempt": 0, "trainer": 1, "worker": 1, "ticket": Ticket(0, 1), "in_slot": True,
        "urgent": False,
    }  # fmt: skip
    return m.Want(**{**fields, **other})


class Steps:
    """In a deadline's place: notes the steps, and ends nothing."""

    def __init__(self) -> None:
        #: How many steps each batch had.
        self.of_batches: list[int] = []
        self._begun = 0

    def begin(self, now_ns: int) -> None:
        assert now_ns > 0
        self._begun += 1

    def end(self) -> None:
        self.of_batches.append(self._begun)
        self._begun = 0
