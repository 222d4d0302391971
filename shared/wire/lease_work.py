"""Kinds of work on leased batches in queue mode, and the plan's epoch for each. Pure."""

from __future__ import annotations

__all__ = ["MEASURE", "MOST_LEASES", "VERIFY", "VERIFY_WANTS", "WORK", "plan_epoch"]

#: Kinds of work. The last has no batches: its one lease elects the trainer that acts once when training is over.
WORK = ("train", "evaluate", "predict", "train-end")

#: Work of a load test, in lockstep only: it reads as a trainer does, but takes no rank from trainers.
MEASURE = "measure"

#: Work of `trainer-client verify`, on any stream: it reads batches by their numbers, and is no trainer.
VERIFY = "verify"

#: Most open wants of a verifier.
VERIFY_WANTS = 2

#: Most leases that a trainer holds, or reports in one message.
MOST_LEASES = 64


def plan_epoch(work: str, epoch: int) -> int:
    """Return the plan's epoch for a kind of work: training orders each epoch anew, other work always uses epoch 0."""
    return epoch if work == "train" else 0
