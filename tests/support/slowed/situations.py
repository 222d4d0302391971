"""The situations in which a job is limited by one thing: what is drawn for each, what slows down, and what is right.

Rules: pure. Delays are drawn around the step, so that before the trouble trainers are the limit, unless the situation
says otherwise, and the trouble takes a large part of the rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from shared.stations.service_times import READ_AT_A_TIME
from tests.support.slowed.parts import BANDS, STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["SITUATIONS", "Setup", "draw"]

#: What the slowed connection carries.
WIRE_BITS_S = 60e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A job, and its trouble: delays in seconds a batch, or what else happens to the processes."""

    #: The limits of which any is right during the trouble, and whether a worker or rank has to be named.
    right: tuple[str, ...]
    names: str = ""
    step_s: float
    prefetch: int
    rows: int
    workers: int
    source: str = "SlowlyRead"
    #: Delays of a batch before and during the trouble, by name.
    before: Mapping[str, float] = field(default_factory=dict)
    during: Mapping[str, float] = field(default_factory=dict)
    #: One of wire, host, worker, stopped, pause and nothing.
    trouble: str = ""
    ranks: int = 1
    in_slots: bool = True
    collective: bool = False
    tells: bool = False
    #: Whether trainers have memory for their window only, so that it cannot grow.
    is_pinned: bool = False

    @property
    def prefetch_bytes(self) -> int:
        """Return the memory for batches that a trainer has."""
        batch_bytes = self.rows * (STEPS * BANDS * 4 + 20)
        # Beside its window a feed has seven slots: six for hands, and a reserve.
        return int((self.prefetch + 7.5) * batch_bytes) if self.is_pinned else 2**30


def _drawn(random: Random, *, workers: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    return {
        "step_s": round(random.uniform(0.025, 0.05), 4),
        "workers": random.choice(workers),
        "prefetch": random.choice((8, 12, 16, 24)),
        "rows": random.choice((4, 8, 12)),
    }


def _slower(random: Random) -> float:
    """Return how many times longer than its share of a step the slowed station takes."""
    return random.uniform(1.5, 3.0)


def _own_class(random: Random) -> Setup:
    drawn = _drawn(random)
    slow_s = _slower(random) * drawn["step_s"] * drawn["workers"]
    return Setup(right=("transforms",), source="Features", during={"own_s": slow_s}, **drawn)


def _slow_read(random: Random) -> Setup:
    drawn = _drawn(random, workers=(1, 2))
    # With a smaller window not all readers have something to do, and the window is the limit.
    drawn["prefetch"] = 12 * drawn["workers"]
    slow_s = _slower(random) * drawn["step_s"] * drawn["workers"] * READ_AT_A_TIME
    return Setup(right=("reads",), during={"read_s": slow_s}, **drawn)


def _small_window(random: Random) -> Setup:
    drawn = _drawn(random)
    # Of each worker's four readers three have something to do, and a window twice as large keeps all of them busy.
    drawn["workers"], drawn["prefetch"] = 3, 9
    slow_s = _slower(random) * drawn["step_s"] * drawn["workers"] * READ_AT_A_TIME
    return Setup(right=("window", "reads"), during={"read_s": slow_s}, is_pinned=True, **drawn)


def _slow_store(random: Random) -> Setup:
    drawn = _drawn(random, workers=(1, 2))
    drawn["prefetch"] = 12 * drawn["workers"]
    # Each sample is a request, and the store is Python: more of them would make it slow before the trouble.
    drawn["rows"], drawn["step_s"] = 4, 2 * drawn["step_s"]
    slow_s = _slower(random) * drawn["step_s"] * drawn["workers"] * READ_AT_A_TIME
    return Setup(right=("reads",), source="store", during={"store_s": slow_s}, **drawn)


def _slow_transform(random: Random) -> Setup:
    drawn = _drawn(random)
    slow_s = _slower(random) * drawn["step_s"] * drawn["workers"]
    return Setup(right=("transforms",), during={"transform_s": slow_s}, **drawn)


def _full_host(random: Random) -> Setup:
    drawn = _drawn(random, workers=(2, 3))
    spin_s = random.uniform(0.7, 0.9) * drawn["step_s"] * drawn["workers"]
    return Setup(right=("host",), during={"spin_s": spin_s}, trouble="host", **drawn)


def _slow_wire(random: Random) -> Setup:
    drawn = _drawn(random)
    wire_s = _slower(random) * drawn["step_s"]
    drawn["rows"] = max(1, round(wire_s * WIRE_BITS_S / 8 / (STEPS * BANDS * 4)))
    return Setup(right=("wire",), trouble="wire", in_slots=False, **drawn)


def _slow_step(random: Random) -> Setup:
    drawn = _drawn(random)
    build_s = 1.5 * drawn["step_s"] * drawn["workers"]
    slow_s = _slower(random) * 1.5 * drawn["step_s"]
    before, during = {"transform_s": build_s}, {"transform_s": build_s, "rank-0-step_s": slow_s}
    return Setup(right=("trainers",), before=before, during=during, **drawn)


def _hindered_worker(trouble: str) -> Callable[[Random], Setup]:
    def make(random: Random) -> Setup:
        drawn = _drawn(random, workers=(2, 3))
        build = {"transform_s": random.uniform(1.1, 1.5) * drawn["step_s"] * drawn["workers"]}
        return Setup(right=("worker",), names="worker", before=build, during=build, trouble=trouble, **drawn)

    return make


def _slow_rank(*, collective: bool) -> Callable[[Random], Setup]:
    def make(random: Random) -> Setup:
        drawn = _drawn(random, workers=(2, 3))
        slow = {"rank-1-step_s": _slower(random) * drawn["step_s"]}
        return Setup(
            right=("rank",), names="rank", during=slow, ranks=2, collective=collective, tells=collective, **drawn
        )

    return make


def _nobody(random: Random) -> Setup:
    return Setup(right=("nobody",), during={"pause": 1.0}, **_drawn(random))


SITUATIONS: dict[str, Callable[[Random], Setup]] = {
    "own_class": _own_class,
    "slow_read": _slow_read,
    "slow_store": _slow_store,
    "slow_transform": _slow_transform,
    "full_host": _full_host,
    "slow_wire": _slow_wire,
    "slow_step": _slow_step,
    "slow_worker": _hindered_worker("worker"),
    "stopped_worker": _hindered_worker("stopped"),
    "slow_rank_collective": _slow_rank(collective=True),
    "slow_rank_alone": _slow_rank(collective=False),
    "nobody": _nobody,
}


#: Played for their gains only: either of two limits is right.
_FOR_GAINS = {"small_window": _small_window}


def draw(situation: str, number: int) -> Setup:
    """Return what is drawn for a situation with this seed, the same each time."""
    return (SITUATIONS | _FOR_GAINS)[situation](Random(f"{situation} {number}"))
