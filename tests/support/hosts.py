"""Hosts for tests: network namespaces on one switch, each with an address, a cable that can be pulled, and programs.

Making them takes root and iproute2; a test that finds neither is skipped. All that runs in them ends with them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import ROOT
from tests.support.namespaces import why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Host", "hosts", "reason_not_here"]

#: Addresses that nobody else on the machine uses: these networks are seen by our namespaces only.
_NETWORK = "10.77.0"

_serial = itertools.count()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)


class Host:
    """A network namespace with one cable to the switch."""

    def __init__(self, namespace: str, address: str, cable: str) -> None:
        self.namespace = namespace
        self.address = address
        self._cable = cable
        self._programs: list[subprocess.Popen[str]] = []

    def plug_in(self) -> None:
        """Bring its end of the cable up, with its address."""
        self._inside("link", "set", self._cable, "up")
        self._inside("addr", "replace", f"{self.address}/24", "dev", self._cable)

    def unplug(self) -> None:
        """Take its end of the cable down."""
        self._inside("link", "set", self._cable, "down")

    def limit(self, rate: str, burst: str = "4mb", latency: str = "20ms") -> None:
        """Let its cable carry at most this much outwards, as a network card would: `10gbit`, after a burst.

        What would have to wait for longer than `latency` is dropped.
        """
        words = ("-n", self.namespace, "qdisc", "add", "dev", self._cable, "root", "tbf")
        _run("tc", *words, "rate", rate, "burst", burst, "latency", latency)

    def change_address(self, address: str) -> None:
        """Take another address in place of its own."""
        self._inside("addr", "flush", "dev", self._cable)
        self.address = address
        self.plug_in()

    def _inside(self, *words: str) -> None:
        _ip("-n", self.namespace, *words)

    def start(self, *words: str, folder: Path, log: Path) -> subprocess.Popen[str]:
        """Start a module of ours there, such as `loader_server`, with its arguments."""
        with log.open("a") as output:
            program = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, sys.executable, "-m", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
                stdout=output,
                stderr=output,
                text=True,
            )
        self._programs.append(program)
        return program

    def close(self) -> None:
        """End all that was started there."""
        for program in self._programs:
            program.terminate()
        for program in self._programs:
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def reason_not_here() -> str:
    """Say why there can be no hosts; empty if there can."""
    if shutil.which("ip") is None:
        return "network namespaces need iproute2"
    return why_no_namespaces("--net", "--uts", "--mount")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Make so many hosts, all unplugged but the first, and take them away at the end."""
    if reason := reason_not_here():
        pytest.skip(reason)
    prefix = f"stoker{os.getpid()}x{next(_serial)}"
    switch = f"{prefix}s"
    with contextlib.ExitStack() as cleanup:
        _add_namespace(switch, cleanup)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        made = [_add_host(prefix, number, switch, cleanup) for number in range(1, count + 1)]
        made[0].plug_in()
        yield made


def _add_namespace(name: str, cleanup: contextlib.ExitStack) -> None:
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made: {error.stderr}")
    cleanup.callback(_ip, "netns", "delete", name)
    _ip("-n", name, "link", "set", "lo", "up")


def _add_host(prefix: str, number: int, switch: str, cleanup: contextlib.ExitStack) -> Host:
    namespace, cable = f"{prefix}h{number}", f"cable{number}"
    _add_namespace(namespace, cleanup)
    _ip("-n", switch, "link", "add", cable, "type", "veth", "peer", "name", cable, "netns", namespace)
    _ip("-n", switch, "link", "set", cable, "up", "master", "bridge")
    host = Host(namespace, f"{_NETWORK}.{number}", cable)
    cleanup.callback(host.close)
    return host
