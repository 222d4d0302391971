"""Looking ahead: each batch is told once, in order, as far as the source wants and no further."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.building import look_ahead
from loader_server.building.look_ahead import LookAhead

if TYPE_CHECKING:
    import pytest


class Listening:
    """A source that wants so much."""

    def __init__(self, wants: int) -> None:
        self.wants = wants
        self.told: list[int] = []

    def looks_ahead(self) -> bool:
        return len(self.told) < self.wants

    def expect(self, samples: Any) -> None:
        self.told += samples.tolist()


#: Ten batches, whose samples are their numbers.
EPOCH: Any = SimpleNamespace(batches=10, batch=lambda number: SimpleNamespace(samples=np.array([number])))


def test_what_comes_behind_is_told_once_as_far_as_is_wanted() -> None:
    source = Listening(3)
    ahead = LookAhead(source)  # type: ignore[arg-type]
    ahead.after(EPOCH, (0, 1), 1)
    assert source.told == [2, 3, 4]
    source.wants = 4
    ahead.after(EPOCH, (0, 1), 2)
    assert source.told == [2, 3, 4, 5]
    source.wants = 100
    ahead.after(EPOCH, (0, 1), 7)
    assert source.told == [2, 3, 4, 5, 8, 9], "what was passed meanwhile is no news, and an epoch ends"
    ahead.after(EPOCH, (1, 1), 6)
    assert source.told[-3:] == [7, 8, 9], "another epoch has other batches"


def test_what_the_feature_cache_holds_is_not_told() -> None:
    source = Listening(100)
    LookAhead(source, lambda samples: samples[samples % 3 != 0]).after(EPOCH, (0, 1), 1)  # type: ignore[arg-type]
    assert source.told == [2, 4, 5, 7, 8]


def test_no_further_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ahead, "_MOST_AHEAD", 4)
    source = Listening(100)
    LookAhead(source).after(EPOCH, (0, 1), 1)  # type: ignore[arg-type]
    assert source.told == [2, 3, 4]


def test_one_thread_is_at_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Listening):
        def expect(self, samples: Any) -> None:
            super().expect(samples)
            begun.set()
            assert go_on.wait(60)

    source = Slow(100)
    ahead = LookAhead(source)  # type: ignore[arg-type]
    other = threading.Thread(target=ahead.after, args=(EPOCH, (0, 1), 7))
    other.start()
    assert begun.wait(60)
    ahead.after(EPOCH, (0, 1), 0)
    go_on.set()
    other.join(60)
    assert source.told == [8, 9]
