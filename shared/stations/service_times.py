"""How quickly a worker serves wants, from the times that one want takes it.

A worker reads several wants at a time and builds one at a time, so its pace is that of the slower of the two, while a
single want takes the sum of both.

Rules: pure. Workers read by these numbers, trainers deal wants by them, and the closed loop plays by them.
"""

from __future__ import annotations

__all__ = ["READ_AT_A_TIME", "pace_s", "wants_at_a_time"]

#: Reader threads of a worker: enough to keep a disk busy, few enough to leave the core to the builder.
READ_AT_A_TIME = 4


def pace_s(read_s: float, build_s: float) -> float:
    """Return the seconds from one finished want to the next of a worker that always has enough to do."""
    return max(build_s, read_s / READ_AT_A_TIME)


def wants_at_a_time(read_s: float, build_s: float) -> float:
    """Return how many wants a worker has to hold to go at its pace: from 1 to one more than it reads at a time.

    Return 1 if no time is known.
    """
    return (read_s + build_s) / pace_s(read_s, build_s) if read_s > 0 or build_s > 0 else 1.0
