"""The report that `loader-server status` shows, for people and scripts.

Rules: pure. A report that is too long for a message is cut, and says how many entries were left out. What limits a job
is derived from what trainers report, because only they know whether they wait.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
    from loader_server.coordinator.workers import RegisteredWorker

__all__ = ["MOST_CHARACTERS", "limit_of", "stream_report", "text_of", "worker_report"]

#: Length limit of the text that a `Status` message carries.
MOST_CHARACTERS = 2**19

#: Trainers that wait for less than this are practically never without data.
_NOTICEABLE_PERMILLE = 50


def limit_of(waited_permille: float | None) -> str | None:
    """Return the bottleneck of the job, "loaders" or "trainers"; None if nobody reads."""
    if waited_permille is None:
        return None
    return "loaders" if waited_permille >= _NOTICEABLE_PERMILLE else "trainers"


def stream_report(stream: StreamTrainers, group: int, now_s: float) -> dict[str, Any]:
    """Return the report of one stream and its trainers.

    `read` is the position of the slowest rank, `waited` the share of the rank that waited longest.
    """
    epoch, number = stream.trained
    trainers = sorted(stream.trainers.values(), key=lambda trainer: (trainer.attach.rank, trainer.attach.incarnation))
    read = min((trainer.read for trainer in trainers), default=(None, None))
    waited = max((trainer.waited_permille for trainer in trainers if trainer.waited_permille is not None), default=None)
    return {
        "evaluation": stream.view.evaluation,
        "group": group,
        "epoch": epoch,
        "number": number,
        "read_epoch": read[0],
        "read_number": read[1],
        "batches": stream.view.batches(epoch, group) if group else None,
        "plan_digest": stream.view.digest,
        "waited_permille": _whole(waited),
        "limit": limit_of(waited),
        "results": stream.results.report(),
        "evaluations": stream.results.report_of_evaluations(),
        "attached": len(trainers),
        "trainers": [_trainer_report(trainer, now_s) for trainer in trainers],
    }


def _trainer_report(trainer: AttachedTrainer, now_s: float) -> dict[str, Any]:
    return {
        "rank": trainer.attach.rank,
        "replicas": trainer.attach.replicas,
        "world": trainer.attach.world,
        "name": trainer.attach.name,
        "epoch": trainer.trained[0],
        "number": trainer.trained[1],
        "read_epoch": trainer.read[0],
        "read_number": trainer.read[1],
        "waited_permille": _whole(trainer.waited_permille),
        "silent_s": round(now_s - trainer.heard_s, 1),
    }


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def worker_report(worker: RegisteredWorker, now_s: float) -> dict[str, Any]:
    """Return the report of one worker, as of its last heartbeat; its counts are 0 before the first one."""
    beat = worker.beat
    return {
        "name": worker.address.worker,
        "endpoint": worker.address.endpoint,
        "metrics": worker.metrics,
        "silent_s": round(now_s - worker.heard_s, 1),
        "waiting": beat.waiting if beat else 0,
        "building": beat.building if beat else 0,
        "built": beat.built if beat else 0,
        "masked": beat.masked if beat else 0,
        "kept": beat.kept if beat else 0,
        "decoded": beat.decoded if beat else 0,
        "taken": beat.taken if beat else 0,
        "remote_bytes": beat.remote_bytes if beat else 0,
        "remote_found": beat.remote_found if beat else 0,
        "remote_waited": beat.remote_waited if beat else 0,
    }


def text_of(report: dict[str, Any], most: int = MOST_CHARACTERS) -> str:
    """Return the report as JSON; if it is longer than `most`, its lists are cut, and `cut` counts what is missing."""
    text = json.dumps(report | {"cut": {}})
    return text if len(text) <= most else json.dumps(_cut(report, most))


def _cut(report: dict[str, Any], most: int) -> dict[str, Any]:
    """Shorten the report's lists to fit: short ones stay complete, and long ones share the room that is left."""
    emptied: dict[str, Any] = {"trainers": [], "verifiers": []}
    cut = report | {"streams": {name: stream | emptied for name, stream in report["streams"].items()}}
    cut |= {"workers": [], "culprits": [], "failing": []}
    lists = [(name, report, cut) for name in ("workers", "culprits", "failing")]
    lists += [(key, stream, cut["streams"][name]) for name, stream in report["streams"].items() for key in emptied]
    # Reserve room for the counts of entries that are left out, with a number as long as any of them.
    cut["cut"] = {key: 2**53 for key, whole, _ in lists if whole[key]}
    room = most - len(json.dumps(cut))
    cut["cut"] = {}
    # The shortest first, so that the room that a short list does not need goes to the longer ones.
    lists.sort(key=lambda one: len(json.dumps(one[1][one[0]])))
    for place, (key, whole, into) in enumerate(lists):
        into[key], used = _beginning(whole[key], room // (len(lists) - place))
        room -= used
        left_out = len(whole[key]) - len(into[key])
        if left_out:
            cut["cut"][key] = cut["cut"].get(key, 0) + left_out
    return cut


def _beginning(entries: list[dict[str, Any]], most: int) -> tuple[list[dict[str, Any]], int]:
    """Return as many entries as fit, and how many characters they take."""
    used = 0
    for place, entry in enumerate(entries):
        length = len(json.dumps(entry)) + 2
        if used + length > most:
            return entries[:place], used
        used += length
    return entries, used
