"""Names of feeds: one for each that lives, and the same again for the next one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer_client.network import trainer_log
from trainer_client.network.trainer_log import claim_name, release_name


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_log, "_claims", {})


def test_feeds_of_one_stream_and_rank_are_numbered_while_others_live() -> None:
    assert [claim_name("train", 0, "host:1") for _ in range(3)] == ["host:1", "host:1:2", "host:1:3"]
    assert (claim_name("dev", 0, "host:1"), claim_name("train", 1, "host:1")) == ("host:1", "host:1")
    release_name("train", 0, "host:1:2")
    release_name("train", 0, "host:1:2")
    assert [claim_name("train", 0, "host:1") for _ in range(2)] == ["host:1:2", "host:1:4"]


def test_threads_that_connect_at_once_get_a_name_each() -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: claim_name("train", 0, "host:1"), range(64)))
    assert len({*names}) == 64
