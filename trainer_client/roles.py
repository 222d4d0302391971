"""`role()`: which process of a cluster this one is, from flags or the environment; and the ranks that follow from it.

Rules: the environment is read when asked, never at import. It must not know TensorFlow: servers, cluster resolvers and
device functions are in `tf.cluster`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.logs import Log
from shared.roles import FLAGS, Role, role_of, says_a_place
from trainer_client.core.upcoming import Ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Role", "ranks_said", "role"]


def role(  # noqa: PLR0913 - each is a flag with a default
    *,
    job_name: str = "",
    task_index: int | None = None,
    ps_hosts: str | Sequence[str] = (),
    worker_hosts: str | Sequence[str] = (),
    master_host: str = "",
    last_worker_evaluates: bool = False,
) -> Role:
    """What this process is in its cluster: master, worker, parameter server (ps) or evaluator.

    From the arguments if there are any, else from `TF_CONFIG`, else from `JOB_NAME`, `TASK_INDEX`, `PS_HOSTS`,
    `WORKER_HOSTS` and `MASTER_HOST`. Hosts are lists, or strings with commas. With `last_worker_evaluates`, the last
    worker is the evaluator instead; all processes have to ask for it.
    """
    said = (job_name, task_index, ps_hosts, worker_hosts, master_host)
    return role_of(
        dict(zip(FLAGS.values(), said, strict=True)), os.environ, last_worker_evaluates=last_worker_evaluates
    )


def ranks_said(rank: int | None, replicas: int, world: int) -> Ranks:
    """The ranks given to `connect`, else those of the role in the environment, else the only one."""
    if rank is not None or not says_a_place(os.environ):
        return Ranks(rank=rank or 0, replicas=replicas, world=world or replicas)
    place = role()
    ranks = Ranks(rank=place.rank * replicas, replicas=replicas, world=place.world * replicas)
    if world not in (0, ranks.world):
        raise SettingsError(
            expected=f"world={ranks.world}, as the environment says", got=f"world={world}", where="connect",
            remedy="Leave world out; or pass rank as well, and the environment is not asked.",
        )  # fmt: skip
    Log("trainer").info("rank as the environment says", rank=ranks.rank, world=ranks.world, role=place.kind)
    return ranks
