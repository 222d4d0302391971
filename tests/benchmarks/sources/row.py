"""What is said of one reader of one format, and how readers are measured beside each other.

Rules: every side reads the same data, a whole pass at a time, in turn, so that what else the machine does meets all of
them alike; CPU is that of all processes of a side. Ratios are of samples per CPU second, because waiting shows how busy
the machine was. Must not know any format.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Pass", "Row", "elsewhere", "interleaved", "measured", "serve", "stoker"]

_ROOT = Path(__file__).resolve().parents[3]

#: Processes that use less than this share of a core are idle.
_QUIET = 0.2
_LOOK_EVERY_S = 0.1

#: Loaders look at the content of a file that was written less than three seconds ago whenever they open it, because its
#: status cannot be trusted yet. Data sets are older than that, so a benchmark waits for its own to be.
_SETTLED_S = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A side's medians: `ratio` is to the peer, whose own is 1; `epoch` is "first" or "later".

    A peer that is not installed has no figures, and `left_out` says why.
    """

    format: str
    side: str
    epoch: str
    samples_per_s: float = 0.0
    cpu_us_per_sample: float = 0.0
    ratio: float = 0.0
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass over the data took."""

    samples: int
    wall_s: float
    cpu_s: float


def measured(batches: Iterable[int]) -> Pass:
    """Read all of these, each of which says how many samples it had.

    What is made ahead for the next pass counts: what was made ahead for this one does not, nor does the start of
    processes that `batches` come from.
    """
    before_s, began_s = _cpu_once_quiet_s(), time.perf_counter()
    samples = sum(batches)
    wall_s = time.perf_counter() - began_s
    return Pass(samples=samples, wall_s=wall_s, cpu_s=_cpu_once_quiet_s() - before_s)


def _cpu_once_quiet_s() -> float:
    """CPU used when hardly any more is being used, and nobody is kept from using it by others on the machine; without
    that of looking.
    """
    began_s, used_s = time.thread_time(), _cpu_s()
    while True:
        time.sleep(_LOOK_EVERY_S)
        before_s, used_s = used_s, _cpu_s()
        if used_s - before_s < _QUIET * _LOOK_EVERY_S and not any(map(_would_run, _other_threads())):
            return used_s - (time.thread_time() - began_s)


def _other_threads() -> Iterator[Path]:
    """All threads of this process and of those below, but for the one that asks."""
    for pid in (os.getpid(), *_started_by(os.getpid())):
        yield from (one for one in Path(f"/proc/{pid}/task").glob("*") if one.name != str(threading.get_native_id()))


def _would_run(thread: Path) -> bool:
    """Whether it runs, or would if it had a processor."""
    with suppress(OSError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    return False


def _cpu_s() -> float:
    """CPU of this process, of those that it started, and of those of them that have ended.

    To the nanosecond, and in a tenth of the time that psutil takes, which would count as a side's own.
    """
    ended = os.times()
    return time.process_time() + ended[2] + ended[3] + sum(map(_cpu_of_s, _started_by(os.getpid())))


def _cpu_of_s(pid: int) -> float:
    """Of one process by its own clock, whose number Linux makes so, and of those that it waited for."""
    with suppress(OSError):
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        return time.clock_gettime((~pid << 3) | 2) + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _started_by(pid: int) -> Iterator[int]:
    """The processes below this one, which its threads have started."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _started_by(child)


@contextmanager
def stoker(job: Path) -> Iterator[Callable[[], Pass]]:
    """One worker and the plain iterator of one trainer: each call reads an epoch."""
    import trainer_client  # benchmarks without a trainer do without
    from tests.benchmarks.data_path_stoker import loaders

    time.sleep(_SETTLED_S)
    with loaders(job) as endpoint, trainer_client.connect(endpoint) as feed:
        yield lambda: measured(int(batch["weight"].sum()) for batch in feed)


@contextmanager
def elsewhere(module: str, *arguments: str) -> Iterator[Callable[[], Pass]]:
    """A side in a process of its own, for those whose threads would count as others': `module` calls `serve`."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def read() -> Pass:
            asked.write("\n")
            asked.flush()
            return Pass(**json.loads(answers.readline()))

        try:
            yield read
        finally:
            asked.close()


def serve(read: Callable[[], Pass]) -> None:
    """Run a pass for each line of input."""
    for _ in sys.stdin:
        print(json.dumps(asdict(read())), flush=True)


def interleaved(name: str, sides: Mapping[str, Callable[[], Pass]], rounds: int) -> list[Row]:
    """Run all sides in turn, so often; the first peer is what others are compared with. One whose library is not there
    raises ImportError.
    """
    passes: dict[str, list[Pass]] = {}
    left_out: dict[str, str] = {}
    for _ in range(rounds):
        for side, read in sides.items():
            if side in left_out:
                continue
            try:
                passes.setdefault(side, []).append(read())
            except ImportError as error:
                left_out[side] = str(error)
    epochs = {"first": slice(0, 1), "later": slice(1, None)}
    rows = [row for epoch, which in epochs.items() for row in _rows(name, epoch, passes, which)]
    return rows + [Row(format=name, side=side, epoch="first", left_out=why) for side, why in left_out.items()]


def _rows(name: str, epoch: str, passes: Mapping[str, list[Pass]], which: slice) -> list[Row]:
    found = {side: several[which] for side, several in passes.items() if several[which]}
    cpu_s = {side: statistics.median(one.cpu_s / one.samples for one in several) for side, several in found.items()}
    peer = next((side for side in found if side != "stoker"), None)
    return [
        Row(
            format=name,
            side=side,
            epoch=epoch,
            samples_per_s=round(statistics.median(one.samples / one.wall_s for one in several), 1),
            cpu_us_per_sample=round(1e6 * cpu_s[side], 3),
            ratio=round(cpu_s[peer] / cpu_s[side], 3) if peer is not None else 0.0,
        )
        for side, several in found.items()
    ]
