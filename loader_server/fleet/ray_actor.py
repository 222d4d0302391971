"""The actor of Ray that owns a coordinator or a worker on its node, whichever node that is by now.

Rules: it only starts the process that keeps the other one (`process_keeper`), and carries files and reports; Ray starts
it again elsewhere, with the same orders, if its node is lost. Ray is imported where it is used, as it is an extra.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

from loader_server.fleet.process_keeper import LISTEN_FILE

__all__ = ["NodeActor", "asks_for_token"]

#: How long the process may take to end: its child drains for at most 12 s.
_END_S = 15.0
#: Interval of checks whether the node is still there.
_LOOK_S = 1.0


def asks_for_token() -> bool:
    """Return whether the Ray that this process belongs to lets nobody in without a token."""
    # Ray sets it as well where it chooses tokens by itself, and the processes of a node inherit it.
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


class NodeActor:
    """An actor with one process; the orders are JSON: those of `process_keeper`, and `files`."""

    def __init__(self, orders: str) -> None:
        import ray

        address = ray.util.get_node_ip_address()
        #: What the process has reported, the latest value of each fact, and the node's address for others.
        self._facts: dict[str, Any] = {"address": address}
        self._files: dict[str, str] = {}
        self._has_to_end = False
        ordered = json.loads(orders.replace("{address}", address))
        files = ordered.pop("files")
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "loader_server.fleet.process_keeper", json.dumps(ordered)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._keeper.wait()  # it forks at once, and goes on as a process that is no child of this one
        self._send(files)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    def look(self, files: dict[str, str]) -> dict[str, Any]:
        """Return what the process has reported, with the node's `address`; send it these files if one is new to it."""
        if not files.items() <= self._files.items():
            self._send(files)
        return dict(self._facts)

    def end(self) -> None:
        """End the process in good order, and return when all is gone that it started, after 15 s at the latest."""
        self._has_to_end = True
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        self._hearing.join(_END_S)

    def _send(self, files: dict[str, str]) -> None:
        self._files = self._files | files
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, which the thread notices, or is ending
            self._keeper.stdin.write(json.dumps(files).encode() + b"\n")
            self._keeper.stdin.flush()

    def _hear(self) -> None:
        """Note the reports until there are no more; if the process has not ended as it should, end this actor."""
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            report = json.loads(line)
            self._facts = self._facts | report
            if "endpoint" in report:
                self._send({LISTEN_FILE: report["endpoint"]})  # its successor serves there as well
        shutil.rmtree(self._facts.get("folder", ""), ignore_errors=True)  # only a killed process leaves it
        if not self._has_to_end and not self._facts.get("is_over"):
            os._exit(1)  # Ray starts the actor again, here or elsewhere


def _end_with_parent(parent: int) -> None:
    """End this process once its parent, the node's raylet, has ended: Ray has started the actor elsewhere then."""
    # Ray looks for the raylet's process, which it still finds where nobody collects ended processes.
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
