"""The size and kind of one world, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the world is like before anything fails."""

    timeout_s: float
    workers: int
    hosts: int
    #: Replicas of each trainer of the training stream, at first.
    shares: tuple[int, ...]
    evaluators: int
    #: 0: the world's size at the first start.
    group: int
    sizes: tuple[int, ...]
    dev_size: int
    #: Trainers that share another stream in queue mode, its epochs, and how long they have at least for a batch.
    sharers: int
    shared_sizes: tuple[int, ...]
    lease_s: float
    #: How often a checkpoint of what is done is taken, and one is restored.
    rewinds: float
    #: How often a user fails at a batch.
    failures: float
    build_s: float
    step_s: float
    #: Until a thread that was woken runs, at most.
    turn_s: float
    prefetch: int
    #: Ordinary slots that the byte limit allows, at most.
    slots: int
    shared_memory: bool
    verify: bool
    subset: int
    most_remote: int
    far_s: float
    doubles: float
    interrupts: float
    abandons: float
    saves: float
    #: How long faults come, and the pause between two of them, at most.
    fault_s: float
    pause_s: float
    #: Workers that stay stopped when everything else heals.
    stopped_stay: bool
    #: Whether all workers may refuse one batch for good.
    doomed: bool

    @classmethod
    def of(cls, dice: random.Random) -> Setting:
        """Draw one: small worlds are the most likely, because they meet the ends of their epochs all the time."""
        timeout_s = dice.choice((0.5, 1.0, 2.0))
        workers = dice.choice((1, 1, 2, 2, 2, 3, 3, 4, 6))
        shares = dice.choice(((1,), (1,), (1,), (1,), (2,), (1, 1), (1, 1), (2, 1), (1, 1, 1)))
        prefetch = dice.choice((1, 2, 3, 4, 6))
        subset = dice.choice((1, 2, 3, 16))
        return cls(
            timeout_s=timeout_s,
            workers=workers,
            hosts=dice.choice((1, 1, 2, 3)),
            shares=shares,
            evaluators=dice.choice((0, 0, 0, 0, 1, 1, 1, 2)),
            group=dice.choice((0, 0, sum(shares), sum(shares) + 1)),
            sizes=_sizes(dice),
            dev_size=dice.choice((0, 1, 2, 5)),
            sharers=dice.choice((0, 0, 0, 1, 2, 3)),
            shared_sizes=_sizes(dice),
            lease_s=timeout_s * dice.choice((0.5, 2.0)),
            failures=dice.choice((0.0, 0.03, 0.5)),
            build_s=timeout_s * dice.choice((0.005, 0.02, 0.1)),
            step_s=timeout_s * dice.choice((0.02, 0.1, 0.2)),
            turn_s=dice.choice((0.0005, 0.005, 0.02)),
            prefetch=prefetch,
            slots=dice.choice((2, 3, 4, 6, 10)),
            shared_memory=dice.random() < 0.8,
            verify=dice.random() < 0.3,
            subset=subset,
            most_remote=min(32, 2 * subset),
            far_s=timeout_s * dice.choice((0.0005, 0.005, 0.05)),
            doubles=dice.choice((0.0, 0.0, 0.05)),
            interrupts=dice.choice((0.0, 0.0, 0.05)),
            abandons=dice.choice((0.0, 0.0, 0.05)),
            saves=dice.choice((0.05, 0.2, 1.0)),
            fault_s=timeout_s * dice.choice((0.5, 1.0, 1.5, 2.5)),
            pause_s=timeout_s * dice.choice((0.1, 0.2, 0.4)),
            stopped_stay=dice.random() < 0.2,
            doomed=dice.random() < 0.05,
            rewinds=_apart(dice).choice((0.0, 0.0, 0.1, 0.5)),
        )

    def __str__(self) -> str:
        return ", ".join(f"{setting.name}={getattr(self, setting.name)}" for setting in fields(self))


def _apart(dice: random.Random) -> random.Random:
    """Other dice, for what came later: the seeds that are known to miss a rule still do."""
    return random.Random(str(dice.getstate()))


def _sizes(dice: random.Random) -> tuple[int, ...]:
    """Batches of each epoch, some of none; at least one epoch has some."""
    sizes = [dice.choice((0, 1, 1, 2, 3, 5, 8)) for _ in range(dice.choice((1, 2, 4)))]
    return (*sizes, dice.choice((1, 2, 5)))
