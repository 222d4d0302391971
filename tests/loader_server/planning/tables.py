"""A table of lengths in memory, as the planner reads an index, and ways to walk an epoch."""

from __future__ import annotations

import numpy as np

from loader_server.planning import EpochPlan, Plan, PlannedBatch, PlanSettings
from loader_server.sources.chunks.cutting import ChunkTable
from shared.hashing import fingerprint, hashed
from shared.settings.tables import read_table

__all__ = ["RATES", "Chunks", "Lengths", "Memory", "batches_of", "log_normal", "plan_of", "settings_of"]

RATES = {"audio": 100.0, "text": None}


class Lengths:
    """Lengths by key, in segments of a fixed size."""

    def __init__(self, segment: int = 64, **lengths) -> None:
        self.by_key = {key: np.asarray(of, np.int64) for key, of in lengths.items()}
        self.keys = tuple(lengths)
        size = len(next(iter(self.by_key.values())))
        self.segments = np.append(np.arange(0, size, segment), size).astype(np.int64)
        self.fingerprint = fingerprint(*(of.tobytes() for of in self.by_key.values()))
        self.reads = 0

    def lengths(self, key, start, stop):
        self.reads += 1
        return self.by_key[key][start:stop]


class Chunks(Lengths):
    """The chunks of recordings of these lengths, in segments of about so many that cut no recording in two."""

    def __init__(self, recordings, steps: int, segment: int = 64) -> None:
        cut = ChunkTable(np.asarray(recordings, np.int64), np.array(steps), np.array(steps))
        self.extents = cut.extents(np.arange(len(cut)))
        super().__init__(audio=self.extents.stops - self.extents.starts)
        self.segments = cut.segments(np.array([0, len(recordings)]), segment)
        self.begins = cut.begins


class Memory:
    """Keeps parts of plans in a dict."""

    def __init__(self) -> None:
        self.kept = {}
        self.saved = 0

    def load(self, kind, name):
        return self.kept.get((kind, name))

    def save(self, kind, name, arrays):
        self.kept[kind, name] = arrays
        self.saved += 1


def log_normal(size: int, median: float = 1200.0, spread: float = 0.5, seed: int = 1) -> np.ndarray:
    """Lengths like those of speech: a sum of twelve hashed uniforms stands for a normal deviate."""
    uniform = hashed(np.arange(size * 12), seed).reshape(size, 12) / 2**64
    return np.maximum(1, np.exp(np.log(median) + spread * (uniform.sum(axis=1) - 6))).astype(np.int64)


def settings_of(**table) -> PlanSettings:
    return read_table(PlanSettings, ({} if "rows" in table else {"budget": "300 s"}) | table, "test")


def plan_of(
    lengths, *, segment: int = 64, seed: int = 7, key: str = "audio", keeper=None, sources=(0,), **table
) -> Plan:
    given = lengths if isinstance(lengths, dict) else {key: lengths}
    return Plan.make(
        Lengths(segment, **given),
        settings_of(**table),
        key=key,
        per_second=RATES,
        seed=seed,
        sources=sources,
        keeper=keeper,
    )


def batches_of(epoch: EpochPlan) -> list[PlannedBatch]:
    return [epoch.batch(number) for number in range(epoch.batches)]
