"""Two workers, one of them behind a relay, a trainer of theirs, and what can be said of how it does."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.fleet import Fleet
    from tests.support.proxy import Proxy

__all__ = ["BEATS", "SLACK_S", "SLOW", "TIMEOUT_S", "WAYS", "Behind", "metered", "read_epoch", "trained"]

TIMEOUT_S = 0.5
BEATS = f'heartbeat_timeout = "{TIMEOUT_S * 1000:g} ms"'

#: One build, on a machine that is busy with other tests and now and then stands still.
SLACK_S = 15.0

SLOW = ("tests.support.transforms:slow", "tests.support.transforms:noise", "logmel", "characters")

WAYS = [pytest.param(True, id="shared memory"), pytest.param(False, id="tcp")]


@dataclass
class Behind:
    """Two workers: `near` is reached directly, `far` through a relay."""

    fleet: Fleet
    proxy: Proxy
    calm: list[tuple[int, int]]


@contextmanager
def metered(endpoint: str, folder: Path, **how: Any) -> Iterator[tuple[trainer_client.Feed, Callable[..., float]]]:
    """A feed of the evaluation stream, whose epochs are alike, and how to look a metric of it up."""
    with trainer_client.connect(endpoint, stream="dev", metrics_port=0, metrics_targets=folder, **how) as feed:
        (target,) = read_targets(folder).values()

        def value(declared: Any) -> float:
            return sum(value for (name, _), value in fetch_metrics(target["address"]).items() if name == declared.name)

        yield feed, value


def read_epoch(
    feed: trainer_client.Feed, at: Callable[[int], object] = lambda _count: None
) -> tuple[list[tuple[int, int]], float]:
    """An epoch, and the longest wait for a batch; `at` is called with how many there were."""
    got, waits_s, began_s = [], [], time.monotonic()
    for batch in feed:
        waits_s.append(time.monotonic() - began_s)
        got.append((batch.number, batch.digest))
        at(len(got))
        began_s = time.monotonic()
    return got, max(waits_s)


def trained(fleet: Fleet) -> list[tuple[int, int]]:
    """How far the coordinator knows each trainer to be."""
    trainers = fleet.status()["streams"]["train"]["trainers"]
    return [(trainer["epoch"], trainer["number"]) for trainer in trainers]
