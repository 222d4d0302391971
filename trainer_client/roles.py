"""`role()`: a process's place in its cluster, from flags or the environment; and the ranks that follow from it.

Rules: the environment is read when asked, never at import. It must not know TensorFlow: servers, cluster resolvers and
device functions are in `training.strategies.cluster`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shared.cluster_role import FLAGS, Role, has_place, role_of
from shared.errors import require
from trainer_client.core.upcoming import Ranks
from trainer_client.network.trainer_log import process_log

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Role", "ranks_in_world", "role"]


def role(  # noqa: PLR0913 - each is a flag with a default
    *,
    job_name: str | None = None,
    task_index: int | None = None,
    ps_hosts: str | Sequence[str] | None = None,
    worker_hosts: str | Sequence[str] | None = None,
    master_host: str | None = None,
    last_worker_evaluates: bool = False,
) -> Role:
    """Return what this process is in its cluster: master, worker, parameter server (ps) or evaluator.

    From the arguments if there are any, else from `TF_CONFIG`, else from `JOB_NAME`, `TASK_INDEX`, `PS_HOSTS`,
    `WORKER_HOSTS` and `MASTER_HOST`. Hosts are lists, or strings with commas.

    Args:
        job_name: What the process is: `"master"`, `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        task_index: Its number among those of its kind, from 0; not needed if it is the only one.
        ps_hosts: Where the parameter servers are, as `host:port`.
        worker_hosts: Where the workers are.
        master_host: Where the master is, if it is none of the workers.
        last_worker_evaluates: Whether the last worker is the evaluator instead; the same in all processes.

    Returns:
        The role, of which `connect` takes rank and world by itself.

    Raises:
        SettingsError: Neither arguments nor environment give a role, or the values do not fit together.

    Example:
        >>> place = trainer_client.role(job_name="worker", task_index=1, worker_hosts="a:2222,b:2222")
        >>> place.rank, place.world, place.is_master
        (1, 2, False)
    """
    flags = dict(zip(FLAGS.values(), (job_name, task_index, ps_hosts, worker_hosts, master_host), strict=True))
    return role_of(flags, os.environ, last_worker_evaluates=last_worker_evaluates)


def ranks_in_world(rank: int | None, replicas: int, world: int | None) -> Ranks:
    """Return the ranks given to `connect`; without `rank` those of the environment's role, or without one rank 0.

    A `world` that neither gives is `replicas`. Raise SettingsError if `world` contradicts the environment's role, or if
    that is malformed or a parameter server's, which has no rank.
    """
    if rank is not None or not has_place(os.environ):
        return Ranks(rank=rank or 0, replicas=replicas, world=replicas if world is None else world)
    # A process that has replicas has as many ranks, and so has each process of its world.
    place = role()
    ranks = Ranks(rank=place.rank * replicas, replicas=replicas, world=place.world * replicas)
    require(
        world in (None, ranks.world),
        expected=f"world={ranks.world}, as the environment says",
        got=f"world={world}",
        where="connect",
        remedy="Leave world out; or pass rank as well, and the environment is not asked.",
    )
    process_log().info("rank as the environment says", rank=ranks.rank, world=ranks.world, role=place.kind)
    return ranks
