"""A process's role in its cluster: master, worker, parameter server or evaluator.

Rules: pure; the environment comes in as a mapping. The first of these that is set is the only one that counts: flags,
`TF_CONFIG`, the plain variables `JOB_NAME`, `TASK_INDEX`, `PS_HOSTS`, `WORKER_HOSTS` and `MASTER_HOST`. An empty string
counts as not set. The master counts as a worker and comes before the others; without one, worker 0 is the master.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shared.endpoints import is_connectable
from shared.errors import SettingsError, require
from shared.settings.parsers import nearest

__all__ = ["FLAGS", "Role", "has_place", "role_of"]

Kind = Literal["master", "worker", "ps", "evaluator"]

#: Names of flags, by the fact they give: a task's type and index, and the hosts of each type. Variables in upper case.
FLAGS = {
    "type": "job_name",
    "index": "task_index",
    "ps": "ps_hosts",
    "worker": "worker_hosts",
    "chief": "master_host",
}
_VARIABLES = {fact: name.upper() for fact, name in FLAGS.items()}
_IN_TF_CONFIG = {
    "type": "TF_CONFIG, task.type",
    "index": "TF_CONFIG, task.index",
    **{name: f"TF_CONFIG, cluster.{name}" for name in ("chief", "worker", "ps", "evaluator")},
}

#: Our kinds by the name of the task type: TensorFlow 1 says master, TensorFlow 2 chief.
_KINDS: dict[str, Kind] = {
    "chief": "master", "master": "master", "worker": "worker", "ps": "ps", "evaluator": "evaluator",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A process's place in its cluster; `role()` makes one of arguments or of the environment.

    Args:
        kind: What the process does: `"master"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: Its number among those of its kind.
        master_host: Where the master is; empty if worker 0 is the master.
        worker_hosts: Where the workers are.
        ps_hosts: Where the parameter servers are.

    Example:
        >>> chief = trainer_client.Role(kind="worker", worker_hosts=("a:2222", "b:2222"))
        >>> chief.is_master, chief.rank, chief.world
        (True, 0, 2)
    """

    kind: Kind
    index: int = 0
    master_host: str = ""
    worker_hosts: tuple[str, ...] = ()
    ps_hosts: tuple[str, ...] = ()

    @property
    def is_master(self) -> bool:
        """Return whether it saves, logs and exports, which only one process may; without a master, worker 0 does."""
        return self.kind == "master" or (self.kind == "worker" and self.index == 0 and not self.master_host)

    @property
    def is_worker(self) -> bool:
        """Return whether it trains, as the master does too."""
        return self.kind in ("master", "worker")

    @property
    def is_ps(self) -> bool:
        """Return whether it is a parameter server."""
        return self.kind == "ps"

    @property
    def is_evaluator(self) -> bool:
        """Return whether it evaluates what the others train."""
        return self.kind == "evaluator"

    @property
    def rank(self) -> int:
        """Return its number among those that share the data; the master's is 0.

        An evaluator shares with nobody, so its rank is its index. Raise SettingsError for a parameter server, which
        reads no data.
        """
        require(
            not self.is_ps,
            expected="a role that reads data",
            got=f"parameter server {self.index}",
            where="rank",
            remedy="Connect in masters, workers and evaluators only.",
        )
        return self.index + (1 if self.kind == "worker" and self.master_host else 0)

    @property
    def world(self) -> int:
        """Return the number of processes that share the data, at least 1.

        An evaluator shares with nobody, so its world is 1.
        """
        return 1 if self.is_evaluator else max(1, len(self.worker_hosts) + (1 if self.master_host else 0))

    @property
    def task_type(self) -> str:
        """Return its kind under TensorFlow's name, which is "chief" for the master and the same for the others."""
        return "chief" if self.kind == "master" else self.kind

    @property
    def cluster(self) -> dict[str, list[str]]:
        """Return all hosts by task type, as TensorFlow takes them, without evaluators; empty on one machine.

        Task types without hosts are left out.
        """
        chief = (self.master_host,) if self.master_host else ()
        jobs = {"chief": chief, "worker": self.worker_hosts, "ps": self.ps_hosts}
        return {job: list(hosts) for job, hosts in jobs.items() if hosts}


def has_place(environment: Mapping[str, str]) -> bool:
    """Return whether the environment places this process in a cluster.

    `JOB_NAME` alone does not: other tools set it too.
    """
    return any(environment.get(name) for name in ("TF_CONFIG", *_VARIABLES.values()) if name != "JOB_NAME")


def role_of(flags: Mapping[str, Any], environment: Mapping[str, str], *, last_worker_evaluates: bool = False) -> Role:
    """Return the role given by flags, else by the environment; raise SettingsError if it is missing or impossible.

    With `last_worker_evaluates` the last worker becomes the evaluator; raise SettingsError then if there is an
    evaluator already, or if there are fewer than two workers, the master included.
    """
    facts = _read(flags, environment)
    hosts = {task: facts.hosts(task) for task in ("chief", "worker", "ps", "evaluator")}
    _refuse_impossible(facts, hosts)
    kind = facts.kind(alone=not any(hosts.values()))
    role = Role(
        kind=kind,
        index=facts.index(kind, _places(facts, kind, hosts)),
        master_host="".join(hosts["chief"]),
        worker_hosts=hosts["worker"],
        ps_hosts=hosts["ps"],
    )
    return _with_last_worker_evaluating(facts, role, hosts["evaluator"]) if last_worker_evaluates else role


# --- reading flags and environment ---

_ADDRESSES = "Write host:port for each."


@dataclass(frozen=True, slots=True)
class _RoleFacts:
    """Values from flags, variables or `TF_CONFIG`, with the name of each there for errors."""

    values: Mapping[str, Any]
    names: Mapping[str, str]

    def kind(self, *, alone: bool) -> Kind:
        """Return the task's kind; raise SettingsError if it is missing or unknown.

        A process `alone` in its `TF_CONFIG`, without hosts of others, is the master.
        """
        task = self.values.get("type")
        if not task and alone and self.names is _IN_TF_CONFIG:
            return "master"  # a TF_CONFIG without hosts and task: this is the only process
        if not isinstance(task, str) or task not in _KINDS:
            known = ("master", "chief", "worker", "ps", "evaluator")
            expected = "one of " + ", ".join(known) + (nearest(task, known) if task else "")
            raise self.refusal("type", expected, _shown(task), "Set what this process is.")
        return _KINDS[task]

    def index(self, kind: str, places: int) -> int:
        """Return the task's index, below `places`; raise SettingsError if it is missing or out of range.

        If there is only one place, a missing index is 0.
        """
        value = self.values.get("index")
        if not _is_set(value) and places == 1:
            return 0
        number = _whole(value)
        if number is None or not 0 <= number < places:
            expected = f"the number of a {kind} of {places}, counted from 0" if places > 1 else f"0, the only {kind}"
            raise self.refusal("index", expected, _shown(value), "Number the processes of each kind from 0 on.")
        return number

    def hosts(self, task: str) -> tuple[str, ...]:
        """Return the hosts of a task type, empty if it has none.

        Raise SettingsError if they are neither a list nor a text, or if one is malformed.
        """
        value = self.values.get(task)
        if not _is_set(value):
            return ()
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, Sequence):
            raise self.refusal(task, "a list of hosts, or a text with commas", _shown(value), _ADDRESSES)
        return tuple(self._host(task, host) for host in listed)

    def _host(self, task: str, value: object) -> str:
        """Return a host without surrounding spaces; raise SettingsError if it is malformed."""
        host = value.strip() if isinstance(value, str) else ""
        if not is_connectable(f"tcp://{host}"):
            raise self.refusal(task, "hosts like 10.0.0.7:2222", _shown(value), _ADDRESSES)
        return host

    def refusal(self, fact: str, expected: str, got: str, remedy: str) -> SettingsError:
        return SettingsError(expected=expected, got=got, where=self.names.get(fact, fact), remedy=remedy)


def _is_set(value: object) -> bool:
    """Return whether a value was given; 0 counts as given, because it is the first index."""
    return value not in (None, "", (), [])


def _shown(value: object) -> str:
    return repr(value) if _is_set(value) else "none"


def _whole(value: object) -> int | None:
    """Return a number from an integer or its text of at most 9 digits; None for anything else."""
    # Variables are texts, and TF_CONFIG may hold either. A text of very many digits would take `int` seconds.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read(flags: Mapping[str, Any], environment: Mapping[str, str]) -> _RoleFacts:
    """Return the values of the first source that has any: flags, TF_CONFIG, variables.

    Raise SettingsError if none has, or if that source is a malformed TF_CONFIG.
    """
    # Nothing is completed from another source, which may describe another cluster.
    if any(_is_set(flags.get(name)) for name in FLAGS.values()):
        return _RoleFacts({fact: flags.get(name) for fact, name in FLAGS.items()}, FLAGS)
    if environment.get("TF_CONFIG"):
        return _read_tf_config(environment["TF_CONFIG"])
    if any(environment.get(name) for name in _VARIABLES.values()):
        return _RoleFacts({fact: environment.get(name) for fact, name in _VARIABLES.items()}, _VARIABLES)
    raise SettingsError(
        expected="a role: flags, TF_CONFIG, or JOB_NAME and TASK_INDEX",
        got="none of them",
        where="the environment",
        remedy="Set TF_CONFIG, or JOB_NAME, TASK_INDEX, WORKER_HOSTS, PS_HOSTS and MASTER_HOST; or pass job_name=.",
    )


def _read_tf_config(text: str) -> _RoleFacts:
    """Return the values of `TF_CONFIG`, with "chief" for both names of the master.

    Raise SettingsError if it is malformed, has an unknown task type in its cluster, or names both a chief and a master.
    """
    try:
        config = _object("TF_CONFIG", json.loads(text))
    except ValueError as error:
        raise _not_an_object("TF_CONFIG", f"{text[:40]!r} ({error})") from None
    task = _object("TF_CONFIG, task", config.get("task"))
    cluster = dict(_object("TF_CONFIG, cluster", config.get("cluster")))
    unknown = [name for name in cluster if name not in _KINDS]
    if unknown:
        raise SettingsError(
            expected="hosts of chief, master, worker, ps, evaluator" + nearest(unknown[0], _KINDS),
            got=repr(unknown[0]), where="TF_CONFIG, cluster", remedy="Name no others.",
        )  # fmt: skip
    require(
        not (cluster.get("chief") and cluster.get("master")),
        expected="a chief or a master",
        got="both",
        where="TF_CONFIG, cluster",
        remedy="They are one and the same: keep one of them.",
    )
    # From here on both names are "chief".
    cluster["chief"] = cluster.pop("master", None) or cluster.get("chief")
    return _RoleFacts({"type": task.get("type"), "index": task.get("index"), **cluster}, _IN_TF_CONFIG)


def _object(where: str, value: object) -> Mapping[str, Any]:
    """Return a JSON object, empty if it is null inside `TF_CONFIG`; raise SettingsError if it is something else."""
    if value is None and where != "TF_CONFIG":
        return {}
    if not isinstance(value, Mapping):
        raise _not_an_object(where, repr(value))
    return value


def _not_an_object(where: str, got: str) -> SettingsError:
    return SettingsError(
        expected="a JSON object", got=got, where=where,
        remedy='Write it as {"cluster": {"worker": ["10.0.0.7:2222"]}, "task": {"type": "worker", "index": 0}}.',
    )  # fmt: skip


# --- checking and completing the whole ---


def _refuse_impossible(facts: _RoleFacts, hosts: Mapping[str, Sequence[str]]) -> None:
    """Raise SettingsError if the hosts of a cluster do not fit together.

    That is a host named twice, two masters or evaluators, or parameter servers without workers.
    """
    seen: set[str] = set()
    for task, host in ((task, host) for task, listed in hosts.items() for host in listed):
        if host in seen:
            raise facts.refusal(task, "each host and port once", f"{host} twice", "Give each process its own port.")
        seen.add(host)
    for task, kind in (("chief", "master"), ("evaluator", "evaluator")):
        if len(hosts[task]) > 1:
            raise facts.refusal(task, f"one {kind}", f"{len(hosts[task])} hosts", "Make the others workers.")
    if hosts["ps"] and not hosts["chief"] and not hosts["worker"]:
        raise facts.refusal("worker", "hosts of workers beside parameter servers", "none", "Name who trains.")


def _places(facts: _RoleFacts, kind: Kind, hosts: Mapping[str, Sequence[str]]) -> int:
    """Return the number of processes of this kind, at least 1.

    Raise SettingsError if the cluster names hosts, but none of this kind; evaluators need none, and parameter servers
    always need theirs.
    """
    task = "chief" if kind == "master" else kind
    # An evaluator is no part of TensorFlow's cluster, and a process that is alone needs no hosts.
    if hosts[task] or kind == "evaluator" or (kind != "ps" and not any(hosts.values())):
        return max(1, len(hosts[task]))
    raise facts.refusal(task, f"hosts of the {kind} that this process is", "none", "Name its own host as well.")


def _with_last_worker_evaluating(facts: _RoleFacts, role: Role, evaluators: Sequence[str]) -> Role:
    """Return the role in a cluster whose last worker is the evaluator.

    Raise SettingsError if there is an evaluator already, if there are no workers beside the master, or if there are
    fewer than two workers, the master included.
    """
    if evaluators or role.is_evaluator:
        raise facts.refusal("evaluator", "no evaluator beside the last worker", "one", "Leave one of them out.")
    if not role.worker_hosts or role.world < 2:
        got = f"{role.world}, the master included"
        raise facts.refusal("worker", "two workers or more, so that the last may evaluate", got, "Add a worker.")
    last = len(role.worker_hosts) - 1
    if role.kind == "worker" and role.index == last:
        role = replace(role, kind="evaluator", index=0)
    # In all processes: with the last worker counted, the others would wait for a rank that never comes.
    return replace(role, worker_hosts=role.worker_hosts[:last])
