"""The report that `loader-server status` shows, and log lines for the workers and trainers that come and go.

Rules: pure. A report that is too long for a message is cut, and counts the entries that were left out. Log lines are
derived from the difference between two consecutive reports, so an absence shorter than the time between them goes
unnoticed. A member that has just been logged is not logged again for a while; its next line then has the number of its
changes.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from loader_server.coordinator.pace.lately import lately_report
from shared.events.spells import Spell, SpellBegan
from shared.events.trainer_fields import run_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
    from loader_server.coordinator.workers import RegisteredWorker

__all__ = ["MOST_CHARACTERS", "Comings", "stream_report", "text_of", "worker_report"]

#: Length limit of the text that a `Status` message carries.
MOST_CHARACTERS = 2**19

#: Minimum time between two lines about the same worker or trainer.
_PAUSE_S = 30.0

#: Limit of lines for one report; the rest are summed up in one more line. Each trainer of a large job has its line when
#: it comes, because only that one says under which run the others name it.
_MOST_LINES = 1000

#: A worker or trainer: its kind, and the fields by which people know it.
_Member: TypeAlias = tuple[tuple[str, Any], ...]
_Line: TypeAlias = tuple[str, dict[str, Any]]

#: The fields of a heartbeat that a worker's report shows.
_OF_A_BEAT = (
    "waiting",
    "building",
    "built",
    "masked",
    "kept",
    "decoded",
    "taken",
    "remote_bytes",
    "remote_found",
    "remote_waited",
)

#: What a trainer in queue mode has none of: anybody may have any batch.
_NO_PLACE = dict.fromkeys(("rank", "world", "number", "read_epoch", "read_number"))


def stream_report(stream: StreamTrainers, group: int, now_s: float) -> dict[str, Any]:
    """Return the report of one stream and its trainers.

    `read_epoch` and `read_number` are the position of the slowest rank, None without trainers. `waited_permille` is the
    share of the rank that waited longest, None if no rank has read yet. `batches` is None if the group is 0 or the
    epoch's batches are not counted yet. Trainers are in the order of their ranks. In queue mode rank, world, `number`
    and read position of each trainer are None, and so are the stream's read position and step 0 of its results.
    """
    epoch, number = stream.trained
    trainers = sorted(stream.trainers.values(), key=lambda trainer: (trainer.attach.rank, trainer.attach.incarnation))
    # In queue mode each trainer has read whatever was leased to it: no position says what the others lack.
    in_queue = stream.view.leases is not None
    read = (None, None) if in_queue else min((trainer.read for trainer in trainers), default=(None, None))
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
        "native_code": stream.view.native_code,
        "waited_permille": _whole(waited),
        "results": _without_step(stream.results.report()) if in_queue else stream.results.report(),
        "evaluations": stream.results.report_of_evaluations(),
        "attached": len(trainers),
        "trainers": [_trainer_report(trainer, now_s) | (_NO_PLACE if in_queue else {}) for trainer in trainers],
    }


def _without_step(results: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return these results with None for step 0, under which queues report what is of no step; None for None."""
    return None if results is None else results | {"step": results["step"] or None}


def _trainer_report(trainer: AttachedTrainer, now_s: float) -> dict[str, Any]:
    return {
        "rank": trainer.attach.rank,
        "replicas": trainer.attach.replicas,
        "world": trainer.attach.world,
        "name": trainer.attach.name,
        "run": run_name(trainer.attach.incarnation),
        "epoch": trainer.trained[0],
        "number": trainer.trained[1],
        "read_epoch": trainer.read[0],
        "read_number": trainer.read[1],
        "waited_permille": _whole(trainer.waited_permille),
        "prefetch": trainer.progress.prefetch if trainer.progress is not None else 0,
        "metrics": trainer.progress.metrics if trainer.progress is not None else "",
        "lately": lately_report(trainer.lately),
        "silent_s": round(now_s - trainer.heard_s, 1),
    }


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def worker_report(worker: RegisteredWorker, now_s: float) -> dict[str, Any]:
    """Return the report of one worker, as of its last heartbeat; its counts are 0 before the first one."""
    return {
        "name": worker.address.worker,
        "endpoint": worker.address.endpoint,
        "metrics": worker.metrics,
        "silent_s": round(now_s - worker.heard_s, 1),
        **{name: getattr(worker.beat, name) if worker.beat else 0 for name in _OF_A_BEAT},
        "lately": lately_report(worker.lately),
    }


def text_of(report: dict[str, Any], most: int = MOST_CHARACTERS) -> str:
    """Return the report as JSON; if it is longer than `most`, its lists are cut, and `cut` counts what is missing.

    The text is still longer than `most` if the rest of the report alone is.
    """
    text = json.dumps(report | {"cut": {}})
    return text if len(text) <= most else json.dumps(_cut(report, most))


def _cut(report: dict[str, Any], most: int) -> dict[str, Any]:
    """Return a copy whose lists are cut to fit: short ones stay complete, and long ones share the room that is left.

    Its `cut` has the number of left-out entries by the name of the list. All lists are empty if the rest takes all
    room.
    """
    emptied: dict[str, Any] = {"trainers": [], "verifiers": []}
    cut = report | {"streams": {name: stream | emptied for name, stream in report["streams"].items()}}
    cut |= {"workers": [], "culprits": [], "failing": []}
    lists = [(name, report, cut) for name in ("workers", "culprits", "failing")]
    lists += [(key, stream, cut["streams"][name]) for name, stream in report["streams"].items() for key in emptied]
    # Reserve room for the counts of entries that are left out, with a number as long as any of them.
    cut["cut"] = {key: 2**53 for key, entries, _ in lists if entries[key]}
    room = most - len(json.dumps(cut))
    cut["cut"] = {}
    # The shortest first, so that the room that a short list does not need goes to the longer ones.
    lists.sort(key=lambda place: len(json.dumps(place[1][place[0]])))
    for done, (key, entries, shortened) in enumerate(lists):
        shortened[key], used = _beginning(entries[key], room // (len(lists) - done))
        room -= used
        left_out = len(entries[key]) - len(shortened[key])
        if left_out:
            cut["cut"][key] = cut["cut"].get(key, 0) + left_out
    return cut


def _beginning(entries: list[dict[str, Any]], most: int) -> tuple[list[dict[str, Any]], int]:
    """Return as many of the first entries as fit into `most` characters of JSON, and how many characters they take."""
    used = 0
    for place, entry in enumerate(entries):
        length = len(json.dumps(entry)) + 2
        if used + length > most:
            return entries[:place], used
        used += length
    return entries, used


class Comings:
    """Members that were present in the last report, when each was last logged, and which streams wait for data."""

    def __init__(self) -> None:
        #: The members in the last report.
        self._present: set[_Member] = set()
        #: When each member was last logged, for as long as its pause lasts.
        self._logged_s: dict[_Member, float] = {}
        #: Changes of a member that were not logged because its last line was too recent.
        self._unlogged: Counter[_Member] = Counter()
        #: Of each stream, whether its trainers wait for data.
        self._spells: dict[str, Spell] = {}

    def look(self, report: Mapping[str, Any], now_s: float) -> list[_Line]:
        """Return the log lines, as event and fields, for what has changed since the last report; empty if nothing has.

        A member that was logged less than 30 s ago gets no line now, but later a line with its number of changes. Of
        members there are at most 1000 lines, and one that counts the others; lines about waiting for data come last.
        """
        present = set(_members(report))
        changed = sorted(present ^ self._present, key=str)
        self._present = present
        lines = [*self._take_due(now_s), *(line for member in changed for line in self._lines_of(member, now_s))]
        if len(lines) > _MOST_LINES:
            lines = [*lines[:_MOST_LINES], ("more came or went", {"count": len(lines) - _MOST_LINES})]
        return [*lines, *self._about_waiting(report["streams"], now_s)]

    def _about_waiting(self, streams: Mapping[str, Any], now_s: float) -> Iterator[_Line]:
        """Yield a line for each stream in which waiting for data begins or ends; the first names who waits longest."""
        for name, stream in streams.items():
            # Averages over the last ten seconds. If nobody reads, nobody waits.
            spell, waited = self._spells.setdefault(name, Spell()), (stream["waited_permille"] or 0) / 1000
            event = spell.judge(waited, now_s)
            if isinstance(event, SpellBegan):
                longest = max(stream["trainers"], key=lambda trainer: trainer["waited_permille"] or 0)
                yield "trainers wait for data", {"stream": name, "waited": waited, **_named(longest)}
            elif event is not None:
                over = {"waited": waited, "seconds": round(event.seconds, 1)}
                yield "trainers wait for data no longer", {"stream": name, **over}

    def _lines_of(self, member: _Member, now_s: float) -> Iterator[_Line]:
        if member in self._logged_s:
            self._unlogged[member] += 1
            return
        self._logged_s[member] = now_s
        yield self._line(member)

    def _take_due(self, now_s: float) -> Iterator[_Line]:
        """Allow new lines about members whose pause is over; yield one for each that changed during its pause.

        Nothing is yielded if none did.
        """
        # A worker that comes and goes all the time would otherwise fill the log.
        for member in [member for member, logged_s in self._logged_s.items() if now_s - logged_s >= _PAUSE_S]:
            del self._logged_s[member]
            changes = self._unlogged.pop(member, 0)
            if changes:
                self._logged_s[member] = now_s
                event, fields = self._line(member)
                yield event, {**fields, "changes": changes}

    def _line(self, member: _Member) -> _Line:
        fields = dict(member)
        return f"{fields.pop('kind')} {'is there' if member in self._present else 'is gone'}", fields


def _members(report: Mapping[str, Any]) -> Iterator[_Member]:
    for worker in report["workers"]:
        yield ("kind", "worker"), ("worker", worker["name"]), ("endpoint", worker["endpoint"])
    for name, stream in report["streams"].items():
        for trainer in stream["trainers"]:
            yield ("kind", "trainer"), ("stream", name), *_named(trainer).items()


def _named(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a line about a trainer of a report: its name, its rank unless that is None, and its run."""
    rank = {} if trainer["rank"] is None else {"rank": trainer["rank"]}
    return {"trainer": trainer["name"], **rank, "run": trainer["run"]}
