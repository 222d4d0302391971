"""A worker that sends what it was not asked for is refused and counted, and the batch is asked of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.fleet import Fleet, fleet
from tests.support.loaders import wait_until, write_job
from tests.support.odd_worker import LIES
from tests.support.scraping import fetch_metrics, read_targets
from trainer_client.session.metrics import ASKED, REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(write_job(tmp_path_factory.mktemp("job"), samples=300), "honest") as one:
        yield one


def _read(endpoint: str, folder: Path, **how: object) -> tuple[list[tuple[int, int]], dict[str, float]]:
    """An epoch's numbers and digests, and what Prometheus sees of it."""
    with trainer_client.connect(endpoint, metrics_port=0, metrics_targets=folder, **how) as feed:
        read = [(batch.number, batch.digest) for batch in feed]
        (target,) = read_targets(folder).values()
        values = {name: value for (name, _), value in fetch_metrics(target["address"]).items()}
    return read, values


#: Without `verify` nobody looks at digests in shared memory.
_WAYS = {"tcp": {"shared_memory": False}, "shared memory": {"verify": True}}


@pytest.mark.fault(9)
@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_is_not_what_was_asked_for_is_asked_of_another(honest, tmp_path, lie, way) -> None:
    calm, values = _read(honest.endpoint, tmp_path / "calm", **_WAYS[way])
    assert values[REJECTED.name] == 0
    liar = honest.join(f"liar-{lie}-{way}", odd=(lie,))

    def read_with_a_liar() -> bool:
        """Whether it was asked for several batches: an epoch may be over before it has been greeted."""
        read, values = _read(honest.endpoint, tmp_path / "with a liar", **_WAYS[way])
        assert read == calm
        assert values[ASKED.name] >= len(calm) + values[REJECTED.name]
        return values[REJECTED.name] > 3  # all that it sent was refused

    assert len(calm) > 15
    try:
        wait_until(read_with_a_liar, "it was asked", 60)
    finally:
        liar.terminate()  # it says farewell, so that nobody asks it in the next test
        liar.wait()


@pytest.mark.fault(9)
def test_when_nobody_else_is_there_the_feed_stops_and_says_so(tmp_path: Path) -> None:
    with fleet(write_job(tmp_path)) as one:
        one.join("liar", odd=("digest",))
        said = r"batch \d+ of liar.*with the digest|liar.*digest"
        with (
            trainer_client.connect(one.endpoint, shared_memory=False) as feed,
            pytest.raises(trainer_client.StokerError, match=said) as caught,
        ):
            list(feed)
    print(caught.value)
