"""A calm reading to compare with, and small helpers for hurting things."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.behind import BEATS, SLOW, Behind
from tests.support.fleet import fleet
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.loaders import Loaders


@pytest.fixture
def read() -> Callable[..., list[tuple[int, int]]]:
    """Read the rest of an epoch as (number, digest)."""

    def read_epoch(loaders: Loaders, **how: object) -> list[tuple[int, int]]:
        with trainer_client.connect(loaders.endpoint, **how) as feed:
            return [(batch.number, batch.digest) for batch in feed]

    return read_epoch


@pytest.fixture(scope="module")
def fleet_with_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """One for all tests of a module, each of which gets it whole as `behind`."""
    job = write_job(tmp_path_factory.mktemp("job"), samples=240, budget="5 s", transforms=SLOW, job=BEATS)
    with fleet(job, "near") as one, one.join_behind_proxy("far") as proxy:
        with trainer_client.connect(one.endpoint, stream="dev") as feed:
            calm = [(batch.number, batch.digest) for batch in feed]
        assert len(calm) > 25
        yield Behind(one, proxy, calm)


@pytest.fixture
def behind(fleet_with_relay: Behind) -> Iterator[Behind]:
    """Two workers, one of them behind a relay, which is mended afterwards."""
    yield fleet_with_relay
    fleet_with_relay.proxy.heal()
    for way in fleet_with_relay.proxy.ways.values():
        way.change, way.seen = lambda parts: [parts], None
