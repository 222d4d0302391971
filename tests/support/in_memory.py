"""A stream that lives in memory, for what builds batches: its samples do what a test tells them to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.planning import PlannedBatch
from loader_server.transforms.chain import Chain
from shared import messages as m
from shared.layout import BucketShape, Field, fields_of_batch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GatheringSource", "MemorySource", "MemoryStream", "Steps", "memory_want"]

RAW = (Field(key="tokens", dtype="int32", shape=(None,)),)

#: Rows of a batch, the last of which has no sample, and its padded length.
ROWS, LENGTH = 5, 6


@dataclass
class MemorySource:
    """Sample n is n tokens of value n + 1, at most five; `on_read` and `on_decode` happen before, by sample."""

    samples: int = 16
    on_read: dict[int, Callable[[], object]] = field(default_factory=dict)
    on_decode: dict[int, Callable[[], object]] = field(default_factory=dict)
    fields = RAW

    def read(self, sample: int) -> bytes:
        self.on_read.get(sample, bool)()
        return bytes([sample + 1])

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        self.on_decode.get(sample, bool)()
        return {"tokens": np.full(min(sample, 5), raw[0], np.int32)}

    def name(self, sample: int) -> str:
        return f"sample-{sample}"

    def close(self) -> None:
        pass


class GatheringSource(MemorySource):
    """The same, and whole batches at once."""

    def gather(self, samples: np.ndarray, out: dict[str, np.ndarray]) -> None:
        for row, sample in enumerate(samples.tolist()):
            self.on_decode.get(sample, bool)()
            length = min(sample, 5)
            out["tokens"][row, :length] = sample + 1
            out["tokens"][row, length:] = 0
            out["tokens_length"][row] = length


class _Plan:
    """Four samples a batch, in order."""

    def __init__(self, samples: int) -> None:
        self.batches = samples // (ROWS - 1)

    def epoch(self, _epoch: int, _group: int) -> _Plan:
        return self

    def batch(self, number: int) -> PlannedBatch:
        first = number * (ROWS - 1)
        shape = BucketShape(rows=ROWS, lengths={"tokens": LENGTH})
        return PlannedBatch(samples=np.arange(first, first + ROWS - 1), bucket=0, shape=shape)


class MemoryStream:
    """What `Builder` has to know of a stream."""

    name = "train"
    seed = 7
    float32 = "float32"
    packed = False

    def __init__(self, source: MemorySource | None = None, transforms: tuple[str, ...] = ()) -> None:
        self.source = source or MemorySource()
        self.chain = Chain.make(transforms, {}, "in memory", RAW)
        self.fields = fields_of_batch(self.chain.fields)
        self.plan = _Plan(self.source.samples)
        self.settings = SimpleNamespace(length="tokens")

    def shape(self, planned: BucketShape) -> BucketShape:
        return planned

    def identity(self, sample: int) -> str:
        return f"file-{sample}"


def memory_want(number: int = 0, **other: Any) -> m.Want:
    """A want of batch `number` of it."""
    said: dict[str, Any] = {
        "job": "made-up", "stream": "train", "epoch": 0, "number": number, "empty": False, "group": 1,
        "plan_digest": "", "attempt": 0, "trainer": 1, "worker": 1, "ticket": m.Ticket(0, 1), "in_slot": True,
        "urgent": False,
    }  # fmt: skip
    return m.Want(**{**said, **other})


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
