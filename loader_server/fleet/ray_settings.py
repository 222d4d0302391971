"""A job's fleet in Ray: its options, the command lines and files of its processes, and how many workers it has.

Rules: pure. The arguments of an actor are few and small, because Ray keeps small ones with the actor itself, which it
can then start again on any node; a large one would lie in the store of a node, and be lost with it (ray #53727). Keys
pass through Ray only if it asks everybody for a token. Batches never pass through Ray.

In command lines stand `{facts}`, `{parent}`, `{listen}`, `{folder}` and `{address}`: what only the node knows.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import require

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "COORDINATOR_KEYS", "MOST_ARGUMENT_BYTES", "WORKER_KEYS", "Orders", "RaySettings", "WorkerRange", "actor_resources",
    "parse_table", "refuse_open_ray",
]  # fmt: skip

#: Largest argument of an actor: Ray keeps up to 100 KiB of arguments with the actor.
MOST_ARGUMENT_BYTES = 64 * 1024
#: Largest number of workers of a job.
_MOST_WORKERS = 4096

#: The files of a folder of keys that a coordinator and its workers need, beside those below `allowed`.
COORDINATOR_KEYS = ("coordinator.key_secret",)
WORKER_KEYS = ("worker.key_secret", "coordinator.key")

_RANGE = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?", re.ASCII)

#: Options by which a process ends with the one that started it, and reports to it.
_WATCHED, _REPORTING = ("--parent", "{parent}"), ("--ready-fd", "{facts}")


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """The least and the most workers that a job may have."""

    least: int
    most: int

    @staticmethod
    def parse(text: str) -> WorkerRange:
        """Return the range that `4` or `2:16` names.

        Raise SettingsError for other text, and unless 1 <= least <= most <= 4096.
        """
        found = _RANGE.fullmatch(text)
        least, most = (int(found[1]), int(found[2] or found[1])) if found is not None else (0, 0)
        require(
            1 <= least <= most <= _MOST_WORKERS,
            expected=f"a number of workers, or the least and the most, such as 2:16, from 1 to {_MOST_WORKERS}",
            got=repr(text),
            where="--workers",
            remedy="Write --workers 4 for a fixed number, or --workers 2:16.",
        )
        return WorkerRange(least, most)

    def size(self, wanted: int | None, present: int) -> int:
        """Return how many workers to have: those wanted, within the range; the present number while none is known."""
        return min(self.most, max(self.least, present if wanted is None else wanted))

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"


def parse_table(text: str, where: str) -> dict[str, Any]:
    """Return the table that an option gives as JSON, as Ray's own commands take it; "" gives an empty one.

    Raise SettingsError if it is no JSON object.
    """
    try:
        table = json.loads(text or "{}")
    except ValueError as error:
        table = str(error)
    require(
        isinstance(table, dict),
        expected='a table as JSON, such as {"loader": 1}',
        got=table if isinstance(table, str) else text,
        where=where,
        remedy="Quote it for the shell with single quotes.",
    )
    return dict(table)


def actor_resources(num_cpus: float, resources: str, label_selector: str) -> dict[str, Any]:
    """Return what each worker takes of its node, by the names that Ray's actors have for it.

    Raise SettingsError unless the cores are a number from 0 on, each resource is a number above 0, none has a fifth
    decimal, and each label is a text.
    """
    amounts = parse_table(resources, "--resources")
    labels = parse_table(label_selector, "--label-selector")
    are_amounts = all(_is_amount(amount) and amount > 0 for amount in amounts.values())
    require(
        _is_amount(num_cpus) and num_cpus >= 0,
        expected="a number of cores from 0 on, with at most four decimals",
        got=f"{num_cpus:g}",
        where="--num-cpus",
        remedy="Write --num-cpus 1.",
    )
    require(
        are_amounts and not amounts.keys() & {"CPU", "GPU", "memory"},
        expected='amounts above 0, with at most four decimals, of your own resources, such as {"loader": 1}',
        got=resources,
        where="--resources",
        remedy="Name resources that nodes were started with (ray start --resources); --num-cpus says the cores.",
    )
    require(
        all(isinstance(value, str) for value in labels.values()),
        expected='labels of nodes, such as {"pool": "loaders"}',
        got=label_selector,
        where="--label-selector",
        remedy="Write label and value as texts.",
    )
    return {"num_cpus": num_cpus, "resources": amounts, "label_selector": labels}


def _is_amount(value: object) -> bool:
    """Return whether Ray takes a number as an amount: it refuses a fifth decimal, but only as an actor is made."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return round(value, 4) == value


def refuse_open_ray(*, has_token: bool, insecure: bool, folder: str) -> None:
    """Raise SettingsError if a folder's keys would pass through a Ray that everybody can talk to."""
    require(
        has_token or insecure,
        expected="a Ray that asks for a token, as the job's keys are sent through it",
        got="one without token authentication",
        where=f"keys, {folder}",
        remedy="Start Ray with RAY_AUTH_MODE=token on all nodes and here; or put the keys on each node and name their "
        "folder there by --keys; or write --insecure to send them openly.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The orders of the process that keeps a coordinator or worker on its node."""

    #: Command lines of `loader-server`: all but the last are run to their end, one by one; the last is kept running.
    commands: tuple[tuple[str, ...], ...]
    #: Contents of files below the process's own folder, by name.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Where to serve at first; a restarted process serves where its predecessor did.
    listen: str = ""
    #: Whether it is the end of the job if the command ends with exit code 0, instead of a reason to restart it.
    ends_job: bool = False

    def line(self) -> str:
        """Return the orders as a line of JSON; raise SettingsError if it is too large for an argument of an actor."""
        facts = {"commands": self.commands, "files": dict(self.files), "listen": self.listen, "ends_job": self.ends_job}
        text = json.dumps(facts) + "\n"
        require(
            len(text.encode()) <= MOST_ARGUMENT_BYTES,
            expected=f"at most {MOST_ARGUMENT_BYTES} bytes for each actor, keys included",
            got=f"{len(text.encode())} bytes",
            where="what is sent through Ray",
            remedy="Put the keys on each node, and name their folder there by --keys.",
        )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Settings of a job in Ray; paths are those of the nodes."""

    #: The job file.
    job: str
    listen: str = "tcp://0.0.0.0:*"
    #: A folder of keys that each node has; empty: those in the files below are sent, or there are none.
    keys: str = ""
    coordinator_files: Mapping[str, str] = field(default_factory=dict)
    worker_files: Mapping[str, str] = field(default_factory=dict)
    #: Further options of `loader-server run ENDPOINT`.
    joining: tuple[str, ...] = ()
    insecure: bool = False
    log_level: str = "info"

    def coordinator_orders(self) -> Orders:
        """Return the orders of the coordinator's process."""
        watched = (*_WATCHED, *_REPORTING, "--log-level", self.log_level)
        serving = ("--listen", "{listen}", "--advertise", "{address}")
        return Orders(
            commands=(
                ("index", self.job, "--missing", *watched),
                ("coordinator", self.job, *serving, *watched, *self._security(self.coordinator_files)),
            ),
            files=self.coordinator_files,
            listen=self.listen,
            ends_job=True,
        )

    def worker_orders(self, endpoint: str) -> Orders:
        """Return the orders of a worker's process; it begins with this endpoint of the coordinator."""
        joining = ("file://{folder}/endpoint", "--workers", "1", "--state", "{folder}/state", *self.joining)
        watched = ("--advertise", "{address}", *_WATCHED, "--log-level", self.log_level)
        return Orders(
            commands=(("run", *joining, *watched, *self._security(self.worker_files)),),
            files={**self.worker_files, "endpoint": f"{endpoint}\n"},
        )

    def _security(self, files: Mapping[str, str]) -> tuple[str, ...]:
        """Return the options for keys that are on the nodes or among the files that are sent, and `--insecure`."""
        folder = self.keys or ("{folder}/keys" if files else "")
        return (*(("--keys", folder) if folder else ()), *(("--insecure",) if self.insecure else ()))
