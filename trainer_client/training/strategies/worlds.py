"""Checks that the ranks of a feed are the replicas of a strategy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shared.cluster_role import has_place
from shared.errors import SettingsError
from trainer_client.roles import role

if TYPE_CHECKING:
    from trainer_client.feed import Feed

__all__ = ["refuse_cluster", "refuse_other_world", "refuse_queue"]


def refuse_queue(feed: Feed, strategy: str) -> None:
    """Raise SettingsError for a stream in queue mode, whose batches are leased."""
    session = feed._session
    session.cursor.refuse_queue(
        SettingsError(
            expected='mode = "lockstep"', got=f'{session.spec.stream}, of mode = "queue"',
            where=f"--strategy {strategy}",
            remedy="Train on another stream, or with --strategy single, which takes leases.",
        )
    )  # fmt: skip


def refuse_other_world(feed: Feed, strategy: str, *, replicas: int, world: int) -> None:
    """Raise SettingsError if the feed has other ranks than `replicas` of `world`."""
    session = feed._session
    if (session.ranks.replicas, session.ranks.world) != (replicas, world):
        raise SettingsError(
            expected=f"a feed of {replicas} of {world} ranks, one for each replica",
            got=f"one of {session.ranks.replicas} of {session.ranks.world}", where=f"--strategy {strategy}",
            remedy="Connect with the placement's ranks: connect(..., **placement.ranks).",
        )  # fmt: skip


def refuse_cluster(strategy: str) -> None:
    """Raise SettingsError if this is one of several processes, as they would exchange no gradients."""
    if has_place(os.environ) and role().world > 1:
        raise SettingsError(
            expected="one process", got=f"one of {role().world}, as the environment says",
            where=f"--strategy {strategy}",
            remedy="Take --strategy multi-worker, or unset TF_CONFIG and JOB_NAME: each of these processes would train "
            "a model of its own.",
        )  # fmt: skip
