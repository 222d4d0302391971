"""What a feed has trained on: in lockstep the cursor, the first batch that was not trained on yet.

Rules: it moves with batches that were trained on, never with those that were read. All ranks stand at the same place,
which is checked when they attach at a cursor. The cursor of an evaluation stream never moves: each opening gives the
same epoch. What differs between lockstep and queue mode is a method of `FeedCursor`, so that nobody asks which of the
two a feed is in; `lease_account` has the queue's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import SettingsError
from shared.rounds import rounds as rounds_of
from shared.rounds import rounds_left
from shared.wire.message_parts import Cursor
from trainer_client.core.upcoming import Position
from trainer_client.session.call_checks import fields_of_state, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shared.wire.message_parts import Lease
    from shared.wire.messages import Attached, Limited
    from trainer_client.core.upcoming import UpcomingBatch
    from trainer_client.network.outbox import OfferedBatch
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.epoch_account import Accounts

__all__ = ["FeedCursor", "TrainedCursor"]

_T = TypeVar("_T")

#: The names in a state.
_NAMES = ("job", "stream", "plan_digest", "epoch", "number", "group")


class FeedCursor:
    """What a feed has trained on, by whichever way of sharing batches; without more it is that of ranks in lockstep."""

    #: Whether another trainer restored a checkpoint since this one did; ranks in lockstep restore together.
    is_taken_back = False
    #: Whether evaluations have names, under which other trainers take part in them.
    names_evaluations = False
    #: Whether trainers share an epoch batch by batch, so that each has trained on a share of it.
    shares_epochs = False

    def __init__(self, receiver: Receiver, accounts: Accounts, answer: Attached) -> None:
        self._receiver = receiver
        self._spec = receiver.spec
        self._accounts = accounts
        #: Where the next reader begins.
        self.at = Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group)
        #: At the last line of an epoch: the time, and for how long each limit had been heard.
        self._logged_s = time.monotonic()
        self._heard_before: dict[str, float] = {}

    def take(self, offered: OfferedBatch) -> bool:
        """Note that a consumer takes this batch; return False if it has to be skipped: never in lockstep."""
        return True

    def reporter(self, batch: UpcomingBatch) -> Callable[..., None] | None:
        """Return the function that reports the outcome of this batch; None if batches are not reported one by one.

        That is so in lockstep.
        """
        return None

    def settle_read(self) -> None:
        """Report what was read as done, because the user asks for the next batch; in lockstep do nothing."""

    def refuse_ended(self) -> None:
        """Raise the error of an ended job, if a reader's end does not show it; in lockstep do nothing."""

    def step_of_results(self, step: int) -> int:
        """Return the step under which all trainers report results of the same moment: in lockstep the given one."""
        return step

    def refuse_queue(self, error: SettingsError) -> None:
        """Raise this error if batches are leased; in lockstep do nothing."""

    def hand_over(self, elements: _T, watch: Callable[[_T, Any], Any]) -> Any:
        """Return a framework's elements, in queue mode as `watch` makes them of the elements and this account.

        In lockstep they are returned as they are.
        """
        return elements

    def _log_epoch(self, epoch: int, batches: int, shown: int) -> None:
        """Log the account of an epoch that is over, as number `shown`, if any of it was read; then forget it."""
        account = self._accounts.close(epoch)
        if account is not None:
            now_s = time.perf_counter()
            fields = account.log_fields(
                now_s=now_s, batches=batches, limit=self._take_limit(), is_shared=self.shares_epochs
            )
            self._receiver.log.info("epoch done", epoch=shown, **fields)

    def _take_limit(self) -> Limited | None:
        """Return what limited the job since the last line, None if that is unknown; begin to look anew."""
        limits, now_s = self._receiver.stream.limits, time.monotonic()
        limit = limits.of_span(self._heard_before, now_s - self._logged_s, now_s)
        self._logged_s, self._heard_before = now_s, limits.seconds
        return limit

    def _refuse_other(self, state: Mapping[str, Any], names: Iterable[str], words: str) -> None:
        """Raise SettingsError if one of these facts is missing from the state, or is another than this stream's."""
        for name in names:
            own = getattr(self._spec, name)
            if state.get(name) != own:
                raise SettingsError(
                    expected=words.format(f"{name} {own}"),
                    got=str(state.get(name)),
                    where="restore",
                    remedy="Job file or data changed since the checkpoint: restore them, or start without it.",
                )


class TrainedCursor(FeedCursor):
    """The cursor of one feed in lockstep, at `at`."""

    def __init__(self, receiver: Receiver, accounts: Accounts, answer: Attached) -> None:
        super().__init__(receiver, accounts, answer)
        self._ranks = receiver.settings.core.ranks
        self._next_group = answer.next_group
        #: Whether this rank has attached at its cursor, so that the coordinator could compare it with other ranks'.
        self._stated = False
        #: Whether an iterator that reached its end has counted its whole epoch, and none was opened since. Until then
        #: `count` adds nothing, or the rounds would count twice.
        self._all_counted = False

    @property
    def goes_in_step(self) -> bool:
        """Return whether other ranks take the same steps, so that all have to decide alike."""
        return self._ranks.world > self._ranks.replicas

    def in_hand(self) -> Position | Lease:
        """Return the position of the batch that is trained on, the cursor; of several replicas' batches the first."""
        return self.at

    def refuse_lockstep(self, error: SettingsError) -> None:
        """Raise this error: batches are not leased."""
        raise error

    def finish(self, work: Callable[[], object]) -> bool:
        """Raise SettingsError: ranks in lockstep know without asking which of them does such work."""
        raise SettingsError(
            expected="a stream in queue mode",
            got="a stream in lockstep, whose ranks know without asking who is first",
            where="feed.finish",
            remedy="Ask `trainer_client.role().is_master`, or go by the rank that you gave to connect.",
        )

    def begin_reading(self) -> Position:
        """Return the start of a reader that is opened now; one rank of several first attaches at its cursor, once.

        A member of an elastic world attaches as well; an evaluation stream never does. Errors of `attach` pass
        through, such as RefusedError if other ranks stand at another cursor, and LostError.
        """
        self._all_counted = False
        # Each rank has its own word for where it stands, from its own checkpoint: the coordinator compares them before
        # anybody reads, or ranks would train on different rounds as one step.
        is_alone = not self.goes_in_step and self._receiver.settings.core.world_version is None
        if not self._stated and not is_alone and not self._spec.evaluation:
            self._reattach(self.at)
        return self.at

    # --- counting rounds ---

    def count(self, rounds: int) -> None:
        """Count this many more rounds as trained on, and log each epoch that they complete.

        Do nothing in an evaluation stream, or if the reader that ended has counted its whole epoch already. Errors
        of `ask_batches` pass through, such as LostError if no worker says how many batches an epoch has.
        """
        if self._spec.evaluation or self._all_counted:
            return
        for _ in range(rounds):
            self._count_round()

    def refuse_unread(self, rounds: int) -> None:
        """Raise SettingsError if the user counts rounds of which no batch was read: the cursor would skip data.

        Raise SettingsError as well in a process that was forked from the one that connected. Do nothing else in an
        evaluation stream, or if a whole epoch was counted by its reader. Errors of `ask_batches` pass through, such as
        LostError if no worker says how many batches an epoch has.
        """
        self._receiver.refuse_fork()
        if self._spec.evaluation or self._all_counted:
            return
        at, furthest = self.at, self._receiver.outbox.furthest
        for counted in range(rounds):
            if (at.epoch, at.number) > furthest:
                raise SettingsError(
                    expected=f"at most the {counted} rounds that were read and not counted yet",
                    got=f"{rounds}",
                    where="feed.trained",
                    remedy="Count a round once its batches are trained on; to go elsewhere, restore a cursor.",
                )
            at = self._after(at)

    def _count_round(self) -> None:
        at, batches = self.at, self._batches()
        stop = self._stop_of_round(at, batches)
        self._accounts.count_trained(at.epoch, at.number, stop=stop)
        self._move(Position(at.epoch, stop, at.group), batches)
        if stop >= batches:
            self._log_epoch(at.epoch, batches, at.epoch)

    def _stop_of_round(self, at: Position, batches: int) -> int:
        return next(rounds_of(at.number, batches, at.group, self._ranks.world)).stop

    def _after(self, at: Position) -> Position:
        """Return the position of the round after this one, which may be the beginning of the next epoch.

        Errors of `ask_batches` pass through, such as LostError if no worker says how many batches the epoch has.
        """
        batches = self._receiver.ask_batches(at.epoch, at.group)
        stop = self._stop_of_round(at, batches)
        return Position(at.epoch, stop, at.group) if stop < batches else Position(at.epoch + 1, 0, self._next_group)

    def may_count_pass(self, *, is_seen: bool) -> bool:
        """Return whether a framework's pass that was consumed to its end counts as trained on.

        It does, whether seen or not, except in an evaluation stream.
        """
        return not self._spec.evaluation

    def count_to_end(self, start: Position, rounds: int) -> None:
        """Count and log a whole epoch whose reader, begun at `start`, reached its end, unless rounds were counted.

        `rounds` is how many the reader took. The cursor then moves to the next epoch, except in an evaluation stream.
        Do nothing if it has moved since `start`. Errors of `ask_batches` pass through, such as LostError if no worker
        says how many batches the epoch has.
        """
        if self.at != start:
            return
        self._accounts.count_trained(start.epoch, start.number, rounds)
        self._log_epoch(start.epoch, self._receiver.ask_batches(start.epoch, start.group), start.epoch)
        if not self._spec.evaluation:
            self._all_counted = True
            self._move(Position(start.epoch + 1, 0, self._next_group), 1)

    def _move(self, to: Position, batches: int) -> None:
        self.at = to if to.number < batches else Position(to.epoch + 1, 0, self._next_group)
        self._receiver.standing.trained_to = (self.at.epoch, self.at.number)

    # --- rounds of an epoch ---

    def rounds_left(self) -> int:
        """Return the number of rounds from the cursor to the end of its epoch; raise LostError if no worker answers.

        Other errors of `ask_batches` pass through, such as that of a feed that fails or is closed.
        """
        return rounds_left(self.at.number, self._batches(), self.at.group, self._ranks.world)

    def epoch_rounds(self) -> tuple[int, int] | None:
        """Return how many rounds the cursor's whole epoch has, and how many of them are left; in queue mode None.

        Errors of `ask_batches` pass through, such as LostError if no worker says how many batches the epoch has.
        """
        return rounds_left(0, self._batches(), self.at.group, self._ranks.world), self.rounds_left()

    def epochs_done(self) -> tuple[float, int | None]:
        """Return how many epochs are trained on, with the part of the one under way, and how many rounds that one has.

        In queue mode it is what all trainers together have done; the number of rounds is None if not known. Errors of
        `ask_batches` pass through, such as LostError if no worker says how many batches the epoch has.
        """
        rounds = rounds_left(0, self._batches(), self.at.group, self._ranks.world)
        return self.at.epoch + 1 - self.rounds_left() / max(rounds, 1), rounds

    def is_within_epoch(self) -> bool:
        """Return whether an epoch is begun and not over: whether the cursor stands behind its first round."""
        return bool(self.at.number)

    def ends_unseen(self) -> bool:
        """Return whether the epoch is over and only asking for another batch would show it: never in lockstep."""
        return False

    def most_rounds(self) -> int:
        """Return an upper bound on the number of rounds of any epoch."""
        group = max(self.at.group, self._next_group)
        return rounds_left(0, -(-self._spec.most_batches // group) * group, group, self._ranks.world)

    def _batches(self) -> int:
        return self._receiver.ask_batches(self.at.epoch, self.at.group)

    # --- saving and restoring ---

    def epoch_of(self, state: Mapping[str, Any]) -> int:
        """Return the first epoch that was not trained on completely, of a state that `state` returned."""
        return int(state["epoch"])

    def state(self) -> dict[str, Any]:
        """Return the cursor as plain values, for a checkpoint: job, stream, plan, epoch, number and group."""
        return {
            "job": self._spec.job,
            "stream": self._spec.stream,
            "plan_digest": self._spec.plan_digest,
            "epoch": self.at.epoch,
            "number": self.at.number,
            "group": self.at.group,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Attach again at a cursor from `state`.

        Raise SettingsError if it is not what `state` returned, or is of another job, stream or plan. Errors of
        `attach` pass through, such as RefusedError if other ranks are elsewhere, and LostError.
        """
        state = fields_of_state(state, _NAMES, "restore")
        self._refuse_other(state, ("job", "stream", "plan_digest"), "a cursor of {}")
        epoch, number, group = (whole(state[name], name, "restore") for name in ("epoch", "number", "group"))
        self._reattach(Position(epoch, number, group))

    def rewind(self) -> None:
        """Attach again at the very beginning, for a model without a checkpoint, unless the cursor is there.

        Errors of `attach` pass through, such as RefusedError if other ranks are elsewhere, and LostError.
        """
        if (self.at.epoch, self.at.number) != (0, 0):
            self._reattach(Position(0, 0, self.at.group))

    def _reattach(self, at: Position) -> None:
        answer = self._receiver.attach(Cursor(at.epoch, at.number, at.group, self._spec.plan_digest))
        # Only now: after a refusal, the coordinator has yet to compare where this rank stands.
        self._stated = True
        self._accounts.forget()
        self._next_group = answer.next_group
        self._move(Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group), answer.batches)
