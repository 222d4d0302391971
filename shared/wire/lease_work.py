"""What trainers do with the batches that they lease in queue mode, and of which epoch of the plan these are. Pure."""

from __future__ import annotations

__all__ = ["MEASURE", "MOST_LEASES", "VERIFY", "VERIFY_WANTS", "WORK", "plan_epoch"]

#: The kinds of work. The last is no batch: one trainer does what is to be done once when training is over.
WORK = ("train", "evaluate", "predict", "train-end")

#: What a load test does, in lockstep only: it reads as a trainer does, and takes a rank from nobody who trains.
MEASURE = "measure"

#: What `trainer-client verify` does, on any stream: it reads batches by their numbers, and is no trainer.
VERIFY = "verify"

#: The most wants that a verifier has open.
VERIFY_WANTS = 2

#: The most leases that a trainer holds, or tells of, at a time.
MOST_LEASES = 64


def plan_epoch(work: str, epoch: int) -> int:
    """The plan's epoch: to train, each has its own order; to evaluate and to predict, each is the same."""
    return epoch if work == "train" else 0
