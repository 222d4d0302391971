"""A cluster of parameter servers and workers, all of them `trainer-client train` with the same arguments."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.support.programs import Program
from tests.support.reserved_host import reserved_host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["ServedCluster"]


class ServedCluster:
    """Its processes, by what they are; worker 0 is the chief."""

    def __init__(
        self, folder: Path, *arguments: str, servers: int, workers: int, environment: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._arguments = ("train", *arguments, "--strategy", "parameter-server")
        self._environment = environment
        self._stack = ExitStack()
        self._cluster = {
            kind: [self._stack.enter_context(reserved_host()) for _ in range(many)]
            for kind, many in (("ps", servers), ("worker", workers))
        }
        self.running: dict[str, Program] = {}

    def start(self, kind: str, index: int, *arguments: str) -> Program:
        """Start one, or start it again; with arguments that it alone has."""
        task = {"cluster": self._cluster, "task": {"type": kind, "index": index}}
        program = Program(self._folder, *self._arguments, *arguments, TF_CONFIG=json.dumps(task), **self._environment)
        self.running[f"{kind} {index}"] = program
        return self._stack.enter_context(program)

    def start_all(self) -> None:
        """Start whatever is not running."""
        for kind, hosts in self._cluster.items():
            for index in range(len(hosts)):
                if f"{kind} {index}" not in self.running:
                    self.start(kind, index)

    def kill(self, name: str) -> None:
        """End one by force."""
        self.running.pop(name).kill()

    def ended(self, code: int = 0) -> dict[str, list[str]]:
        """What each has said, once all of them have ended with this code."""
        outputs = {}
        for name, program in self.running.items():
            got, lines, complained = program.ended(180)
            assert got == code, (name, lines, complained)
            outputs[name] = lines.splitlines()
        return outputs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
