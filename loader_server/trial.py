"""A batch that kills workers is first tried in a child process, sample by sample, to find which of them does it.

The child reads `stream epoch sample` lines, decodes and transforms that sample, throws the result away and answers
with a line. If it dies, the sample is tried once more alone, in a fresh child, for a child may be killed by others
too; if that dies as well, the sample is the culprit, and its row is masked from then on. Only wants whose last
builder died are tried, so it costs nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from loader_server.builder import read_patiently
from loader_server.processes import end_with_parent
from loader_server.stream import JobFile, Stream
from loader_server.transforms.chain import generator_for
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Trial"]


class Trial:
    """The worker's side; the child starts with the first trial and lives until `close`."""

    def __init__(self, job_path: Path) -> None:
        self._job_path = job_path
        self._child: subprocess.Popen[str] | None = None

    def culprits(self, stream: str, epoch: int, samples: Iterable[int]) -> list[int]:
        """The samples that end the process that decodes them, twice."""
        return [sample for sample in samples if not self._survives(stream, epoch, sample)]

    def _survives(self, stream: str, epoch: int, sample: int) -> bool:
        return any(self._try(stream, epoch, sample) for _ in range(2))

    def _try(self, stream: str, epoch: int, sample: int) -> bool:
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(f"{stream} {epoch} {sample}\n")
            child.stdin.flush()
        survived = child.stdout.readline() == f"{sample}\n"
        if not survived:
            self.close()
        return survived

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            command = [sys.executable, "-m", "loader_server.trial", str(self._job_path), str(os.getpid())]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self._child

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def _main(job_path: str, parent: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(parent), signal.SIGKILL)
    job = JobFile(job_path)
    job.make_importable()
    streams: dict[str, Stream] = {}
    # What a transform prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, epoch, sample = line.split()
        if name not in streams:
            streams[name] = job.open(name)
        _try(streams[name], int(epoch), int(sample))
        answers.write(f"{sample}\n")
        answers.flush()


def _try(stream: Stream, epoch: int, sample: int) -> None:
    """Whatever can be raised is no reason to die of it: the worker will meet it again and report it."""
    with contextlib.suppress(DataError):
        decoded = stream.source.decode(sample, read_patiently(stream.source.read, sample))
        stream.chain.apply(decoded, generator_for(stream.seed, epoch, sample))


if __name__ == "__main__":
    _main(*sys.argv[1:])
