"""The actor of Ray that owns a coordinator or a worker on its node, whichever node that is by now.

Rules: it only starts the process that keeps the other one (`process_keeper`), and carries its reports; Ray starts it
again elsewhere, with the same orders, if its node is lost. Ray is imported where it is used, as it is an extra.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from loader_server.fleet.process_keeper import LISTEN_FILE
from shared.stores.own_files import replacing

__all__ = ["NodeActor", "asks_for_token"]

#: How long the process may take to end: its child drains for at most 12 s.
_END_S = 15.0


def asks_for_token() -> bool:
    """Return whether the Ray that this process belongs to lets nobody in without a token."""
    # Ray sets it as well where it chooses tokens by itself, and the processes of a node inherit it.
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


class NodeActor:
    """An actor with one process; the orders are a line of JSON (`ray_settings.Orders.line`)."""

    def __init__(self, orders: str) -> None:
        import ray

        #: What the process has reported, the latest value of each fact, and the node's address for others.
        self._facts: dict[str, Any] = {"address": ray.util.get_node_ip_address()}
        self._files: dict[str, str] = {}
        self._has_to_end = False
        ordered = json.loads(orders)
        files = ordered.pop("files")
        for command in ordered["commands"]:
            command[:] = [word.replace("{address}", self._facts["address"]) for word in command]
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "loader_server.fleet.process_keeper", json.dumps(ordered)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._keeper.wait()  # it forks at once, and goes on as a process that is no child of this one
        assert self._keeper.stdout is not None
        self._folder = Path(json.loads(self._keeper.stdout.readline())["folder"])
        self.look(files)
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which the thread notices
            self._keeper.stdin.write(b"\n")
            self._keeper.stdin.flush()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def look(self, files: dict[str, str]) -> dict[str, Any]:
        """Write files of the process that differ from these, and return what it has reported."""
        for name, content in files.items():
            if self._files.get(name) != content:
                self._write(name, content)
        self._files = self._files | files
        return dict(self._facts)

    def end(self) -> None:
        """End the process in good order, and return when all is gone that it started, after 15 s at the latest."""
        self._has_to_end = True
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        self._hearing.join(_END_S)

    def _write(self, name: str, content: str) -> None:
        path = self._folder / name
        with contextlib.suppress(FileNotFoundError):  # the folder is gone with the process, which the thread notices
            if path.parent != self._folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(content.encode())
            path.chmod(0o600)

    def _hear(self) -> None:
        """Note the reports until there are no more; if the process has not ended as it should, end this actor."""
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            report = json.loads(line)
            if "endpoint" in report:
                with contextlib.suppress(OSError):  # then a successor serves at another port
                    self._write(LISTEN_FILE, report["endpoint"])
            self._facts = self._facts | report
        shutil.rmtree(self._folder, ignore_errors=True)  # only a killed process leaves it
        if not self._has_to_end and not self._facts.get("is_over"):
            os._exit(1)  # Ray starts the actor again, here or elsewhere
