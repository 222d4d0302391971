"""The benchmarks of a fleet run through, in their quick form, and count what they say that they count."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.hosts import hosts
from tests.support.loaders import ROOT


def figures(benchmark: str, *arguments: str) -> dict[str, Any]:
    """What the benchmark's last line says."""
    words = [sys.executable, "-m", f"tests.benchmarks.{benchmark}", "--quick", "--json", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["machine"]["processor"]
    return found


@pytest.mark.slow
def test_batches_between_two_hosts_come_by_bare_sockets_and_by_stoker_with_keys_and_without() -> None:
    with hosts(1):
        pass  # or the test is skipped
    rows = figures("between_hosts")["rows"]
    assert [(row["case"], row["kind"]) for row in rows] == [("1x1", "bare"), ("1x1", "open"), ("1x1", "sealed")]
    assert rows[0]["ratio_to_bare"] == 1.0
    assert all(row["batches_per_s"] > 0 and row["loader_cpu_ms"] > 0 and row["trainer_cpu_ms"] > 0 for row in rows)


@pytest.mark.slow
def test_a_host_joins_and_is_of_use_and_a_crowd_joins_while_trainers_are_answered() -> None:
    found = figures("joining_hosts")
    assert 0 < found["fresh"]["fetched_s"] < found["fresh"]["first_batch_s"]
    assert found["crowd"]["hosts"] == 4
    assert found["crowd"]["bundle_mb"] * 1e6 > 48 * found["samples"]  # six columns of eight bytes
    assert 0 < found["crowd"]["fetched_s"] <= found["crowd"]["seconds"]
    assert found["crowd"]["p99_ms"] > 0


@pytest.mark.slow
def test_the_ends_of_a_small_fleet_have_the_connections_and_the_messages_that_it_means() -> None:
    found = figures("fleet_size")
    (size,) = found["sizes"]
    coordinator, trainer = size["coordinator"], size["trainer"]
    assert coordinator["connections"] == size["workers"] + found["trainers"]
    assert trainer["connections"] == 1 + size["workers"]
    assert trainer["messages_per_s"] >= 2 * trainer["batches_per_s"] > 0
    assert trainer["kb_per_s"] > coordinator["kb_per_s"] > 0
