"""Looking at some of many samples: evenly spread ones first, each once, for as long as there is time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files import looking
from loader_server.sources.files.looking import look_at_some

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("samples", [0, 1, 999, 2000, 2999, 3001])
def test_each_has_its_turn_once(samples: int) -> None:
    seen: list[int] = []
    look_at_some(samples, seen.append, 1000.0)
    assert sorted(seen) == list(range(samples))


def test_the_first_thousand_are_spread_over_all() -> None:
    seen: list[int] = []
    look_at_some(10_000, seen.append, 1000.0)
    assert seen[:1001] == [*range(0, 10_000, 10), 1]


def clock(*times_s: float) -> Callable[[], float]:
    return iter(times_s).__next__


def test_it_ends_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(looking, "time", SimpleNamespace(monotonic=clock(5.0, 5.0, 5.5, 6.0, 6.1)))
    look_at_some(10_000, seen.append, 1.0)
    assert seen == [0, 10, 20]
