"""The streams in queue mode: their lease tables, and the reports of trainers.

Rules: pure. There is a table for each kind of work on a stream. A checkpoint's done-set is compared with the plan
before anything is rewound. Ranks mean nothing here: any number of trainers may share the work. The work that is done
once at the end of training is leased as well, once nothing is left of the epochs that the trainer asks about. It may
take any time and fail any number of times, because given up it would look done to the trainers that ask. A trainer
whose leases are of another book than this one's (see `lease_book`) gets none, and learns of the other book.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from loader_server.coordinator import objections
from loader_server.coordinator.events import Send, Warn
from loader_server.coordinator.streams.stream_trainers import wait_for_count
from loader_server.leases.evaluation_table import Evaluations, EvaluationTable, is_evaluation
from loader_server.leases.lease_book import BookAdvanced, LeaseBook
from loader_server.leases.lease_table import LeaseSettings, LeaseTable
from shared.events.trainer_fields import run_name, trainer_fields
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.message_parts import Cursor, DoneSet, EpochDone
from shared.wire.topics.work_messages import MEASURE, plan_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loader_server.coordinator.events import Instruction, ResultsFact
    from loader_server.coordinator.streams.stream_trainers import StreamTrainers
    from loader_server.leases.lease_book import LeaseFact
    from loader_server.leases.table_counts import TableNews
    from shared.wire.message_parts import BookMark

__all__ = ["Queues"]

#: Number of tries for work that is never given up.
_ENDLESS = sys.maxsize

#: The serial of a trainer's first request; a later one resumes what the trainer had.
_FIRST = 1

#: Limit of given-up batches that a report names.
_MOST_NAMED = 100

_NOTHING_DONE = DoneSet((EpochDone(0, 0, ()),))


class Queues:
    """The lease tables of all streams in queue mode; `keep` takes facts for the journal."""

    def __init__(
        self,
        streams: Mapping[str, StreamTrainers],
        *,
        group: int,
        timeout_s: float,
        keep: Callable[[LeaseFact | BookAdvanced | ResultsFact], None],
        draw: Callable[[], int],
    ) -> None:
        self._streams = streams
        self._group = group or 1
        self._timeout_s = timeout_s
        self._keep = keep
        #: One book for all tables, because they share a journal: a trainer that heard of any may be the only one to
        #: know that it lost some.
        self._book = LeaseBook(draw, keep)
        self._warnings: list[Warn] = []
        #: By stream and kind of work.
        self.tables: dict[tuple[str, str], LeaseTable] = {}
        #: The evaluations whose metrics are summed.
        self.evaluations = Evaluations(self.tables, self._table, self._book.keep)
        #: Whether anything is leased; no longer once the job's end was ordered.
        self._leases_more = True
        #: Whether trainers that held leases before a restart have been given time to come back.
        self._is_taken_up = False
        for name, stream in streams.items():
            if stream.view.leases is not None:
                self._table(name, stream.usual_work)

    def _table(self, stream: str, work: str) -> LeaseTable:
        if (stream, work) not in self.tables:
            rules = self._streams[stream].view.leases
            assert rules is not None
            if work == "train-end":
                # Never taken back for time, and never given up: to the trainers that ask it would look done.
                rules = replace(rules, floor_s=float("inf"), tries=_ENDLESS)
            settings = LeaseSettings(stream=stream, work=work, rules=rules, gone_s=GONE_AFTER * self._timeout_s)
            kind = EvaluationTable if is_evaluation(work) else LeaseTable
            self.tables[stream, work] = kind(settings, partial(self._batches, stream, work), self._book)
        return self.tables[stream, work]

    def _batches(self, stream: str, work: str, epoch: int) -> int | None:
        if work == "train-end":
            return 1
        return self._streams[stream].view.batches(plan_epoch(work, epoch), self._group)

    # --- recovery ---

    def recover(self, fact: LeaseFact | BookAdvanced) -> None:
        """Apply a fact from the journal; facts of streams that are no longer queues are dropped.

        Raise a KeyError for a stream that the job does not have, or as `LeaseTable.recover` does.
        """
        if isinstance(fact, BookAdvanced):
            self._book.recover(fact)
        elif self._streams[fact.stream].view.leases is not None:
            self._table(fact.stream, fact.work).recover(fact)

    def incomplete(self) -> list[str]:
        """Return stream, work and epoch, as text, of epochs whose leases are not completely known after recovery.

        Empty if all is known.
        """
        return [
            f"{stream} ({work}), epoch {at}"
            for (stream, work), table in self.tables.items()
            for at in table.incomplete()
        ]

    def take_up(self, now_s: float) -> None:
        """Give trainers that held leases before a restart time to come back; to be called before anything else.

        Only the first call does anything.
        """
        if not self._is_taken_up:
            self._is_taken_up = True
            for table in self.tables.values():
                table.take_up(now_s)

    # --- trainers ---

    def mark(self) -> BookMark:
        """Return the mark of the lease book for a trainer that attaches, with a new revision if a fact was kept."""
        return self._book.advance()

    def admit(self, attach: m.Attach) -> m.NotAttached | m.Wait | tuple[Cursor, int]:
        """Return where a trainer of a stream in queue mode starts: the first unsettled epoch and its count of batches.

        Rewinds the table to the trainer's checkpoint if it brings one, once a request. The first request to evaluate
        begins a partly evaluated epoch anew if no trainer is at it. Returns a refusal if the request does not fit a
        queue or its done-set does not fit the plan, or a wait while batches are counted.
        """
        stream = self._streams[attach.stream]
        work = attach.work or stream.usual_work
        problem = self._objection(attach)
        if problem is not None:
            return problem
        table = self._table(attach.stream, work)
        # A request that is repeated, because its answer was lost, must not rewind what was leased since.
        if attach.done is not None and table.rewound_by != (attach.incarnation, attach.serial):
            answer = self._rewind(attach, attach.done, table)
            if answer is not None:
                return answer
        # Only with a first request: a later one is of a trainer that was here, and whose results count.
        elif work == "evaluate" and attach.serial == _FIRST:
            _begin_afresh(table, attach)
        epoch = table.unsettled()
        batches = self._batches(attach.stream, work, epoch)
        if batches is None:
            return wait_for_count(attach, epoch)
        return Cursor(epoch, 0, self._group, stream.view.digest), batches

    def _objection(self, attach: m.Attach) -> m.NotAttached | None:
        if attach.cursor is not None:
            return objections.not_in_lockstep(attach, "a checkpoint that holds which batches are done", "a cursor")
        if attach.replicas != 1:
            return objections.not_in_lockstep(attach, "a trainer of one replica", f"one of {attach.replicas}")
        if not attach.incarnation:
            return objections.nobody(attach)
        if attach.work in ("train-end", MEASURE):
            return objections.not_in_lockstep(attach, "work with batches that are leased", attach.work)
        return None

    def _rewind(self, attach: m.Attach, done: DoneSet, table: LeaseTable) -> m.NotAttached | m.Wait | None:
        # The whole done-set is compared with the plan before anything is rewound: a refused one changes nothing.
        batches: dict[int, int] = {}
        for epoch in done.epochs:
            count = self._batches(attach.stream, table.settings.work, epoch.epoch)
            if count is None:
                return wait_for_count(attach, epoch.epoch)
            if epoch.fresh > count or any(number >= epoch.fresh for number in accumulate(epoch.missing)):
                return objections.no_such_leases(attach, epoch, count)
            batches[epoch.epoch] = count
        epochs = [epoch.epoch for epoch in done.epochs]
        if not epochs or epochs != sorted(set(epochs)):
            return objections.epochs_out_of_order(attach)
        table.rewind(done, batches, attach.incarnation, attach.serial)
        if table.settings.work == "train":
            for fact in self._streams[attach.stream].results.begin_anew():
                self._keep(fact)
            # The work at the end of training is due again, as training goes back.
            end = self.tables.get((attach.stream, "train-end"))
            if end is not None:
                end.rewind(_NOTHING_DONE, {0: 1}, attach.incarnation, attach.serial)
        return None

    def report(self, outcomes: m.Outcomes, now_s: float) -> m.Leases | None:
        """Record what became of leases; return all leases that the trainer has now, new ones among them.

        After the job's end was ordered nothing new is leased. A trainer that has heard of another lease book, or of a
        later revision of this one, loses its leases, and the answer has none. Return None if a later report of the
        trainer is known, there is no room for another evaluation, or metric states come with other work or from a
        stream that is not for evaluation.
        """
        stream, work = outcomes.stream, outcomes.work
        self._renew_if_behind(outcomes)
        if self._book.is_another(outcomes.book):
            return self._turn_away(outcomes)
        if work == "train-end":
            # The work at the end is leased only once no batch of the epochs before is unsettled.
            is_over = self._table(stream, "train").unsettled() >= outcomes.before
            outcomes = replace(outcomes, before=1, wanted=min(outcomes.wanted, int(is_over)))
        # The report itself still counts after the job's end was ordered: what is leased may be finished.
        if not self._leases_more:
            outcomes = replace(outcomes, wanted=0)
        if outcomes.states is None:
            return self._table(stream, work).report(outcomes, now_s)
        if work != "evaluate" or not self._streams[stream].view.evaluation:
            return None
        table = self.evaluations.enter(outcomes)
        return table.report(outcomes, now_s) if table is not None else None

    def _renew_if_behind(self, outcomes: m.Outcomes) -> None:
        """Start a new lease book if this trainer proves that the journal lost leases; call all trainers to report.

        Do nothing if it has heard of no later revision of this book.
        """
        if not self._book.is_behind(outcomes.book):
            return
        # The trainer has heard of changes that this journal lacks, so an older copy was put in its place, or it was
        # cut: what it holds may be leased twice. With another identity of the book each trainer that has leases
        # notices, and ends with its last checkpoint named.
        self._warnings.append(Warn(_WENT_BACK, self._about(outcomes.stream, outcomes.incarnation)))
        self._book.renew()
        for table in self.tables.values():
            table.call_all()

    def _turn_away(self, outcomes: m.Outcomes) -> m.Leases:
        """Take back a trainer's leases of this kind of work, as its book is lost; return an answer without leases.

        The trainer learns of the loss from the mark in the answer.
        """
        table = self._table(outcomes.stream, outcomes.work)
        table.leave(outcomes.incarnation)
        self._warnings.append(Warn(_LOST, self._about(outcomes.stream, outcomes.incarnation)))
        return m.Leases(
            serial=outcomes.serial,
            book=self._book.advance(),
            generation=table.generation,
            leases=(),
            unsettled=table.unsettled(),
            done=None,
        )

    def lease_no_more(self) -> None:
        """Stop leasing, as the job's end was ordered: only batches that are leased are still done."""
        self._leases_more = False

    def leased(self) -> int:
        """Return how many batches trainers hold, over all streams and kinds of work."""
        return sum(epoch.leased for table in self.tables.values() for epoch in table.epochs.values())

    def hear(self, stream: str, incarnation: int, now_s: float) -> bool:
        """Note a trainer's heartbeat; return whether it was called to report and has not done so."""
        # A trainer may have leases of several kinds of work, and each table judges its silence.
        heard = [table.hear(incarnation, now_s) for table in self._of(stream)]
        return any(heard)

    def leave(self, stream: str, incarnation: int) -> None:
        """Take back the leases of a trainer that left, of all kinds of work; do nothing if it is unknown."""
        for table in self._of(stream):
            table.leave(incarnation)

    def _of(self, stream: str) -> list[LeaseTable]:
        return [table for (name, _), table in self.tables.items() if name == stream]

    # --- time ---

    def tick(self, now_s: float) -> None:
        """Take back all leases of each trainer that is silent, or has been at its first batch for too long."""
        for table in self.tables.values():
            table.tick(now_s)

    def excuse(self, now_s: float) -> None:
        """Restart all trainers' deadlines after a stall of this process, during which they could not be heard."""
        for table in self.tables.values():
            table.excuse(now_s)

    def take_news(self) -> Iterator[Instruction]:
        """Yield and clear the calls of attached trainers that should report, and warnings for people.

        Calls of trainers that are not attached are dropped.
        """
        for (stream, work), table in self.tables.items():
            trainers, calls, news = self._streams[stream].trainers, table.calls, table.news
            table.calls, table.news = [], []
            yield from (Send(trainers[called].peer, m.Recalled()) for called in calls if called in trainers)
            yield from (self._warning(stream, work, event) for event in news)
        warnings, self._warnings = self._warnings, []
        yield from warnings

    def _about(self, stream: str, incarnation: int) -> dict[str, object]:
        """Return the fields of a line about a trainer: stream and run and, if it is attached, its name."""
        trainer = self._streams[stream].trainers.get(incarnation)
        if trainer is None:
            return {"stream": stream, "run": run_name(incarnation)}
        return {"stream": stream, **trainer_fields(trainer.attach.name, None, incarnation)}

    def _warning(self, stream: str, work: str, news: TableNews) -> Warn:
        (epoch, number), why = news.key, {"reason": news.reason} if news.reason else {}
        about = self._about(stream, news.trainer)
        return Warn(_NEWS[news.event], {**about, "work": work, "epoch": epoch, "number": number, **why})

    # --- for people ---

    def stream_report(self, stream: str) -> dict[str, Any]:
        """Return what only a lease table knows of a stream: `queue`, None in lockstep, and how far training is.

        That is the first epoch that is not settled, as `epoch`, how many of its `batches` are done or given up, as
        `number`, and these themselves, None if they are not counted yet. It is left out if nothing is trained by
        leases: a trainer's own cursor says nothing there, because each has done only a part.
        """
        if self._streams[stream].view.leases is None:
            return {"queue": None}
        report: dict[str, Any] = {"queue": self.report_of(stream)}
        table = self.tables.get((stream, "train"))
        if table is not None:
            at = table.unsettled()
            epoch = table.epochs.get(at)
            settled = epoch.fresh - len(epoch.out) if epoch is not None else 0
            report |= {"epoch": at, "number": settled, "batches": self._batches(stream, "train", at)}
        return report

    def report_of(self, stream: str) -> dict[str, Any]:
        """Return the state of each kind of work on a stream, by name; single evaluations are summed as "evaluate".

        Empty if the stream has no lease table.
        """
        tables: dict[str, list[LeaseTable]] = {}
        for table in self._of(stream):
            work = table.settings.work
            tables.setdefault("evaluate" if is_evaluation(work) else work, []).append(table)
        report = {work: _report(alike) for work, alike in tables.items()}
        if "evaluate" in report:
            dropped = self.evaluations.dropped_reasons(stream)
            report["evaluate"]["reasons"] = dict((dropped + Counter(report["evaluate"]["reasons"])).most_common())
        return report


_NEWS = {
    "dead": "batch is given up: trainers failed at it too often",
    "unknown": "report of a batch that was never leased to this trainer is ignored",
    "failed": "trainer failed at a batch: it is leased again",
}

_WENT_BACK = "journal lacks leases that a trainer has heard of: the trainers that have leases end with an error"
_LOST = "trainer has leases of a lost journal: it ends with an error"


#: The counts of a table that a report shows.
_COUNTED = ("failed", "expired", "returned", "late", "unknown")


def _report(tables: list[LeaseTable]) -> dict[str, Any]:
    """Return the state of one kind of work, over several tables if each evaluation has its own.

    Generation and epoch are of the first table. Open, leased and done are sums over the epochs under way, or over the
    last one if none is, and `epochs` has the first and the last of these; the other counts are since the process
    started. At most 100 given-up batches are listed.
    """
    epochs = [epoch for table in tables for epoch in table.epochs.values()]
    numbers = [at for table in tables for at in table.epochs] or [tables[0].unsettled()]
    dead = [(*key, out.failures, out.reason) for table in tables for key, out in sorted(table.dead.items())]
    return {
        "generation": tables[0].generation,
        "epoch": tables[0].unsettled(),
        "epochs": [min(numbers), max(numbers)],
        "open": sum(epoch.left for epoch in epochs),
        "leased": sum(epoch.leased for epoch in epochs),
        "done": sum(epoch.fresh - len(epoch.out) for epoch in epochs),
        **{name: sum(getattr(table.counts, name) for table in tables) for name in _COUNTED},
        "reasons": dict(sum((table.counts.reasons for table in tables), Counter[str]()).most_common()),
        "dead": len(dead),
        "dead_letters": [
            {"epoch": epoch, "number": number, "failures": failures, "reason": reason}
            for epoch, number, failures, reason in dead[:_MOST_NAMED]
        ],
    }


def _begin_afresh(table: LeaseTable, attach: m.Attach) -> None:
    """Rewind an epoch that trainers who are gone have evaluated in part: their results are gone with them.

    Do nothing while the table has a trainer, or if nothing of its first unsettled epoch was leased.
    """
    at = table.unsettled()
    epoch = table.epochs.get(at)
    if epoch is not None and epoch.fresh and not table.trainers:
        table.rewind(DoneSet((EpochDone(at, 0, ()),)), {at: epoch.batches}, attach.incarnation, attach.serial)
