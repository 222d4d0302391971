"""TensorFlow's view of a role: its server, its cluster resolver, and the devices of its variables.

Rules: task types have TensorFlow 2's names (the master is the chief). It must not read the environment: a role has
everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.cluster_role import Role

__all__ = ["cluster_resolver", "device_function", "start_server"]


def cluster_resolver(role: Role) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Return the cluster resolver of a role, to give to a `tf.distribute` strategy.

    Args:
        role: What `role()` returned.

    Returns:
        A resolver with the role's cluster, which is empty without hosts, task type and index.

    Example:
        >>> place = trainer_client.role(job_name="worker", task_index=1, worker_hosts="a:2222,b:2222")
        >>> trainer_client.cluster_resolver(place).task_id
        1
    """
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(role.cluster), task_type=role.task_type, task_id=role.index, rpc_layer="grpc"
    )


def start_server(role: Role) -> tf.distribute.Server:
    """Start TensorFlow's server at this role's own address; a parameter server then calls its `join()`.

    Errors of TensorFlow are passed on, such as for an address that is taken.

    Args:
        role: What `role()` returned.

    Returns:
        The running server.

    Raises:
        SettingsError: The role has no address in a cluster: an evaluator, or a process that is alone.

    Example:
        >>> place = trainer_client.role(job_name="worker", worker_hosts=free_host)
        >>> trainer_client.start_server(place).target == f"grpc://{free_host}"
        True
    """
    if role.is_evaluator or not role.cluster:
        got = "an evaluator, which works alone" if role.is_evaluator else "a role on one machine, without hosts"
        raise SettingsError(
            expected="a role with an address in its cluster", got=got, where="start_server",
            remedy="Start servers in masters, workers and parameter servers of a cluster.",
        )  # fmt: skip
    return tf.distribute.Server(tf.train.ClusterSpec(role.cluster), job_name=role.task_type, task_index=role.index)


def device_function(role: Role) -> Callable[[Any], str]:
    """Return a device function that puts variables on the parameter servers in turn, the rest on this process.

    Args:
        role: What `role()` returned.

    Returns:
        A function for `tf.compat.v1.device` in a graph. Without parameter servers it puts everything on this process;
        without a cluster it chooses no device.

    Example:
        >>> import tensorflow as tf
        >>> place = trainer_client.role(job_name="worker", ps_hosts="a:2222", worker_hosts="b:2222")
        >>> with tf.Graph().as_default(), tf.compat.v1.device(trainer_client.device_function(place)):
        ...     tf.compat.v1.get_variable("v", [1], use_resource=True).device
        '/job:ps/task:0'
    """
    if not role.cluster:
        return lambda _operation: ""
    own = f"/job:{role.task_type}/task:{role.index}"
    setter = tf.compat.v1.train.replica_device_setter(
        ps_tasks=len(role.ps_hosts), ps_device="/job:ps", worker_device=own
    )
    return setter or (lambda _operation: own)
