"""Sums over batches that never fall."""

from __future__ import annotations

from loader_server.building.build_counts import BuildCounts, Built


def _built(**more: int) -> Built:
    return Built(rows=3, masked=1, digest=9, build_us=100, **more)


def test_phases_and_cells_add_up() -> None:
    counts = BuildCounts()
    counts.add(_built(decode_us=70, read_us=20, cells=40, sample_cells=25, masked_cells=10), 640)
    counts.add(_built(decode_us=60, read_us=10, cells=40, sample_cells=40), 640)
    assert (counts.batches, counts.nbytes) == (2, 1280)
    assert (counts.read_us, counts.decode_us, counts.write_us) == (30, 130, 70)
    assert (counts.sample_cells, counts.padding_cells, counts.masked_cells) == (65, 5, 10)
