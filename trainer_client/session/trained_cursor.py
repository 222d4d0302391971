"""The cursor in lockstep: the first batch that was not trained on yet.

Rules: it moves with batches that were trained on, never with those that were read. All ranks stand at the same place,
which is checked when they attach at a cursor. The cursor of an evaluation stream never moves: each opening gives the
same epoch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.rounds import rounds as rounds_of
from shared.rounds import rounds_left
from shared.wire.message_parts import Cursor
from trainer_client.core.upcoming import Position
from trainer_client.session.call_checks import fields_of_state, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.wire.messages import Attached
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.epoch_account import Accounts

__all__ = ["TrainedCursor"]

#: The names in a state.
_NAMES = ("job", "stream", "plan_digest", "epoch", "number", "group")


class TrainedCursor:
    """The cursor of one feed, at `at`."""

    def __init__(self, receiver: Receiver, accounts: Accounts, answer: Attached) -> None:
        self._receiver = receiver
        self._spec = receiver.spec
        self._ranks = receiver.settings.core.ranks
        self._accounts = accounts
        self._next_group = answer.next_group
        #: Whether this rank has attached at its cursor, so that the coordinator could compare it with other ranks'.
        self._stated = False
        #: Whether an iterator that reached its end has counted its whole epoch, and none was opened since. Until then
        #: `count` adds nothing, or the rounds would count twice.
        self._all_counted = False
        self.at = Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group)

    def begin_reading(self) -> Position:
        """Return the start of a reader that is opened now; one rank of several first attaches at its cursor, once."""
        self._all_counted = False
        is_alone = self._ranks.world == self._ranks.replicas and self._receiver.settings.core.world_version is None
        if not self._stated and not is_alone and not self._spec.evaluation:
            self._reattach(self.at)
        return self.at

    # --- counting rounds ---

    def count(self, rounds: int) -> None:
        """Count this many more rounds as trained on."""
        if self._spec.evaluation or self._all_counted:
            return
        for _ in range(rounds):
            self._count_one()

    def refuse_unread(self, rounds: int) -> None:
        """Raise SettingsError if the user counts rounds of which no batch was read: the cursor would skip data."""
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

    def _count_one(self) -> None:
        at, batches = self.at, self._batches()
        stop = self._stop_of_round(at, batches)
        self._accounts.count_trained(at.epoch, at.number, stop=stop)
        self._move(Position(at.epoch, stop, at.group), batches)
        if stop >= batches:
            self._log_epoch(at.epoch, batches)

    def _stop_of_round(self, at: Position, batches: int) -> int:
        return next(rounds_of(at.number, batches, at.group, self._ranks.world)).stop

    def _after(self, at: Position) -> Position:
        """Return the position of the round after this one."""
        batches = self._receiver.ask_batches(at.epoch, at.group)
        stop = self._stop_of_round(at, batches)
        return Position(at.epoch, stop, at.group) if stop < batches else Position(at.epoch + 1, 0, self._next_group)

    def count_to_end(self, start: Position, rounds: int) -> None:
        """Count and log a whole epoch whose reader, begun at `start`, reached its end, unless rounds were counted.

        The cursor then moves to the next epoch, except in an evaluation stream.
        """
        if self.at != start:
            return
        self._accounts.count_trained(start.epoch, start.number, rounds)
        self._log_epoch(start.epoch, self._receiver.ask_batches(start.epoch, start.group))
        if not self._spec.evaluation:
            self._all_counted = True
            self._move(Position(start.epoch + 1, 0, self._next_group), 1)

    def _move(self, to: Position, batches: int) -> None:
        self.at = to if to.number < batches else Position(to.epoch + 1, 0, self._next_group)
        self._receiver.standing.trained_to = (self.at.epoch, self.at.number)

    def _log_epoch(self, epoch: int, batches: int) -> None:
        """Log the account of an epoch that is over, if any of it was read."""
        account = self._accounts.close(epoch)
        if account is not None:
            fields = account.log_fields(now_s=time.perf_counter(), batches=batches)
            self._receiver.log.info("epoch done", epoch=epoch, **fields)

    # --- rounds of an epoch ---

    def rounds_left(self) -> int:
        """Return the number of rounds from the cursor to the end of its epoch."""
        return rounds_left(self.at.number, self._batches(), self.at.group, self._ranks.world)

    def epoch_rounds(self) -> int:
        """Return the number of rounds of the cursor's whole epoch."""
        return rounds_left(0, self._batches(), self.at.group, self._ranks.world)

    def most_rounds(self) -> int:
        """Return an upper bound on the number of rounds of any epoch."""
        group = max(self.at.group, self._next_group)
        return rounds_left(0, -(-self._spec.most_batches // group) * group, group, self._ranks.world)

    def _batches(self) -> int:
        return self._receiver.ask_batches(self.at.epoch, self.at.group)

    # --- saving and restoring ---

    def epoch_of(self, state: Mapping[str, Any]) -> int:
        """Return the first epoch of this state that was not trained on completely."""
        return int(state["epoch"])

    def state(self) -> dict[str, Any]:
        """Return the cursor as plain values, for a checkpoint."""
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

        Raise SettingsError if it is of another job, stream or plan; the coordinator refuses it if other ranks are
        elsewhere.
        """
        state, mine = fields_of_state(state, _NAMES, "restore"), self.state()
        for name in ("job", "stream", "plan_digest"):
            if state.get(name) != mine[name]:
                raise SettingsError(
                    expected=f"a cursor of {name} {mine[name]}",
                    got=str(state.get(name)),
                    where="restore",
                    remedy="Job file or data changed since the checkpoint: restore them, or start without it.",
                )
        epoch, number, group = (whole(state[name], name, "restore") for name in ("epoch", "number", "group"))
        self._reattach(Position(epoch, number, group))

    def rewind(self) -> None:
        """Attach again at the very beginning, for a model without a checkpoint, unless the cursor is there."""
        if (self.at.epoch, self.at.number) != (0, 0):
            self._reattach(Position(0, 0, self.at.group))

    def _reattach(self, at: Position) -> None:
        self._stated = True
        self._accounts.forget()
        answer = self._receiver.attach(Cursor(at.epoch, at.number, at.group, self._spec.plan_digest))
        self._next_group = answer.next_group
        self._move(Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group), answer.batches)
