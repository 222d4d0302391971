"""Sums over batches that never fall."""

from __future__ import annotations

from loader_server.building.build_counts import BuildCounts, Built, Effort
from shared.metrics.names import WAIT_BOUNDS_S


def _built(**more: int) -> Built:
    return Built(rows=3, masked=1, digest=9, build_us=100, **more)


def test_phases_and_cells_add_up() -> None:
    counts = BuildCounts()
    counts.add(_built(decode_us=70, read_us=20, cells=40, sample_cells=25, masked_cells=10), 640)
    counts.add(_built(decode_us=60, read_us=10, cells=40, sample_cells=40), 640)
    assert (counts.batches, counts.nbytes) == (2, 1280)
    assert (counts.read_us, counts.decode_us, counts.write_us) == (30, 130, 70)
    assert (counts.sample_cells, counts.padding_cells, counts.masked_cells) == (65, 5, 10)


def test_efforts_add_up_and_a_want_that_never_began_was_not_queued() -> None:
    counts = BuildCounts()
    counts.add_effort(Effort(queued_s=0.0, read_cpu_s=1, build_cpu_s=2, send_cpu_s=3))
    counts.add_effort(Effort(queued_s=WAIT_BOUNDS_S[1], read_cpu_s=10, build_cpu_s=20, send_cpu_s=30))
    counts.add_effort(Effort(queued_s=100.0))
    counts.add_effort(Effort(read_cpu_s=100))
    assert (counts.read_cpu_s, counts.build_cpu_s, counts.send_cpu_s) == (111, 22, 33)
    assert counts.queued_s == 100 + WAIT_BOUNDS_S[1]
    assert counts.queued == [1, 1, *[0] * (len(WAIT_BOUNDS_S) - 2), 1]  # a bound belongs to its interval
