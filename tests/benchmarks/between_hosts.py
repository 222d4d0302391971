"""Batches of 10 MB by TCP between two hosts: Stoker's workers, with keys and without, beside bare pyzmq.

    python -m tests.benchmarks.between_hosts [--json] [--rounds 5] [--seconds 1.5] [--only 1x1 …] [--wire 10gbit]

The hosts are network namespaces on one switch, which takes root and iproute2. "2x1" are two workers that feed one
trainer, "1x4" is one worker that feeds four. For each, bare sockets (see `between_hosts_end`), Stoker without keys
("open") and with them ("sealed") are all up at once and read in turn, round after round; ratios are medians of each
round's, with the lowest and the highest beside them. CPU is that of whole processes, the kernel's part included: of one
side's processes together, a batch. The exit code is 1 if, from one worker to one trainer, the median is below 0.95 of
bare without keys, or below 0.85 with keys. Both hosts share this machine's processors; `--wire` lets their cables carry
at most that much, as network cards would, and leaves processors for what each side does. `--quick` is one short round
of one worker and one trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.between_hosts_end import NBYTES
from tests.benchmarks.data_path_consumer import cpu_s
from tests.benchmarks.data_path_payloads import PAYLOADS
from tests.benchmarks.data_path_stoker import make_job, start_loaders
from tests.support.hosts import hosts
from tests.support.loaders import ROOT
from trainer_client.load_test.report.document import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.hosts import Host

__all__ = ["measured"]

#: Workers and trainers.
_CASES = {"1x1": (1, 1), "2x1": (2, 1), "4x1": (4, 1), "1x4": (1, 4)}
_KINDS = ("bare", "open", "sealed")
#: The least share of bare pyzmq's batches that one worker may carry to one trainer.
_BOUNDS = {"open": 0.95, "sealed": 0.85}

Round = dict[str, float]


class _Side:
    """One kind's processes on both hosts, all up and idle."""

    def __init__(self, stack: ExitStack, pair: Sequence[Host], kind: str, workers: int, trainers: int) -> None:
        self._stack = stack
        self._loaders, self._trainers = pair
        self._log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        if kind == "bare":
            self._senders, words = self._start_bare(workers)
            arguments = [words] * trainers
        else:
            self._senders, words = self._start_stoker(workers, keys=kind == "sealed")
            arguments = [[words[0], words[1], str(rank), str(trainers), *words[2:]] for rank in range(trainers)]
        self._readers = [self._start(self._trainers, *one) for one in arguments]
        for reader in self._readers:
            self._answer(reader)

    def _start_bare(self, workers: int) -> tuple[list[psutil.Process], list[str]]:
        senders = [self._start(self._loaders, "send", self._loaders.address) for _ in range(workers)]
        endpoints = [self._answer(sender)["endpoint"] for sender in senders]
        return [psutil.Process(sender.pid) for sender in senders], ["read-bare", *endpoints]

    def _start_stoker(self, workers: int, *, keys: bool) -> tuple[list[psutil.Process], list[str]]:
        job = make_job(self._log.parent / "job", PAYLOADS["features_10mb"].stream, keys=keys)
        host = self._loaders
        inside = ("ip", "netns", "exec", host.namespace)
        endpoint, pids = start_loaders(self._stack, job, workers, address=host.address, inside=inside)
        words = ["read-stoker", endpoint, *([str(job.parent / "keys")] if keys else [])]
        return [psutil.Process(pid) for pid in pids], words

    def _start(self, host: Host, *arguments: str) -> subprocess.Popen[str]:
        end = [sys.executable, "-m", "tests.benchmarks.between_hosts_end", *arguments]
        errors = self._stack.enter_context(self._log.open("a"))
        process = subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, *end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(self._log.read_text())
        return dict(json.loads(line))

    def run(self, seconds: float) -> Round:
        """Let all trainers read for so long."""
        before_s = self._senders_cpu_s()
        for reader in self._readers:
            assert reader.stdin is not None
            reader.stdin.write(f"{seconds}\n")
            reader.stdin.flush()
        answers = [self._answer(reader) for reader in self._readers]
        batches = sum(answer["batches"] for answer in answers)
        return {
            "batches_per_s": sum(answer["batches_per_s"] for answer in answers),
            "loader_cpu_ms": 1000 * (self._senders_cpu_s() - before_s) / sum(answer["read"] for answer in answers),
            "trainer_cpu_ms": 1000 * sum(answer["cpu_s"] for answer in answers) / batches,
        }

    def _senders_cpu_s(self) -> float:
        return sum(cpu_s(sender) for sender in self._senders)


def measured(pair: Sequence[Host], case: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return the rows of one case, a kind each."""
    workers, trainers = _CASES[case]
    with ExitStack() as stack:
        sides = {kind: _Side(stack, pair, kind, workers, trainers) for kind in _KINDS}
        found = [{kind: side.run(seconds) for kind, side in sides.items()} for _ in range(rounds)]
    return [_row(case, kind, found) for kind in _KINDS]


def _row(case: str, kind: str, rounds: list[dict[str, Round]]) -> dict[str, Any]:
    ratios = [found[kind]["batches_per_s"] / found["bare"]["batches_per_s"] for found in rounds]
    middle = {name: round(statistics.median(found[kind][name] for found in rounds), 2) for name in rounds[0][kind]}
    return {
        "case": case,
        "kind": kind,
        **middle,
        "ratio_to_bare": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "loader_mb_per_cpu_s": round(NBYTES / 1e3 / middle["loader_cpu_ms"]),
        "trainer_mb_per_cpu_s": round(NBYTES / 1e3 / middle["trainer_cpu_ms"]),
    }


def _line(row: dict[str, Any]) -> str:
    low, high = row["spread"]
    return (
        f"| {row['case']} | {row['kind']} | {row['batches_per_s']:.0f} | {row['ratio_to_bare']:.2f} "
        f"({low:.2f} to {high:.2f}) | {row['loader_cpu_ms']:.1f} | {row['trainer_cpu_ms']:.1f} |"
    )


def _table(rows: list[dict[str, Any]]) -> str:
    head = "| workers x trainers | how | batches/s | of bare | loader CPU ms | trainer CPU ms |"
    return "\n".join([head, "|---|---|--:|--:|--:|--:|", *map(_line, rows)])


def _is_within(row: dict[str, Any]) -> bool:
    return row["case"] != "1x1" or row["ratio_to_bare"] >= _BOUNDS.get(row["kind"], 0.0)


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each round and kind")
    parser.add_argument("--only", nargs="*", choices=_CASES, default=list(_CASES), help="workers x trainers")
    parser.add_argument("--wire", metavar="RATE", help="the most that cables carry, such as 10gbit (default: no limit)")
    parser.add_argument("--quick", action="store_true", help="one short round of 1x1, which says nothing of speed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.only = 1, 0.2, ["1x1"]
    rows: list[dict[str, Any]] = []
    with hosts(2) as pair:
        pair[1].plug_in()
        for host in pair if options.wire else ():
            host.limit(options.wire)
        for case in options.only:
            rows += measured(pair, case, options.rounds, options.seconds)
    if not options.json:
        print(_table(rows))
    load = round(os.getloadavg()[0], 2)
    print(json.dumps({"rows": rows, "wire": options.wire, "machine": machine(), "load_1_min": load}))
    return 0 if options.quick or all(map(_is_within, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
