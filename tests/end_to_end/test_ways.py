"""Whichever way batches come (shared memory, TCP, packed, under keys), they are the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import trainer_client
from shared.keys import make_keys
from tests.support.loaders import running, wait_until, write_job

JOBS = {
    "plain": "",
    "lz4": 'compression = "lz4"',
    "zstd, bfloat16": 'compression = "zstd"\nfloat32 = "bfloat16"',
    "float16": 'float32 = "float16"',
}


def epoch_of(endpoint, **settings):
    with trainer_client.connect(endpoint, **settings) as feed:
        return [(batch.number, batch.digest, {key: array.copy() for key, array in batch.items()}) for batch in feed]


def assert_same(one, other):
    assert [batch[:2] for batch in one] == [batch[:2] for batch in other]
    for (_, _, mine), (_, _, theirs) in zip(one, other, strict=True):
        for key, array in mine.items():
            np.testing.assert_array_equal(array, theirs[key])


@pytest.mark.parametrize("packing", JOBS)
@pytest.mark.parametrize("keys", [False, True], ids=["open", "under keys"])
def test_shared_memory_and_tcp_bring_the_same(tmp_path, packing, keys):
    settings = {}
    job = JOBS[packing]
    if keys:
        make_keys(tmp_path / "keys")
        settings["keys"] = str(tmp_path / "keys")
        job += f'\nkeys = "{tmp_path / "keys"}"'
    with running(write_job(tmp_path, samples=60, job=job), workers=1) as loaders:
        in_place = epoch_of(loaders.endpoint, **settings)
        by_tcp = epoch_of(loaders.endpoint, shared_memory=False, **settings)
        verified = epoch_of(loaders.endpoint, verify=True, **settings)
    assert len(in_place) > 3
    assert_same(in_place, by_tcp)
    assert_same(in_place, verified)
    audio = np.concatenate([batch["audio"].ravel() for _, _, batch in by_tcp])
    half = {"bfloat16": audio.view(np.uint32) & 0xFFFF, "float16": audio - audio.astype(np.float16)}
    for precision, rest in half.items():
        assert (not rest.any()) == (precision in packing)


def test_under_keys_payloads_come_sealed(tmp_path):
    make_keys(tmp_path / "keys")
    job = f'keys = "{tmp_path / "keys"}"'
    with (
        running(write_job(tmp_path, samples=60, job=job), workers=1) as loaders,
        trainer_client.connect(loaders.endpoint, shared_memory=False, prefetch=8, keys=str(tmp_path / "keys")) as feed,
    ):
        batches = sum(1 for _ in feed)
        (link,) = feed._session.receiver._wires.workers._connections.values()
        assert link.sealed is not None
        assert link.sealed.socket is not None
        # The first batches may come before this connection is up, and those of the next epoch are fetched ahead.
        wait_until(lambda: sum(1 for _ in feed) == batches and link.sealed._opener.number > 0, "sealed ones come", 60)
        before = link.sealed._opener.number
        assert sum(1 for _ in range(6) for _ in feed) == 6 * batches
        assert 3 * batches <= link.sealed._opener.number - before <= 9 * batches
        assert link.garbage == link.sealed.garbage == 0
