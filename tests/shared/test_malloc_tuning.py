from __future__ import annotations

import psutil

from shared.malloc_tuning import Aftermath, give_back_freed_memory


def test_memory_is_given_back_when_a_flood_is_over_and_once_more() -> None:
    """Connections that were stopped are heard to end some time later."""
    given: list[int] = []
    aftermath = Aftermath(lambda: given.append(1))
    for _ in range(20):
        aftermath.look()
    for _ in range(3):
        aftermath.note()
        aftermath.look()
    assert not given, "it lasts"
    aftermath.look()
    assert given == [1]
    for _ in range(8):
        aftermath.look()
    assert given == [1]
    for _ in range(20):
        aftermath.look()
    assert given == [1, 1]
    aftermath.note()
    for _ in range(2):
        aftermath.look()
    assert given == [1, 1, 1]


def test_freed_memory_goes_back_to_the_kernel() -> None:
    """Many small pieces, the last of which holds all others in place."""
    process, pieces = psutil.Process(), [bytes(1000) for _ in range(40_000)]
    full, last = process.memory_info().rss, pieces[-1]
    del pieces
    give_back_freed_memory()
    assert process.memory_info().rss < full - 25 * 2**20
    assert last is not None
