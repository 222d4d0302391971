"""A parameter server's decisions: whose gradients it takes, in which order, and what a checkpoint is cut from.

Rules, each with the interleaving behind it:
- The first server decides for all, and tells the others in order: at a version each has applied the same batches.
- The others have a batch's gradients before the first is asked: a worker that dies leaves no step half applied.
- Gradients wait under their batch: the next ones of a quick worker may come before the order to apply the last.
- A batch that is applied is not applied again, whichever worker brings it: its own may have died before a report.
- Values that are pulled have all that their trainer has pushed: a server that is behind answers once it is not.
- A checkpoint is cut where the first says, so its variables and its batches agree without anybody waiting.
- A trainer that was silent for long is forgotten, with its gradients that wait; if it comes back, it begins anew.
- A server that missed an order serves nothing any more: all go back to the last checkpoint.
- A learning rate that the chief set comes with each order, so all servers apply a batch at the same rate.
- A process that hears that the run is over ends by itself, whatever it missed: nobody may be left to repeat it.

Pure: messages and the time are passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from shared.wire.message_parts import DoneSet, EpochDone, Lease, TableForm, VariablePart
from shared.wire.topics import server_messages as m
from trainer_client.training.servers.applied import AppliedBatches
from trainer_client.training.servers.evaluation_offer import EvaluationOffer
from trainer_client.training.servers.server_instructions import (
    Adopt,
    Answer,
    Apply,
    ApplyHeld,
    AssignRate,
    Cut,
    Drop,
    Hold,
    KeepOffered,
    Tell,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire.message_parts import Message
    from trainer_client.training.servers.server_instructions import Instruction, Key

__all__ = ["ServerState"]

#: How long a trainer is silent before it is forgotten: longer than any step.
_FORGOTTEN_S = 600.0
#: How often the others get the version even if nothing happens, so that one that missed an order notices it.
_AGREE_EVERY_S = 2.0
#: How long a trainer is silent at the end of a run before it is not waited for: longer than most steps.
_GONE_S = 60.0

#: Messages of a trainer that go by one generation.
_OfTrainer = m.Pull | m.PullRows | m.Push | m.SetRate | m.OfferEvaluation | m.AskEvaluation | m.PullCut


class ServerState:
    """The state of one server; `is_first` is the one that decides for all."""

    def __init__(self, *, is_first: bool) -> None:
        #: Names the shares that the chief gave out together; 0: this server serves none.
        self.generation = 0
        #: How many batches are applied.
        self.version = 0
        #: Why the run is over, so that no gradients are taken; empty while it goes on.
        self.over = ""
        #: Whether this server may exit, and whether it waits only until all trainers have heard that the run is over.
        self.has_ended = self._is_finishing = False
        #: The parts of the model's variables that are held here.
        self.parts: tuple[VariablePart, ...] = ()
        #: The tables of which rows are held here.
        self.tables: tuple[TableForm, ...] = ()
        #: How many pushes were answered with each code.
        self.counts = dict.fromkeys(("applied", "held", "repeated", "stale", "moved", "over"), 0)
        self._is_first = is_first
        #: How many versions old gradients may be, and after how many batches the run is over (0: never).
        self._staleness = self._most = 0
        #: The batches in the variables; only the first server keeps this up to date, as it decides for all.
        self._applied = AppliedBatches(DoneSet((EpochDone(0, 0, ()),)))
        #: When each trainer was last heard.
        self._heard_s: dict[int, float] = {}
        #: The time of the message in hand, and of the last `agree` to the other servers.
        self._now_s = self._agreed_s = 0.0
        #: Gradients that wait for the first server's order to apply them.
        self._held: dict[Key, None] = {}
        #: The learning rate that was set since the share was given, and by which message of which trainer.
        self._rate: float | None = None
        self._rate_set_by = (0, 0)
        #: The last cut, and what was applied by then.
        self._cut: tuple[int, int, DoneSet | None] | None = None
        self._offer = EvaluationOffer()
        #: Who waits for a cut that is not there yet, by its number.
        self._waits: dict[int, tuple[bytes, m.Save]] = {}
        #: Pulls that wait for values that are not there yet, by trainer and table; those of variables have table -1.
        self._pulls: dict[tuple[int, int], tuple[bytes, m.Pull | m.PullRows]] = {}

    # --- what trainers say ---

    def handle(self, asker: bytes, message: Message, now_s: float) -> list[Instruction]:
        """Take in a message; return what is to be done, in order; nothing for a message that is none of ours."""
        self._now_s = now_s
        trainer = getattr(message, "trainer", None)
        if trainer in self._heard_s:
            self._heard_s[trainer] = now_s
        handler = self._handlers.get(type(message))
        return handler(self, asker, message) if handler is not None else []

    def _look(self, asker: bytes, message: m.Look) -> list[Instruction]:
        self._heard_s[message.trainer] = self._now_s
        return [
            Answer(
                asker,
                m.Shown(
                    serial=message.serial, generation=self.generation, version=self.version, over=self.over,
                    parts=self.parts, tables=self.tables,
                ),
            )
        ]  # fmt: skip

    def _quit(self, _asker: bytes, message: m.Quit) -> list[Instruction]:
        # A trainer that was silent for long is forgotten already, here and at the others.
        is_known = self._heard_s.pop(message.trainer, None) is not None
        return [Tell(self._order("forget", trainer=message.trainer))] if self._is_first and is_known else []

    def _serve(self, asker: bytes, message: m.ServeShare) -> list[Instruction]:
        """Hold the share that the chief gives, in place of all there was; if it is held already, only answer.

        What belonged to the share before is void: cut, rate, gradients that are held and now dropped, and trainers that
        wait. In the first server, the run is over at once if the share's version has reached the limit.
        """
        if message.generation == self.generation:  # the answer was lost
            return [self._taken(asker, message.serial, "serving")]
        self.generation, self.version, self.over = message.generation, message.version, ""
        self.parts, self.tables = message.parts, message.tables
        self._is_finishing = self.has_ended = False
        self._staleness, self._most = message.staleness, message.most
        self._applied = AppliedBatches(message.done)
        # What belonged to the share before is void: its cut and rate, gradients that are held, and trainers that wait.
        self._cut = self._rate = None
        self._offer.end()
        dropped = self._drop_held(lambda _key: True)
        self._waits.clear()
        self._pulls.clear()
        self._end_at_most()  # the checkpoint may have reached the limit already
        return [*dropped, Adopt(message.parts), self._taken(asker, message.serial, "serving")]

    def _withdraw(self, asker: bytes, message: m.Withdraw) -> list[Instruction]:
        """Serve nothing until there is a share again: do as `_lose` does, and answer `withdrawn`."""
        # Otherwise a batch of the queue's new round would be applied to values that the checkpoint is about to
        # replace, and would count as done.
        return [*self._lose(), self._taken(asker, message.serial, "withdrawn")]

    def _give(self, asker: bytes, message: m.GiveRows) -> list[Instruction]:
        """Answer that rows were kept for the share to come; while another share is served, with `moved`."""
        # The chief withdraws all shares before: a server that serves has another chief, or is asked late.
        code = "given" if self.generation in (0, message.generation) else "moved"
        return [self._taken(asker, message.serial, code)]

    def _pull(self, asker: bytes, message: m.Pull | m.PullRows) -> list[Instruction]:
        """Answer with our values, or with rows, or wait until they have all that the trainer knows of.

        A trainer of another generation, or a forgotten one, gets `moved`, and so does one that asks for rows of a cut
        that is not the last.
        """
        cut = message.cut if isinstance(message, m.PullRows) else 0
        if self._has_moved_from(message) or (cut and not self._has_cut(cut)):
            return [self._taken(asker, message.serial, "moved")]
        # We are behind the first server: these values would lack gradients that the trainer knows to be applied.
        if message.at_least > self.version and not cut:
            self._pulls[message.trainer, getattr(message, "table", -1)] = (asker, message)
            return []
        answer = m.Values(serial=message.serial, version=self.version, done=None, nbytes=0)
        if isinstance(message, m.PullRows):
            return [Answer(asker, answer, asked=message)]
        return [Answer(asker, answer, values=True)]

    def _push(self, asker: bytes, message: m.Push) -> list[Instruction]:
        """Hold the gradients, or, in the first server, apply or refuse them and order the others to apply.

        Gradients that the message names as refused are dropped. A trainer of another generation, or a forgotten one,
        gets `moved`.
        """
        key = (message.trainer, message.lease)
        instructions: list[Instruction] = []
        # The first server tells nobody of gradients that it refuses, so their trainer does, with its next push.
        if message.refused is not None:
            instructions += self._drop_held(lambda held_key: held_key == (message.trainer, message.refused))
        code = self._judge(message)
        self.counts[code] += 1
        # Under trainer and lease: a quick worker's next gradients come before the order to apply the last.
        if code == "held":
            self._held[key] = None
            instructions.append(Hold(key))
        if code == "applied":
            instructions += [Apply(key), Tell(self._order("apply", trainer=message.trainer, lease=message.lease))]
        return [*instructions, self._taken(asker, message.serial, code)]

    def _judge(self, message: m.Push) -> str:
        """Return what becomes of pushed gradients; if they are to be applied, count their batch.

        It is `moved` for another generation or a forgotten trainer and `held` in all servers but the first, which says
        `repeated`, `over`, `stale` or `applied`.
        """
        # Of another generation: computed from variables that a restored checkpoint has replaced.
        if self._has_moved_from(message):
            return "moved"
        # The others hold gradients until the first server orders to apply them: a worker that dies between two servers
        # leaves no step half applied.
        if not self._is_first:
            return "held"
        # Before `over`: a batch whose answer was lost is in the model, even if the run is over by now.
        if self._applied.has(message.lease.epoch, message.lease.number):
            return "repeated"
        if self.over:
            return "over"
        if self.version - message.based_on > self._staleness:
            return "stale"
        self._applied.add(message.lease.epoch, message.lease.number)
        self.version += 1
        self._end_at_most()
        return "applied"

    def _end_at_most(self) -> None:
        if self._is_first and self._most and self.version >= self._most:
            steps = "1 step is" if self._most == 1 else f"{self._most} steps are"
            self.over = self.over or f"{steps} reached"

    # --- the learning rate ---

    def _set_rate(self, asker: bytes, message: m.SetRate) -> list[Instruction]:
        """Use the rate from now on; the others hear of it with the next order.

        A trainer of another generation, or a forgotten one, gets `moved`, and a message older than its last one
        changes nothing, but is answered like others.
        """
        if self._has_moved_from(message):
            return [self._taken(asker, message.serial, "moved")]
        # A message that was asked twice may come after a newer one: it must not bring the old rate back.
        trainer, serial = self._rate_set_by
        if message.trainer == trainer and message.serial < serial:
            return [self._taken(asker, message.serial, "set")]
        self._rate_set_by = (message.trainer, message.serial)
        # Not sent to the others on its own: beside the orders, it could come before or after the batch that it came
        # before here, and two servers would apply one batch at different rates.
        return [*self._go_by(message.rate), self._taken(asker, message.serial, "set")]

    def _go_by(self, rate: float | None) -> list[Instruction]:
        if rate is None or rate == self._rate:
            return []
        self._rate = rate
        return [AssignRate(rate)]

    # --- checkpoints ---

    def _save(self, asker: bytes, message: m.Save) -> list[Instruction]:
        """Cut the share, in the first server, and order the others to; they answer when that order comes.

        If the cut is there already, only answer from it; a chief of another generation gets `moved`.
        """
        if not self._is_of_now(message.generation):
            return [self._taken(asker, message.serial, "moved")]
        if self._has_cut(message.cut):  # the answer was lost, or the order came first
            return [self._saved(asker, message)]
        # The others cut where the first server's order comes, not now: they may be behind it, and then variables would
        # have other batches than the checkpoint names.
        if not self._is_first:
            self._waits = {message.cut: (asker, message)}
            return []
        self._applied.forget_before(message.settled)
        self._cut = (message.cut, self.version, self._applied.done_set())
        return [Cut(message.cut), Tell(self._order("cut", cut=message.cut)), self._saved(asker, message)]

    def _saved(self, asker: bytes, message: m.Save) -> Answer:
        assert self._cut is not None
        _, version, done = self._cut
        return Answer(asker, m.Values(serial=message.serial, version=version, done=done, nbytes=0), cut=message.cut)

    def _save_rows(self, asker: bytes, message: m.SaveRows) -> list[Instruction]:
        """Answer with a piece of a table, out of the cut; without that cut or generation, the chief gets `moved`."""
        if not self._is_of_now(message.generation) or not self._has_cut(message.cut):
            return [self._taken(asker, message.serial, "moved")]
        answer = m.TableRows(serial=message.serial, rows=0, arrays=0, nbytes=0)
        return [Answer(asker, answer, asked=message)]

    # --- evaluations ---

    def _offer_evaluation(self, asker: bytes, message: m.OfferEvaluation) -> list[Instruction]:
        """Note the chief's evaluation, or its end; a chief of another generation, or a forgotten one, gets `moved`."""
        if self._has_moved_from(message):
            return [self._taken(asker, message.serial, "moved")]
        is_new = self._offer.take(message)
        return [*([KeepOffered()] if is_new else []), self._taken(asker, message.serial, "set")]

    def _ask_evaluation(self, asker: bytes, message: m.AskEvaluation) -> list[Instruction]:
        """Answer with the evaluation that goes on, if any; a trainer that is not of now, or forgotten, gets `moved`."""
        if self._has_moved_from(message):
            return [self._taken(asker, message.serial, "moved")]
        return [Answer(asker, self._offer.answer(message, self._has_cut, self.over))]

    def _pull_cut(self, asker: bytes, message: m.PullCut) -> list[Instruction]:
        """Answer with a cut's values, `over` if it was replaced, or `moved` to a trainer that has to look again."""
        if self._has_moved_from(message):
            return [self._taken(asker, message.serial, "moved")]
        if not self._has_cut(message.cut):
            return [self._taken(asker, message.serial, "over")]
        assert self._cut is not None
        answer = m.Values(serial=message.serial, version=self._cut[1], done=None, nbytes=0)
        return [Answer(asker, answer, values=True, cut=message.cut)]

    def _has_cut(self, number: int) -> bool:
        return self._cut is not None and self._cut[0] == number

    # --- the end ---

    def _finish(self, asker: bytes, message: m.Finish) -> list[Instruction]:
        """Note that the run is over; the server ends once all trainers have heard so.

        A chief of another generation gets `moved`, except from a server without a share.
        """
        if message.generation != self.generation != 0:  # a server without a share has to end, too
            return [self._taken(asker, message.serial, "moved")]
        self.over = self.over or message.why
        self._is_finishing = True
        return [self._taken(asker, message.serial, "over")]

    def look(self, now_s: float) -> list[Instruction]:
        """Return what is to be done by the clock.

        Trainers that were silent for ten minutes, or for one at the end, are forgotten, the other servers get the
        version every two seconds, and the server ends once no trainer is left, as each has quit or was forgotten. In a
        server that is not the first, nothing is done before it was told that the run is over.
        """
        if not (self._is_first or self._is_finishing):
            return []
        patience_s = _GONE_S if self._is_finishing else _FORGOTTEN_S
        orders: list[Instruction] = []
        for trainer in [trainer for trainer, heard_s in self._heard_s.items() if now_s - heard_s > patience_s]:
            del self._heard_s[trainer]
            orders.append(Tell(self._order("forget", trainer=trainer)))
        if now_s - self._agreed_s > _AGREE_EVERY_S:
            self._agreed_s = now_s
            orders.append(Tell(self._order("agree")))
        if self._is_finishing and not self._heard_s and not self.has_ended:
            self.has_ended = True
            orders.append(Tell(self._order("end")))
        return orders

    # --- what the first server says ---

    def _obey(self, _asker: bytes, message: m.Order) -> list[Instruction]:
        """Carry out an order of the first server; if one was missed before it, or its gradients, stop serving.

        An order of another generation is ignored, except that to end; in the first server, and after that, any is.
        """
        # Whatever the generation: a server that missed orders has to end, too, as nobody may be left to repeat this.
        self.has_ended |= message.what == "end" and not self._is_first
        if message.generation != self.generation or self._is_first or self.has_ended:
            return []
        # Each order has the version that it leads to. With a gap, this server has other batches than the first, and
        # what it serves or saves would fit no checkpoint.
        if message.version != self.version + (message.what == "apply"):
            return self._lose()
        match message.what:
            case "apply":
                return [*self._go_by(message.rate), *self._apply_held(message)]
            case "cut":
                return [*self._go_by(message.rate), *self._take_cut(message.cut)]
            case "forget":
                self._heard_s.pop(message.trainer, None)
                return self._drop_held(lambda key: key[0] == message.trainer)
            case _:  # an `agree` whose version is ours
                return []

    def _apply_held(self, message: m.Order) -> list[Instruction]:
        assert message.lease is not None
        key = (message.trainer, message.lease)
        # Their trainer pushed them before it asked the first server; without them this server cannot follow.
        if key not in self._held:
            return self._lose()
        del self._held[key]
        self.version += 1
        return [ApplyHeld(key), Drop(key), *self._answer_pulls()]

    def _answer_pulls(self) -> list[Instruction]:
        waits, self._pulls = self._pulls, {}
        return [answer for asker, message in waits.values() for answer in self._pull(asker, message)]

    def _take_cut(self, number: int) -> list[Instruction]:
        self._cut = (number, self.version, None)
        waits, self._waits = self._waits, {}
        # The order may come before the chief's question, which is then answered from the cut (see `_save`).
        return [Cut(number), *([self._saved(*waits[number])] if number in waits else [])]

    def _lose(self) -> list[Instruction]:
        """Stop serving: an order was missed, or the chief is about to give other variables.

        Gradients that wait are dropped, and pulls that wait get `moved`.
        """
        self.generation = 0
        self._offer.end()
        # Pulls that wait are answered, too: nothing would come that they wait for.
        return [*self._drop_held(lambda _key: True), *self._answer_pulls()]

    # --- parts of answers ---

    def _is_of_now(self, generation: int) -> bool:
        return generation == self.generation != 0

    def _has_moved_from(self, message: _OfTrainer) -> bool:
        """Return whether the sender has to look again: it goes by another generation than ours, or was forgotten.

        It has to as well if no share is served here.
        """
        return not self._is_of_now(message.generation) or message.trainer not in self._heard_s

    def _drop_held(self, is_meant: Callable[[Key], bool]) -> list[Instruction]:
        """Forget these gradients that wait, and return the instructions to drop them."""
        keys = [key for key in self._held if is_meant(key)]
        for key in keys:
            del self._held[key]
        return [Drop(key) for key in keys]

    def _taken(self, asker: bytes, serial: int, code: str) -> Answer:
        return Answer(asker, m.Taken(serial=serial, code=code, version=self.version, why=self.over))

    def _order(self, what: str, *, trainer: int = 0, lease: Lease | None = None, cut: int = 0) -> m.Order:
        return m.Order(
            generation=self.generation, what=what, version=self.version, trainer=trainer, lease=lease, cut=cut,
            rate=self._rate,
        )  # fmt: skip

    _handlers: ClassVar[dict[type[Message], Callable[..., list[Instruction]]]] = {
        m.Look: _look,
        m.ServeShare: _serve,
        m.GiveRows: _give,
        m.Withdraw: _withdraw,
        m.Pull: _pull,
        m.PullRows: _pull,
        m.Push: _push,
        m.SetRate: _set_rate,
        m.Save: _save,
        m.SaveRows: _save_rows,
        m.OfferEvaluation: _offer_evaluation,
        m.AskEvaluation: _ask_evaluation,
        m.PullCut: _pull_cut,
        m.Finish: _finish,
        m.Quit: _quit,
        m.Order: _obey,
    }
