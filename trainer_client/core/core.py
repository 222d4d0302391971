"""The trainer's core: one pure object with one door, `handle(events, now_s) -> instructions`.

It owns all that a trainer decides: which batches come next (`upcoming`), which worker is asked and when again
(`wants`), in what state each slot is (`slot_states`), how the connection to each worker stands (`connections`), and
what is open with the coordinator (`attachment`). Each fact has one owner, and nobody else changes it.

Rules: pure; all facts of a turn come in at once and are decided on once, because deciding after each would double the
cost. Instructions are carried out in their order, and what comes of them is told as events of the same turn. What a
consumer did may reach us late, or not at all where a signal came in between: what follows from later facts is inferred.
The core must not know sockets, threads, memory, TensorFlow or what time it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.attachment import Attachment
from trainer_client.core.bad_rows import BadRows
from trainer_client.core.connections import Connections
from trainer_client.core.failures import nobody_left, other_plan, refusal, refused_by_all
from trainer_client.core.questions import Questions
from trainer_client.core.settings import CoreSettings, slots_for
from trainer_client.core.slot_states import SlotStates
from trainer_client.core.stream_spec import StreamSpec
from trainer_client.core.upcoming import Position, Upcoming
from trainer_client.core.wants import Wants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.errors import StokerError
    from trainer_client.core.workers import Worker

__all__ = ["Core", "Line"]

#: How often a silent writer is looked at for proof of its death: a lock has no event to wait for.
_PROBE_S = 0.02


class Line:
    """What exists once the trainer is attached: the books of one stream."""

    def __init__(self, settings: CoreSettings, attached: m.Attached, out: list[i.Instruction]) -> None:
        spec = self.spec = StreamSpec.of(attached)
        slots, prefetch = slots_for(settings, spec)
        cursor = attached.cursor
        start = Position(cursor.epoch, cursor.number, cursor.group)
        workers: dict[int, Worker] = {}
        self.upcoming = Upcoming(start, settings.ranks, repeats=spec.evaluation)
        self.slots = SlotStates(slots)
        bad_rows = BadRows(attached.max_bad)
        self.wants = Wants(settings, spec, prefetch, self.upcoming, self.slots, workers, bad_rows, out)
        timeout_s = spec.heartbeat_timeout_s
        self.connections = Connections(settings, timeout_s, self.upcoming, workers, self.wants, out)
        self.questions = Questions(spec, out)
        out.append(i.MakeSlots(spec, slots + 1))


class Core:
    """The state behind the door."""

    def __init__(self, settings: CoreSettings) -> None:
        #: When to come back at the latest, with events or without.
        self.due_s = float("inf")
        #: Messages that nobody expected.
        self.strays = 0
        self._settings = settings
        self._out: list[i.Instruction] = []
        self.attachment = Attachment(settings, self._out)
        #: None until the coordinator has agreed.
        self.line: Line | None = None
        self._seen_s = float("inf")
        self._tick_s = 0.0
        self._opened: e.Opened | None = None
        self._alone_since_s: float | None = None
        self._failed = False
        self._wakes = i.WakeFor(room=True, slots=False)

    def handle(self, events: Iterable[e.Event], now_s: float) -> list[i.Instruction]:
        """Take in what happened; what is to be done about it."""
        if self.line is not None and now_s - self._seen_s > self.line.spec.heartbeat_timeout_s / 2:
            self._excuse(self.line, now_s)
        self._seen_s = now_s
        for event in events:
            self._doors[type(event)](self, event, now_s)
        if self.line is not None:
            self._decide(self.line, now_s)
        self.attachment.tick(self.line.connections.version if self.line is not None else 0, now_s)
        self.due_s = min(self.attachment.due_s, self._tick_s if self.line is not None else float("inf"))
        if self.line is not None:
            self.due_s = min(self.due_s, self.line.connections.due_s(), self.line.questions.due_s)
        out = self._out[:]
        self._out.clear()
        return out

    def _excuse(self, line: Line, now_s: float) -> None:
        line.wants.excuse(now_s)
        line.connections.excuse(now_s)
        self.attachment.excuse(now_s)

    def _decide(self, line: Line, now_s: float) -> None:
        if now_s >= self._tick_s:
            self._tick(line, now_s)
        line.connections.greet(now_s)
        self._extend(line, now_s)
        line.wants.decide(now_s)
        self._watch_head(line, now_s)
        wakes = i.WakeFor(room=2 * line.wants.unanswered < line.wants.prefetch, slots=line.wants.short_of_slots)
        if wakes != self._wakes:
            self._wakes = wakes
            self._out.append(wakes)

    def _tick(self, line: Line, now_s: float) -> None:
        line.connections.tick(now_s)
        writers = line.connections.probe()
        self._tick_s = now_s + (_PROBE_S if writers else line.spec.heartbeat_timeout_s / 8)

    # --- consumers ---

    def _attach_asked(self, event: e.AttachAsked, now_s: float) -> None:
        self.attachment.ask(event.cursor, now_s, waiting=event.serial)

    def _open(self, event: e.Opened, _now_s: float) -> None:
        """Serve this reader from now on; what lies ahead is kept where it is what the reader needs next."""
        assert self.line is not None
        upcoming = self.line.upcoming
        over = upcoming.is_over(event.start)
        self._opened = event if over is None else None
        if over is None:
            self._ask_about(event.start.epoch, event.start.group)
        elif over:
            self._out.append(i.Serve(event.reader, upcoming.head, ended=True))
        elif upcoming.leads_on(event.start, event.taken):
            self._out.append(i.Serve(event.reader, upcoming.head))
        else:
            upcoming.turn(event.start, event.taken)
            self.line.wants.refocus()
            self._out.append(i.Restart(event.reader, upcoming.head))

    def _took(self, event: e.Took, _now_s: float) -> None:
        assert self.line is not None
        self.line.slots.take(event.slot)
        self._pass(self.line.upcoming, event.seq, event.slot)

    def _handed_back(self, event: e.HandedBack, _now_s: float) -> None:
        assert self.line is not None
        self.line.slots.hand_back(event.slot)
        self._pass(self.line.upcoming, event.seq, event.slot)

    @staticmethod
    def _pass(upcoming: Upcoming, seq: int, slot: int) -> None:
        """Batch `seq` was consumed, and so were those before it."""
        entry = upcoming.entries.get(seq)
        if entry is not None and entry.slot == slot:
            upcoming.pass_to(seq + 1)

    def _taken_back(self, event: e.TakenBack, _now_s: float) -> None:
        assert self.line is not None
        self.line.wants.take_back(event.seq, won=event.won)

    def _question_asked(self, event: e.QuestionAsked, now_s: float) -> None:
        assert self.line is not None
        self.line.questions.ask(event.question, now_s)

    # --- the way ahead ---

    def _extend(self, line: Line, now_s: float) -> None:
        upcoming, wants = line.upcoming, line.wants
        room = upcoming.head + wants.prefetch - upcoming.end
        if room > 0:
            wants.extend(upcoming.extend(room))
            missing = upcoming.missing()
            if missing is not None:
                self._ask_about(*missing)
        line.questions.tick(line.connections.serving(), now_s)

    def _ask_about(self, epoch: int, group: int) -> None:
        assert self.line is not None
        spec = self.line.spec
        query = m.EpochQuery(stream=spec.stream, plan_digest=spec.plan_digest, epoch=epoch, group=group)
        self.line.questions.ask(query, self._seen_s)

    def _learn(self, epoch: int, group: int, batches: int, now_s: float) -> None:
        assert self.line is not None
        self.line.upcoming.learn(epoch, group, batches)
        if self._opened is not None:
            self._open(self._opened, now_s)

    # --- the coordinator ---

    def _coordinator_said(self, event: e.CoordinatorSaid, now_s: float) -> None:
        self.attachment.hear(now_s)
        said = event.message
        if isinstance(said, m.Attached):
            self._attached(said, now_s)
        elif isinstance(said, m.Wait):
            self.attachment.wait(said, now_s)
        elif isinstance(said, m.NotAttached):
            self.attachment.refuse(refusal(said, "coordinator"), serial=said.serial)
        elif isinstance(said, m.Members):
            if self.line is not None:
                self.line.connections.meet(said.version, said.workers, now_s)
        elif isinstance(said, m.Refused) and said.code == "unknown":
            self.attachment.come_back(now_s)
        elif isinstance(said, m.Refused):
            self.attachment.refuse(refusal(said, "coordinator"))
        else:
            self.strays += not isinstance(said, m.Noted)

    def _coordinator_away(self, event: e.CoordinatorAway, now_s: float) -> None:
        self.attachment.try_soon(now_s)

    def _attached(self, said: m.Attached, now_s: float) -> None:
        if not self.attachment.agree(said, now_s):
            return
        if self.line is None:
            self.line = Line(self._settings, said, self._out)
        line, cursor = self.line, said.cursor
        if line.spec.plan_digest != cursor.plan_digest:
            self.attachment.refuse(other_plan(line.spec.plan_digest, cursor.plan_digest))
            return
        line.upcoming.next_group = said.next_group
        line.connections.meet(said.members, said.workers, now_s)
        self._learn(cursor.epoch, cursor.group, said.batches, now_s)
        self.attachment.answer(said)

    # --- workers ---

    def _link_up(self, event: e.LinkUp, now_s: float) -> None:
        assert self.line is not None
        self.line.connections.up(event.link, now_s)

    def _link_down(self, event: e.LinkDown, now_s: float) -> None:
        assert self.line is not None
        self.line.connections.down(event.link, now_s)

    def _link_failed(self, event: e.LinkFailed, now_s: float) -> None:
        assert self.line is not None
        self.line.connections.turn_away(event.link, event.error, now_s)

    def _greeting_failed(self, event: e.GreetingFailed, now_s: float) -> None:
        assert self.line is not None
        self.line.connections.greeting_failed(event.link, now_s)

    def _lock_gone(self, event: e.LockGone, now_s: float) -> None:
        assert self.line is not None
        self.line.connections.lock_is_gone(event.incarnation, now_s)

    def _came(self, event: e.Came, now_s: float) -> None:
        assert self.line is not None
        line, said, link = self.line, event.message, event.link
        worker = line.connections.worker_at(link)
        if isinstance(said, m.Welcome):
            line.connections.welcome(link, said, now_s, locked=bool(event.payload))
        elif isinstance(said, m.Refused):
            line.connections.turn_away(link, refusal(said, f"worker at link {link}"), now_s)
        elif isinstance(said, m.EpochAnswer | m.NameAnswer):
            self._answered(line, said, now_s)
        elif worker is None:
            self.strays += 1
        elif isinstance(said, m.Pushed):
            line.wants.receive(worker, said, event.payload, now_s)
        elif isinstance(said, m.Cancelled):
            line.wants.give_up(worker, said.ticket, now_s)
        elif isinstance(said, m.Unbuilt):
            self._unbuilt(line, worker, said, now_s)
        elif isinstance(said, m.Pong):
            line.wants.reconcile(worker, said, now_s)
        else:
            self.strays += 1

    def _unbuilt(self, line: Line, worker: Worker, said: m.Unbuilt, now_s: float) -> None:
        line.wants.give_up(worker, said.ticket, now_s, said)
        if worker.link is None:
            return
        if said.code == "unknown":  # no more wants until it welcomes us again
            line.wants.leave(worker)
            line.connections.greet_again(worker.link, now_s)
        elif said.code == "draining":
            line.connections.leave(worker.link, now_s)

    def _answered(self, line: Line, said: m.EpochAnswer | m.NameAnswer, now_s: float) -> None:
        line.questions.answer(said)
        if isinstance(said, m.EpochAnswer):
            self._learn(said.epoch, said.group, said.batches, now_s)

    def _checked(self, event: e.Checked, now_s: float) -> None:
        assert self.line is not None
        worker = self.line.connections.worker_at(event.link)
        if worker is not None:
            self.line.wants.settle(worker, event.header, now_s, valid=event.valid)

    # --- the end ---

    def _watch_head(self, line: Line, now_s: float) -> None:
        """A head that nobody can build ends the feed; soon, if all workers that are there refused it."""
        head = line.upcoming.entries.get(line.upcoming.head)
        refused = head.refused if head is not None else {}
        if self._failed or (head is not None and head.ready) or line.wants.somebody_can(refused):
            self._alone_since_s = None
            line.connections.need(somebody=False)
            return
        line.connections.need(somebody=True)
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        alone_s = now_s - self._alone_since_s
        errors = [*refused.values()] or line.connections.refusals()
        patience_s = line.spec.heartbeat_timeout_s if line.wants.all_refuse(refused) else self._settings.lost_timeout_s
        if alone_s > patience_s and line.connections.is_all_tried(now_s):
            self._fail(line, errors)

    def _fail(self, line: Line, errors: list[StokerError]) -> None:
        self._failed = True
        tried, listed = line.connections.tried()
        if errors:
            self._out.append(i.Fail(refused_by_all(errors[-1], len(errors), listed)))
        else:
            self._out.append(i.Fail(nobody_left(tried, listed, self._settings.lost_timeout_s)))

    _doors: ClassVar[dict[type, Callable[..., None]]] = {
        e.AttachAsked: _attach_asked,
        e.Opened: _open,
        e.Took: _took,
        e.HandedBack: _handed_back,
        e.TakenBack: _taken_back,
        e.QuestionAsked: _question_asked,
        e.CoordinatorSaid: _coordinator_said,
        e.CoordinatorAway: _coordinator_away,
        e.LinkUp: _link_up,
        e.LinkDown: _link_down,
        e.LinkFailed: _link_failed,
        e.GreetingFailed: _greeting_failed,
        e.LockGone: _lock_gone,
        e.Came: _came,
        e.Checked: _checked,
    }
