"""`trainer-client train --strategy parameter-server`: the part of each process, by its role.

Rules: all processes have the same arguments, and the environment says which is which.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from shared.endpoints import is_loopback
from shared.errors import SettingsError
from shared.keys import ClientKeys, ServerKeys
from shared.quick_import import quick_import
from trainer_client.arguments import USUAL_STALENESS
from trainer_client.roles import role

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.cluster_role import Role
    from trainer_client.training.runs.until import Until
    from trainer_client.training.servers.served_loop import ServedSettings
    from trainer_client.training.servers.server_connections import ServerConnections
    from trainer_client.training.strategies.options import StrategyOptions

__all__ = ["connections_to", "epochs_of", "role_with_servers", "serve_share", "steps_of", "worker_settings"]


#: The usual --pull-every: before each step.
_PULL_EVERY = 1


def role_with_servers() -> Role:
    """Return this process's role; raise SettingsError unless its cluster has parameter servers.

    An evaluator has no part either. Raise SettingsError too if the environment gives no role, or an impossible one.
    """
    place = role()
    if not place.ps_hosts or place.is_evaluator:
        got = "an evaluator" if place.is_evaluator else "no hosts of parameter servers"
        raise SettingsError(
            expected="a worker or a parameter server of a cluster with both", got=got,
            where="--strategy parameter-server",
            remedy="Set TF_CONFIG, or JOB_NAME, TASK_INDEX, WORKER_HOSTS and PS_HOSTS, in each process.",
        )  # fmt: skip
    return place


def serve_share(place: Role, keys: str, make_optimizer: Callable[[], Any], server_memory: float | None = None) -> None:
    """Run a parameter server until the run is over, and print its address first; its memory is in MiB, if limited.

    Raise SettingsError if it would be reachable beyond loopback without keys, if keys are missing or unusable, if an
    address is none or its own cannot be bound, and MachineError if this process may have too few open files or too
    little memory. Errors of `serve`, such as those of `make_optimizer`, are passed on.
    """
    with quick_import():
        from trainer_client.training.servers.service import ParameterServer
        from trainer_client.training.servers.share_store import ShareStore
    endpoint = f"tcp://{place.ps_hosts[place.index]}"
    if not keys and not is_loopback(endpoint):
        raise SettingsError(
            expected="keys, or loopback addresses",
            got=f"{endpoint} without keys: anybody who reaches it could change the model",
            where="--strategy parameter-server",
            remedy="Name a folder of keys, made with `loader-server keys`: --keys.",
        )  # fmt: skip
    own_keys = client_keys(keys)
    pairs = (ServerKeys.read(keys, "trainer"), own_keys) if own_keys is not None else None
    # Only the first server gives orders, so only it needs to know the others.
    others = [f"tcp://{host}" for host in place.ps_hosts[1:]] if place.index == 0 else []
    store = ShareStore(make_optimizer, _bytes_of(server_memory))
    server = ParameterServer(_bindable(endpoint), store, is_first=place.index == 0, others=others, keys=pairs)
    try:
        print(f"SERVING: share {place.index + 1} of {len(place.ps_hosts)} at {endpoint}", flush=True)
        server.serve()
    finally:
        server.close()


def client_keys(keys: str) -> ClientKeys | None:
    """Return the keys that a trainer shows to parameter servers; None without a folder of keys.

    Raise SettingsError if the folder lacks them, or a key is unusable.
    """
    return ClientKeys.read(keys, "trainer", to="trainer") if keys else None


def connections_to(place: Role, keys: str, lost_timeout_s: float) -> ServerConnections:
    """Return a worker's connections to all parameter servers.

    Raise SettingsError if a folder of keys lacks them, or if an address is none, and zmq.ZMQError if libzmq refuses.
    They are not up yet: `ask` raises LostError for a server that does not answer within `lost_timeout_s`.
    """
    from trainer_client.training.servers.server_connections import ServerConnections

    return ServerConnections([f"tcp://{host}" for host in place.ps_hosts], client_keys(keys), lost_timeout_s)


def worker_settings(place: Role, options: StrategyOptions, until: Until) -> ServedSettings:
    """Return a worker's settings from the options of the command line, with usual values for those not given.

    Raise SettingsError for a number of steps that counts from a checkpoint, such as +1.
    """
    from trainer_client.training.servers.served_loop import ServedSettings
    from trainer_client.training.servers.served_model import SharesSettings

    staleness = USUAL_STALENESS if options.staleness is None else options.staleness
    return ServedSettings(
        is_chief=place.is_master,
        pull_every=options.pull_every or _PULL_EVERY,
        shares=SharesSettings(staleness=staleness, most=steps_of(until), memory=_bytes_of(options.server_memory)),
        workers=place.world,
    )


def _bytes_of(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else int(mebibytes * 2**20)


def _bindable(endpoint: str) -> str:
    """Return the endpoint to bind: as it is if its host is an address or loopback, else all interfaces at its port.

    Other host names cannot be bound. Raise SettingsError if a name and port make no endpoint; no address is checked.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return endpoint if is_loopback(endpoint) else f"tcp://*:{port}"
    return endpoint


def epochs_of(until: Until) -> int | None:
    """Return the number of epochs in all, or None; every worker has to know the same.

    Raise SettingsError for a number that counts from a checkpoint, such as +1.
    """
    return _absolute(until.epochs, "--epochs")


def steps_of(until: Until) -> int:
    """Return the number of steps of all workers together; 0: any number.

    Raise SettingsError for a number that counts from a checkpoint, such as +1.
    """
    return _absolute(until.steps, "--steps") or 0


def _absolute(limit: int | str | None, where: str) -> int | None:
    if limit is not None and str(limit).startswith("+"):
        raise SettingsError(
            expected="a number that is the same for all workers", got=str(limit), where=where,
            remedy="Write how many there are in all.",
        )  # fmt: skip
    return None if limit is None else int(limit)
