"""Where others reach a server that listens on all addresses."""

from __future__ import annotations

import subprocess
import sys

from tests.support.hosts import Host, hosts
from tests.support.loaders import ROOT


def _found(host: Host) -> str:
    """Return what a coordinator on this host writes into its endpoint file."""
    code = (
        "from loader_server.machine.reachable import find_reachable_endpoint as find\n"
        "print(find('tcp://0.0.0.0:7400', 'tcp://0.0.0.0:7400'))"
    )
    words = ["ip", "netns", "exec", host.namespace, sys.executable, "-c", code]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_a_host_without_a_route_to_the_world_is_reached_on_its_own_network() -> None:
    with hosts(2) as (one, other):
        assert _found(one) == f"tcp://{one.address}:7400"
        assert _found(other) == "tcp://127.0.0.1:7400"  # its cable is not plugged in
