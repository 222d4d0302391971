"""All loaders are restarted one by one under load, as other releases; each process runs a build of its own."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.transforms.chain import BYTES_VERSION
from shared.wire.codec import VERSION
from tests.support.builds import make_build
from tests.support.forked import run_module
from tests.support.loaders import wait_until, write_job
from tests.support.rolling import rolling

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rolling import Rolling

WAITS = "this worker waits until it or its coordinator is replaced"

OLD, NEW, OTHER_BYTES, OTHER_PROTOCOL = "0.1.0", "0.2.0", "0.3.0", "0.4.0"

#: A heartbeat timeout and half a second; one build comes on top, which takes at most as long as the longest gap before.
BOUND_S = 2.0 + 0.5
#: What a build may take all the same while interpreters start on the same two cores.
LEAST_BUILD_S = 1.0

_OWN = """
import numpy as np
from loader_server.transforms import transform

@transform()
def noise(sample, rng):
    sample["audio"] += 0.01 * rng.standard_normal(len(sample["audio"]), dtype="float32")
"""

HOST = f"{os.uname().nodename}-0"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two releases that fit, one that builds other bytes, as it says, and one of another protocol."""
    folder = tmp_path_factory.mktemp("builds")
    return {
        OLD: make_build(folder / "old", OLD),
        NEW: make_build(folder / "new", NEW),
        OTHER_BYTES: make_build(folder / "bytes", OTHER_BYTES, bytes_version=BYTES_VERSION + 1),
        OTHER_PROTOCOL: make_build(folder / "protocol", OTHER_PROTOCOL, protocol=VERSION + 1),
    }


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job with a transform of its own, for two ranks."""
    (tmp_path / "own.py").write_text(_OWN)
    transforms = ("own:noise", "logmel", "characters")
    return write_job(tmp_path, samples=480, budget="6 s", transforms=transforms, job="group = 2")


def verified(loaders: Rolling, epochs: int) -> dict[str, Any]:
    """What `trainer-client verify` says of the first epochs."""
    words = ("verify", loaders.endpoint, "--json", "--epochs", str(epochs))
    code, said, complained = run_module("trainer_client", *words)
    assert code == 0, complained
    document: dict[str, Any] = json.loads(said)
    return document


def replace(loaders: Rolling, name: str, release: str) -> None:
    """End a process and start its successor; trainers read on all the while."""
    loaders.end(name)
    if name == "coordinator":
        loaders.coordinate(release)
    elif name == "host":
        loaders.join(name, release)
    else:
        loaders.work(name, release)
    loaders.wait_for_workers("w0", "w1", HOST)
    loaders.wait_for_batches(10)


@pytest.mark.slow
@pytest.mark.fault(68)
@pytest.mark.parametrize(
    "order", [("coordinator", "w0", "w1", "host"), ("host", "w1", "w0", "coordinator")], ids=["from the top", "up"]
)
def test_no_trainer_notices_that_all_loaders_become_another_release(
    job: Path, builds: dict[str, Path], order: tuple[str, ...]
) -> None:
    with rolling(job, builds) as loaders:
        loaders.index(OLD)
        loaders.coordinate(OLD)
        loaders.work("w0", OLD)
        loaders.work("w1", OLD)
        loaders.join("host", OLD)
        loaders.wait_for_workers("w0", "w1", HOST)
        undisturbed = verified(loaders, 2)
        loaders.train("t0", OLD, 0, 2)
        loaders.train("t1", NEW, 1, 2)
        loaders.wait_for_batches(30)
        began_s = time.monotonic()
        build_s = loaders.longest_gap_s()
        for name in order:
            replace(loaders, name, NEW)
        ended_s = time.monotonic()
        loaders.stop_trainers()
        assert {loaders.parts[name].release for name in order} == {NEW}
        gap_s = loaders.longest_gap_s(began_s, ended_s)
        epochs = len(loaders.epochs_read(""))
        print(
            f"{', '.join(order)} restarted in {ended_s - began_s:.1f} s; longest gap {gap_s:.2f} s, "
            f"{build_s:.2f} s before; {epochs} epochs, lost 0, repeated 0"
        )
        assert gap_s < BOUND_S + max(LEAST_BUILD_S, build_s)
        assert loaders.digest(2) == undisturbed["digest"]
        assert loaders.digest(epochs) == verified(loaders, epochs)["digest"]
        assert loaders.refused() == {}
        for name in order:
            assert WAITS not in loaders.text(name)


@pytest.mark.slow
@pytest.mark.fault(68)
def test_a_coordinator_of_other_bytes_throws_no_worker_out(job: Path, builds: dict[str, Path]) -> None:
    """It was upgraded first: the workers of before wait, and serve the trainers that they have."""
    with rolling(job, builds) as loaders:
        loaders.index(OLD)
        loaders.coordinate(OLD)
        loaders.work("w0", OLD)
        loaders.work("w1", OLD)
        loaders.join("host", OLD)
        loaders.wait_for_workers("w0", "w1", HOST)
        undisturbed = verified(loaders, 2)
        assert loaders.readyz("w0") == "ok"
        loaders.train("t0", OLD, 0, 2)
        loaders.train("t1", OLD, 1, 2)
        loaders.wait_for_batches(30)
        began_s = time.monotonic()
        build_s = loaders.longest_gap_s()

        loaders.end("coordinator")
        loaders.coordinate(OTHER_BYTES)
        wait_until(lambda: set(loaders.refused()) == {"w0", "w1", HOST}, "all of before say what they wait for")
        versions = f"({BYTES_VERSION + 1} on the coordinator's machine, {BYTES_VERSION} on the worker's)"
        differs = f"version of Stoker's bytes {versions}"
        release = f"release of Stoker ({OTHER_BYTES} on the coordinator's machine, {OLD} on the worker's)"
        assert loaders.refused()["w0"] == f"w0, which differs: {differs}; {release}"
        assert loaders.report()["workers"] == []
        assert loaders.readyz("w0") == "refused"
        loaders.wait_for_batches(60)
        waits = [loaders.text(name).count(WAITS) for name in ("w0", "w1", "host")]
        assert waits == [1, 1, 1], "each log has it once"
        assert loaders.text("coordinator").count('"event": "worker differs from this machine"') == 3
        assert all(loaders.lives(name) for name in ("w0", "w1", "host"))
        assert "died" not in loaders.text("host")

        replace_w0(loaders, OTHER_BYTES)
        loaders.wait_for_workers("w0")
        loaders.wait_for_batches(20)

        loaders.end("coordinator")
        loaders.coordinate(OLD)
        loaders.wait_for_workers("w1", HOST)
        wait_until(lambda: set(loaders.refused()) == {"w0"}, "the new one waits now")
        replace_w0(loaders, OLD)
        loaders.wait_for_workers("w0", "w1", HOST)
        wait_until(lambda: loaders.readyz("w1") == "ok", "w1 is ready again")
        assert loaders.refused() == {}
        assert loaders.text("w1").count("takes this worker in again") == 1
        ended_s = time.monotonic()
        loaders.stop_trainers()
        gap_s = loaders.longest_gap_s(began_s, ended_s)
        print(f"in {ended_s - began_s:.1f} s the longest gap was {gap_s:.2f} s, before {build_s:.2f} s")
        assert gap_s < BOUND_S + max(LEAST_BUILD_S, build_s)
        assert loaders.digest(2) == undisturbed["digest"]


def replace_w0(loaders: Rolling, release: str) -> None:
    """Upgrade one worker."""
    loaders.end("w0")
    loaders.work("w0", release)


@pytest.mark.slow
@pytest.mark.fault(68)
def test_a_coordinator_of_another_protocol_throws_no_worker_out(job: Path, builds: dict[str, Path]) -> None:
    with rolling(job, builds) as loaders:
        loaders.index(OLD)
        loaders.coordinate(OLD)
        loaders.work("w0", OLD)
        loaders.join("host", OLD)
        loaders.wait_for_workers("w0", HOST)
        loaders.end("coordinator")
        loaders.coordinate(OTHER_PROTOCOL)
        for name in ("w0", "host"):
            wait_until(lambda name=name: WAITS in loaders.text(name), f"{name} waits")
            assert f"protocol version {VERSION + 1}" in loaders.text(name)
        wait_until(lambda: loaders.readyz("w0") == "refused", "a probe says so")
        loaders.work("w1", OTHER_PROTOCOL)
        wait_until(lambda: loaders.readyz("w1") == "ok", "one of its release is taken in")
        loaders.end("coordinator")
        loaders.coordinate(OLD)
        loaders.wait_for_workers("w0", HOST)
        wait_until(lambda: loaders.readyz("w1") == "refused", "now the newer one waits")
        assert all(loaders.lives(name) for name in ("w0", "w1", "host"))
        assert "died" not in loaders.text("host")
        assert [loaders.text(name).count(WAITS) for name in ("w0", "host")] == [1, 1]
        assert "loader-server: " not in loaders.text("host"), "nothing was fetched again"
