"""In queue mode: which of the batches that a consumer took are done, and the done-set of a checkpoint.

Rules: a batch is done when the user reports it, or asks for the next one; a user who leaves a loop early gets the last
batch again. A framework takes batches ahead, so there only those that it handed over count. The coordinator knows the
done-set, so a checkpoint asks there, after all reports of this trainer have arrived; other trainers of the same model
have to settle their batches before. Must not know sockets.
"""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import SettingsError
from shared.wire.message_parts import NAME, DoneSet, EpochDone
from shared.wire.topics.work_messages import plan_epoch
from trainer_client.core.events import EvaluationNamed, LeaseSettled
from trainer_client.core.upcoming import Position
from trainer_client.session.call_checks import fields_of_state, refused, whole
from trainer_client.session.trained_cursor import FeedCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from shared.wire.message_parts import Lease
    from shared.wire.messages import Attached
    from trainer_client.core.upcoming import UpcomingBatch
    from trainer_client.network.outbox import OfferedBatch
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.epoch_account import Accounts

__all__ = ["LeaseAccount", "only_in_lockstep"]


_T = TypeVar("_T")

#: How long a progress line waits for the coordinator to say what is done.
_PROGRESS_S = 0.5


class LeaseAccount(FeedCursor):
    """The batches that one feed took in queue mode; `at` is the epoch that the next reader reads."""

    names_evaluations = True
    shares_epochs = True
    #: Trainers take what they lease, so no two are at the same step.
    goes_in_step = False

    def __init__(self, receiver: Receiver, accounts: Accounts, answer: Attached) -> None:
        super().__init__(receiver, accounts, answer)
        self.at = Position(answer.cursor.epoch, 0, answer.cursor.group)
        #: Batches that were taken and are not settled, oldest first.
        self._taken: deque[UpcomingBatch] = deque()
        #: The number of the newest reading.
        self.reading = 0
        #: How many batches of the newest reading are settled, and how many the user counted as trained on.
        self._settled = self._counted = 0
        #: In a named evaluation: what a batch that is not settled yet adds to the metrics' variables.
        self._states: dict[Lease, bytes] = {}
        self._is_named = False
        #: What the coordinator said last is done, and its next answer, if it was asked.
        self._progress: tuple[EpochDone, ...] = ()
        self._state_asked: Future[DoneSet] | None = None

    def begin_reading(self) -> Position:
        """Begin a new reading and return its start; batches that were taken and not settled come again."""
        self._taken.clear()
        self._states.clear()
        self.reading += 1
        self._settled = self._counted = 0
        return self.at

    def take(self, offered: OfferedBatch) -> bool:
        """Note that a consumer takes this batch; return False if its lease is lost, so that it has to be skipped.

        A skipped batch is reported as not done.
        """
        lease = offered.batch.lease
        assert lease is not None
        # The lease may be lost while its batch waits here: to train on it as well as its new holder would count it
        # twice.
        if lease in self._receiver.stream.leases.void:
            self._tell(offered.batch, done=False)
            return False
        self._taken.append(offered.batch)
        return True

    @property
    def is_taken_back(self) -> bool:  # type: ignore[override] # a fact of the core here
        """Return whether another trainer has restored a checkpoint since this one did."""
        return self._receiver.stream.leases.is_taken_back

    def refuse_ended(self) -> None:
        """Raise the error of a job that was ended by order; a reader ends then as it does with its epoch.

        Do nothing while the job goes on.
        """
        if self._receiver.outbox.ended is not None:
            raise self._receiver.outbox.ended

    def step_of_results(self, step: int) -> int:
        """Return 0: steps of trainers of unequal speed do not compare, so results are those of an epoch."""
        return 0

    def refuse_queue(self, error: SettingsError) -> None:
        """Raise this error: in queue mode batches are leased."""
        raise error

    def refuse_lockstep(self, error: SettingsError) -> None:
        """Do nothing: batches are leased."""

    def hand_over(self, elements: _T, watch: Callable[[_T, Any], Any]) -> Any:
        """Return what `watch` makes of a framework's elements and this account, to report those that are done."""
        return watch(elements, self)

    # --- settling batches ---

    def reporter(self, batch: UpcomingBatch) -> Callable[..., None]:
        """Return the function that reports what became of this batch."""
        return partial(self.settle, batch)

    def settle(self, batch: UpcomingBatch, *, done: bool, costs_try: bool = True, reason: str = "") -> None:
        """Report that a batch is `done`, failed for this reason, or (without `costs_try`) is given back.

        Only the first report of a batch counts; a batch that is not among the taken and unsettled ones is ignored.
        """
        if batch in self._taken:
            self._taken.remove(batch)
            self._settled += 1
            self._tell(batch, done=done, costs_try=costs_try, reason=reason)

    def in_hand(self) -> Lease:
        """Return the lease of the oldest batch that was taken and is not settled; raise IndexError if there is none."""
        lease = self._taken[0].lease
        assert lease is not None
        return lease

    def give_back(self) -> None:
        """Give back the oldest unsettled batch, which was not trained on through no fault of its own.

        It is counted as if the user had passed it to `count`. Raise IndexError if there is none.
        """
        self._counted += 1
        self.settle(self._taken[0], done=False, costs_try=False)

    def settle_read(self) -> None:
        """Report all unsettled batches as done, because the user asks for the next one."""
        self._settle_to(self._settled + len(self._taken))

    def count(self, rounds: int) -> None:
        """Count this many more batches as trained on, and report the oldest unsettled ones up to that count as done."""
        self._counted += rounds
        self._settle_to(self._counted)

    def refuse_unread(self, rounds: int) -> None:
        """Raise SettingsError if the user counts more batches than were taken and are not counted yet.

        Raise SettingsError as well in a process that was forked from the one that connected.
        """
        self._receiver.refuse_fork()
        uncounted = self._settled + len(self._taken) - self._counted
        if rounds > uncounted:
            raise SettingsError(
                expected=f"at most the {max(0, uncounted)} batches that were taken and not counted yet",
                got=f"{rounds}",
                where="feed.trained",
                remedy="Count a batch once it is trained on.",
            )

    def count_handed_over(self, reading: int, rounds: int) -> None:
        """Report the first `rounds` batches of a reading as done, after which a framework is asked for the next.

        A reading that is not the newest is ignored: its batches come again.
        """
        if reading == self.reading:
            self._settle_to(rounds)

    def _settle_to(self, number: int) -> None:
        # What a framework took ahead is not done; only what it handed over before it asked for the next is.
        while self._settled < number and self._taken:
            self._settled += 1
            self._tell(self._taken.popleft(), done=True)

    def _tell(self, batch: UpcomingBatch, *, done: bool, costs_try: bool = True, reason: str = "") -> None:
        assert batch.lease is not None
        if done:
            self._accounts.count_trained(batch.position.epoch, batch.number, stop=batch.number + 1)
        else:
            self._accounts.count_given_back(batch.position.epoch, batch.number)
        states = self._states.pop(batch.lease, b"") if done else b""
        self._receiver.outbox.tell(
            LeaseSettled(batch.lease, batch.generation, done, costs_try, states, reason[: NAME.longest])
        )

    def may_count_pass(self, *, is_seen: bool) -> bool:
        """Return whether a framework's pass to its end counts: only if the consumer is seen to get there."""
        return is_seen

    def count_to_end(self, start: Position, _rounds: int) -> None:
        """Move to the next epoch and log this one, when a reader that began at `start` has reached its end.

        Log a warning if only a share of an evaluation without a name was read. Do nothing if the position has moved
        meanwhile. Errors of `ask_batches` pass through, such as LostError if no worker says how many batches there are.
        """
        if self.at != start:
            return
        epoch, batches = plan_epoch(self._spec.work, start.epoch), self._batches(start.epoch)
        self._log_epoch(epoch, batches, start.epoch)
        # A user who evaluates only a part must not take its mean for the mean of the whole evaluation.
        if self._spec.work == "evaluate" and not self._is_named and self._settled < batches:
            self._receiver.log.warning(
                "only a share of the evaluation was read here, others read the rest: a mean over it is that of a share",
                batches=self._settled, of=batches,
            )  # fmt: skip
        self._move(start.epoch + 1)

    # --- named evaluations, whose metrics are summed ---

    def begin_evaluation(self, name: str, nbytes: int) -> None:
        """Join this evaluation: the next readers share its batches from the start, each with `nbytes` of metric states.

        Batches that were taken and not settled are forgotten.
        """
        self._taken.clear()
        self._is_named = True
        self._receiver.outbox.tell(EvaluationNamed(name, nbytes))
        self.at = Position(0, 0, self.at.group)

    def note_states(self, states: bytes) -> None:
        """Keep what the oldest unsettled batch adds to the metrics' variables, until it is reported done.

        Raise IndexError if no batch is unsettled.
        """
        self._states[self.in_hand()] = states

    def ask_sums(self) -> tuple[bytes, int] | None:
        """Return the sums over all batches of the evaluation, and how many batches were given up.

        Return None if some are not settled yet; then the next reader goes on with those. Raise LostError if the
        coordinator does not answer within `lost_timeout_s`, and the error of a feed that fails or is closed.
        """
        answer = self._receiver.ask_sums()
        if answer.sums is None:
            self.at = Position(0, 0, self.at.group)
            return None
        return answer.sums, answer.given_up

    def _move(self, epoch: int) -> None:
        self.at = Position(epoch, 0, self.at.group)
        self._receiver.standing.trained_to = (epoch, 0)

    def finish(self, work: Callable[[], object]) -> bool:
        """Do this work once, in one of the trainers, after all epochs; return whether this trainer did it.

        Wait until the work is leased to us, or another trainer has done it. If it raises, report that it failed, and
        raise that error. Raise SettingsError for a feed that does not train, or was connected without `epochs`. Errors
        of `ask_end` and `settle_end` pass through: LostError if the coordinator is silent for `lost_timeout_s`,
        EndedError if the job is ended meanwhile, and others.
        """
        if self._receiver.settings.core.epochs is None or self._spec.work != "train":
            raise SettingsError(
                expected="a feed that trains and knows how many epochs there are",
                got=f"one to {self._spec.work}, with epochs={self._receiver.settings.core.epochs}",
                where="finish",
                remedy="Give connect(..., epochs=) the number that all trainers use.",
            )
        if not self._receiver.ask_end():
            return False
        try:
            work()
        except BaseException:  # a Ctrl-C as well: the coordinator must not take the work for done
            self._receiver.settle_end(done=False)
            raise
        self._receiver.settle_end(done=True)
        return True

    # --- rounds, which only lockstep has ---

    def rounds_left(self) -> int:
        """Raise SettingsError: in queue mode the rounds that are left depend on how fast the other trainers are."""
        raise only_in_lockstep("the number of rounds that are left")

    def epoch_rounds(self) -> None:
        """Return None: how many rounds of an epoch come here depends on the other trainers."""

    def epochs_done(self) -> tuple[float, int | None]:
        """Return how many epochs all trainers have done, with parts of those under way, and how many batches one has.

        It is what the coordinator said last, asked for anew with each call. Without an answer so far it is the epoch of
        the reader, and None. Errors of `ask_batches` pass through, such as LostError if no worker says how many
        batches an epoch has, and so does the error of a feed that fails or is closed.
        """
        # The coordinator may be away for long, and only a line for people needs the answer: so it is waited for
        # shortly, and only once, and a question that is still open is not asked again.
        patience_s = 0.0
        if self._state_asked is None:
            self._state_asked, patience_s = self._receiver.begin_asking_state(), _PROGRESS_S
        with contextlib.suppress(FutureTimeoutError):
            self._progress = self._receiver.wait_for(self._state_asked, timeout_s=patience_s).epochs
            self._state_asked = None
        if not self._progress:
            return float(self.at.epoch), None
        # Of the epochs under way each is open only in part: trainers begin the next one when the last batches are out.
        done = float(self._progress[0].epoch)
        for epoch in self._progress:
            done += (epoch.fresh - len(epoch.missing)) / max(self._batches(epoch.epoch), 1)
        return done, self._batches(self._progress[0].epoch)

    def _batches(self, epoch: int) -> int:
        return self._receiver.ask_batches(plan_epoch(self._spec.work, epoch), self.at.group)

    def is_within_epoch(self) -> bool:
        """Return whether the next reader's epoch is the first with batches that are not done; it asks the coordinator.

        Raise LostError if the coordinator does not answer within `lost_timeout_s`, and the error of a feed that fails
        or is closed.
        """
        return self.epoch_of(self.state()) == self.at.epoch

    def ends_unseen(self) -> bool:
        """Return the opposite of `is_within_epoch`: a reader sees the end only by asking for another batch.

        It asks the coordinator: raise LostError if that does not answer within `lost_timeout_s`, and the error of a
        feed that fails or is closed.
        """
        return not self.is_within_epoch()

    def most_rounds(self) -> int:
        """Return a number of rounds above that of any epoch, so that a loop of this many always sees the end."""
        return self._spec.most_batches + 1

    # --- saving and restoring ---

    def epoch_of(self, state: Mapping[str, Any]) -> int:
        """Return the first epoch that was not done completely, of a state that `state` returned.

        Raise SettingsError if it is something else.
        """
        return _done_set(fields_of_state(state, ("epochs",), "restore")["epochs"]).epochs[0].epoch

    def state(self) -> dict[str, Any]:
        """Return the done-set as plain values: for each epoch all numbers below a mark, except the missing ones.

        Each missing number is given as its distance to the previous one. The values also name job, stream, plan and
        work. Raise LostError if the coordinator does not answer within `lost_timeout_s`, and the error of a feed that
        fails or is closed.
        """
        done = self._receiver.ask_state()
        return {
            "job": self._spec.job,
            "stream": self._spec.stream,
            "plan_digest": self._spec.plan_digest,
            "work": self._spec.work,
            "epochs": [[epoch.epoch, epoch.fresh, list(epoch.missing)] for epoch in done.epochs],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take all trainers back to a done-set from `state`: batches done since are leased again.

        Raise SettingsError if the state is not what `state` returned, or is of another job, stream, plan or kind of
        work. Errors of `attach` pass through, such as LostError and that of a refusal.
        """
        state = fields_of_state(state, ("job", "stream", "plan_digest", "work", "epochs"), "restore")
        self._refuse_other(state, ("plan_digest", "job", "stream", "work"), "a checkpoint of {}, in queue mode")
        self._rewind(_done_set(state["epochs"]))

    def rewind(self) -> None:
        """Take all trainers back to the very beginning, for a model without a checkpoint.

        Errors of `attach` pass through, such as LostError if the coordinator does not answer.
        """
        self._rewind(DoneSet((EpochDone(0, 0, ()),)))

    def follow(self) -> bool:
        """Move to the first epoch that is not settled now; return whether that is another one than before.

        Another trainer may have restored a checkpoint since this one attached. Raise LostError if the coordinator does
        not answer within `lost_timeout_s`, and the error of a feed that fails or is closed.
        """
        epoch = self.epoch_of(self.state())
        if epoch == self.at.epoch:
            return False
        self._taken.clear()
        self._accounts.forget()
        self._progress, self._state_asked = (), None
        self._move(epoch)
        return True

    def _rewind(self, done: DoneSet) -> None:
        answer = self._receiver.attach(None, done)
        # Only now: after a refusal, what was taken is still ours to report.
        self._taken.clear()
        self._accounts.forget()
        self._progress, self._state_asked = (), None
        self._move(answer.cursor.epoch)


def _done_set(epochs: Any) -> DoneSet:
    """Return a done-set from a state's list of epochs; raise SettingsError if it is no such list, or has no entry."""
    if not isinstance(epochs, list | tuple) or not epochs:
        raise refused("what state() returned, with a list of epochs", epochs, "restore")
    return DoneSet(tuple(map(_epoch_done, epochs)))


def _epoch_done(epoch: Any) -> EpochDone:
    """Return an epoch of a done-set from its entry in a state; raise SettingsError if it is no such entry."""
    try:
        number, fresh, missing = epoch
        distances = tuple(whole(distance, "missing", "restore") for distance in missing)
    except (TypeError, ValueError):
        raise refused(
            "an epoch, the first number that was never leased, and a list of missing ones", epoch, "restore"
        ) from None
    return EpochDone(whole(number, "epoch", "restore"), whole(fresh, "fresh", "restore"), distances)


def only_in_lockstep(what: str) -> SettingsError:
    """Return the SettingsError for something that only streams in lockstep have."""
    return SettingsError(
        expected="a stream in lockstep",
        got=f"a stream in queue mode, which does not have {what}",
        where="feed",
        remedy="Read the feed itself, `for batch in feed:`, or leave mode out of the stream in the job file.",
    )
