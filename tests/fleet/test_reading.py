"""A trainer that reads an epoch and says what came of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.fleet.reading import EpochRead, count_faults, read_epoch
from tests.support.loaders import running, write_job
from trainer_client.verifying.digests import digest_of
from trainer_client.verifying.epoch_reading import EpochsOfJob, read_epochs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("numbers", "faults"),
    [([0, 1, 2, 3], (0, 0)), ([0, 1, 3], (1, 0)), ([0, 1, 1, 2, 3, 3], (0, 2)), ([], (4, 0)), ([0, 0, 3], (2, 1))],
)
def test_lost_and_repeated_batches_are_counted(numbers: list[int], faults: tuple[int, int]) -> None:
    assert count_faults(numbers, 4) == faults


@pytest.mark.parametrize(("lost", "repeated"), [(1, 0), (0, 1)])
def test_faults_are_refused(lost: int, repeated: int) -> None:
    epoch = EpochRead(digest="", batches=4, lost=lost, repeated=repeated, gap_s=0.0, gap_at=0, seconds=0.0)
    with pytest.raises(AssertionError, match=f"lost {lost}, repeated {repeated} of 4 batches"):
        epoch.refuse_faults()


def test_its_digest_is_that_of_verify_and_each_number_is_said(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=40)
    numbers: list[int] = []

    def linger(number: int) -> None:
        numbers.append(number)
        if number == 2:
            threading.Event().wait(0.1)

    with running(job) as loaders:
        epoch = read_epoch(loaders.endpoint, then=linger)
        source = EpochsOfJob(
            endpoint=loaders.endpoint,
            stream="train",
            epochs=range(1),
            group=None,
            most=None,
            keys="",
            connect_timeout_s=60.0,
        )
        assert epoch.digest == digest_of(read_epochs(source))
    epoch.refuse_faults()
    assert numbers == list(range(epoch.batches))
    assert 0.1 <= epoch.gap_s <= epoch.seconds
    assert 0 < epoch.gap_at < epoch.batches
