"""Bottlenecks set up on purpose in real processes: whether the status names the right one, how soon, and what it gains.

    python -m tests.faults.bottlenecks [--situation slow_read,nobody] [--draws 3] [--at-once 2] [--gains] --json

Delays, window, batch size and workers are drawn by seed. In each draw a healthy job runs until it is steady; then the
trouble begins, and looks are taken twice a second: the right limit has to be named in three looks in a row within ten
seconds, stay for ten more, and be gone ten seconds after the end of the trouble. A draw that went wrong while the
machine was busy with other work is repeated at most twice, and `repeated` says so; `pressure` is the share of the time
in which something on the machine had no CPU. With --gains one draw of some situations is played with one more worker
and with twice the window, and the measured gain (median of three) stands beside the predicted one. Draws run in network
namespaces, because one of them slows the loopback down: that takes root. The exit code is 1 if a limit was wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.support.loaders import ROOT
from tests.support.namespaces import why_no_namespaces
from tests.support.slowed.jobs import SlowedJob, slowed_job
from tests.support.slowed.situations import SITUATIONS, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.slowed.situations import Setup

__all__ = ["Outcome", "play_patiently", "run_draw"]

#: Bounds: the right limit after the trouble's beginning, how long it stays, and until it is gone.
FOUND_S, STAYS_S, GONE_S = 10.0, 10.0, 10.0

#: How long a job runs before it is steady: a look covers five seconds.
_STEADY_S = 8.0
_LOOK_S = 0.5
_IN_A_ROW = 3

#: Wrong draws are repeated if the machine was more under pressure than this.
_DISTURBED, _MOST_REPEATS = 0.3, 2

#: Situations that take CPU from all others.
_ALONE = frozenset({"full_host"})
#: Situations whose gains are measured: stations that sleep, so that the measured rate does not depend on the machine.
_WITH_GAINS = ("slow_transform", "slow_read", "small_window", "slow_step")
_GAIN_S, _GAIN_LOOKS = 5.0, 3


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of one draw; times are None if it did not come about in time."""

    right: bool
    #: The sentence once the trouble was steady, and the limits that were named before and in wrong looks.
    sentence: str
    before: list[str]
    wrong: list[str]
    after_s: float | None
    gone_s: float | None
    pressure: float
    drawn: dict[str, Any]
    repeated: int = 0
    trace: list[str] = field(default_factory=list)


def run_draw(situation: str, number: int, folder: Path) -> Outcome:
    """Play one draw and return what came of it."""
    setup = draw(situation, number)
    with slowed_job(folder, setup) as job:
        time.sleep(_STEADY_S)
        before = [_named(job.look()) for _ in range(_IN_A_ROW)]
        watch = _Pressure()
        job.begin()
        after_s, trace = _wait_for(job, job.has_right_limit, FOUND_S)
        looks = _looks(job, STAYS_S)
        pressure = watch.share()
        job.end()
        gone_s, gone_trace = _wait_for(job, lambda limit: not job.has_right_limit(limit), GONE_S)
    wrong = [look["sentence"] for look in looks if not look["right"]]
    return Outcome(
        right=after_s is not None and not wrong and gone_s is not None,
        sentence=looks[-1]["sentence"],
        before=sorted(set(before)),
        wrong=wrong,
        after_s=after_s,
        gone_s=gone_s,
        pressure=pressure,
        drawn=_short(setup),
        trace=[*trace, "--", *gone_trace],
    )


def _wait_for(
    job: SlowedJob, holds: Callable[[dict[str, Any]], bool], timeout_s: float
) -> tuple[float | None, list[str]]:
    """Return when it began to hold in three looks in a row, None if not in time, and what was named meanwhile."""
    began_s, since_s, row, trace = time.monotonic(), 0.0, 0, []
    while True:
        limit, now_s = job.look(), time.monotonic() - began_s
        trace.append(_named(limit))
        row = row + 1 if holds(limit) else 0
        if row == 1:
            since_s = now_s
        if row == _IN_A_ROW:
            return (round(since_s, 1) if since_s <= timeout_s else None), trace
        if now_s > timeout_s + _IN_A_ROW * _LOOK_S and not row:
            return None, trace
        time.sleep(_LOOK_S)


def _looks(job: SlowedJob, over_s: float) -> list[dict[str, Any]]:
    looks, until_s = [], time.monotonic() + over_s
    while time.monotonic() < until_s:
        look = job.look()
        looks.append(look | {"right": job.has_right_limit(look)})
        time.sleep(_LOOK_S)
    return looks


def _named(limit: dict[str, Any]) -> str:
    return f"{limit['limit']} {limit['who']}".strip()


def _short(setup: Setup) -> dict[str, Any]:
    names = ("step_s", "workers", "prefetch", "rows", "during")
    return {name: value for name, value in asdict(setup).items() if name in names}


class _Pressure:
    """The share of the time since it was made in which something on this machine waited for a CPU."""

    def __init__(self) -> None:
        self._began_s, self._began_us = time.monotonic(), self._total_us()

    def share(self) -> float:
        """Return the share, 0 if the system does not tell."""
        return round((self._total_us() - self._began_us) / 1e6 / (time.monotonic() - self._began_s), 2)

    @staticmethod
    def _total_us() -> int:
        try:
            line = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        except OSError:  # a kernel without it
            return 0
        return int(line.rpartition("=")[2])


# --- gains ---


def measure_gains(situation: str, number: int, folder: Path) -> dict[str, Any]:
    """Play a draw with its trouble, with one more worker and with twice the window; return predicted and measured."""
    setup = draw(situation, number)
    rate, limit = _steady(folder / "now", setup)
    worker, _ = _steady(folder / "worker", replace(setup, workers=setup.workers + 1))
    window, _ = _steady(folder / "window", replace(setup, prefetch=2 * setup.prefetch))
    predicted = limit["gains"] or {}
    return {
        "rate": round(rate, 2),
        "sentence": limit["sentence"],
        "worker_more": {"predicted": predicted.get("worker_more"), "measured": round(worker / rate - 1, 3)},
        "twice_the_window": {"predicted": predicted.get("twice_the_window"), "measured": round(window / rate - 1, 3)},
    }


def _steady(folder: Path, setup: Setup) -> tuple[float, dict[str, Any]]:
    """Return the batches a second of a job with its trouble, the median of three, and its limit at the end."""
    folder.mkdir()
    with slowed_job(folder, setup) as job:
        job.begin()
        time.sleep(_STEADY_S)
        rates = []
        for _ in range(_GAIN_LOOKS):
            began_s, began = time.monotonic(), job.trainers.taken()
            time.sleep(_GAIN_S)
            rates.append((job.trainers.taken() - began) / (time.monotonic() - began_s))
        return median(rates), job.look()


# --- all draws ---


def main() -> int:
    """Run the command."""
    options = _parser().parse_args()
    if options.play:
        situation, number, what = options.play.split(":")
        with tempfile.TemporaryDirectory(prefix="stoker-bottleneck-") as folder:
            if what == "gains":
                print(json.dumps(measure_gains(situation, int(number), Path(folder))))
            else:
                print(json.dumps(asdict(run_draw(situation, int(number), Path(folder)))))
        return 0
    if reason := why_no_namespaces("--net"):
        print(f"bottlenecks: {reason}", file=sys.stderr)
        return 2
    names = options.situation.split(",") if options.situation else list(SITUATIONS)
    report = _all(names, options.draws, options.at_once, gains=options.gains)
    print(json.dumps(report) if options.json else _table(report))
    return 0 if report["right"] == report["of"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.bottlenecks")
    parser.add_argument("--situation", help="some of them, with commas between")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--gains", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    return parser


def _all(names: Sequence[str], draws: int, at_once: int, *, gains: bool) -> dict[str, Any]:
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = {
            name: [pool.submit(play_patiently, name, number) for number in range(draws)]
            for name in names
            if name not in _ALONE
        }
        measured = {name: pool.submit(_apart, name, 0, "gains") for name in _WITH_GAINS if gains}
        found_of = {name: [future.result() for future in futures] for name, futures in outcomes.items()}
        gained = {name: future.result() for name, future in measured.items()}
        # These take CPU from all others, so they come last and one after the other.
        found_of |= {name: [play_patiently(name, number) for number in range(draws)] for name in _ALONE & set(names)}
        situations = {}
        for name, found in found_of.items():
            situations[name] = {
                "said": [outcome["sentence"] for outcome in found],
                "right": sum(outcome["right"] for outcome in found),
                "after_s": [outcome["after_s"] for outcome in found],
                "gone_s": [outcome["gone_s"] for outcome in found],
                "pressure": [outcome["pressure"] for outcome in found],
                "repeated": [outcome["repeated"] for outcome in found],
                "draws": found,
            }
    right = sum(situation["right"] for situation in situations.values())
    return {"situations": situations, "gains": gained, "right": right, "of": draws * len(situations)}


def play_patiently(situation: str, number: int) -> dict[str, Any]:
    """Play a draw, and play it again if it went wrong on a busy machine."""
    for repeated in range(_MOST_REPEATS + 1):
        outcome = _apart(situation, number, "draw") | {"repeated": repeated}
        verdict = "right" if outcome["right"] else "WRONG"
        print(f"{situation} {number}: {verdict} {outcome}", file=sys.stderr, flush=True)
        if outcome["right"] or outcome["pressure"] < _DISTURBED:
            break
    return outcome


def _apart(situation: str, number: int, what: str) -> dict[str, Any]:
    """Run one thing in a process and a network namespace of its own."""
    # Packets as on a network: those of the loopback are longer than what a slowed one passes at a time.
    program = f'"{sys.executable}" -m tests.faults.bottlenecks --play {situation}:{number}:{what}'
    command = f"ip link set lo mtu 1500 up && exec {program}"
    ended = subprocess.run(
        ["unshare", "--net", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{situation} {number}: {ended.stderr[-3000:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{name:22} {situation['right']} right, after {situation['after_s']} s, gone after {situation['gone_s']} s"
        for name, situation in report["situations"].items()
    ]
    return "\n".join([*lines, f"{report['right']} of {report['of']}"])


if __name__ == "__main__":
    sys.exit(main())
