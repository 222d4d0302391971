"""The session behind a `Feed`, for the feed itself, the TensorFlow adapter and the callback.

Rules: it joins the parts and decides little itself: the receive thread (`network.receiver`) brings batches,
`BatchMaker` hands them out, `TrainedCursor` or `LeaseAccount` knows which were trained on, and `Accounts` counts. Must
not know sockets or TensorFlow, and nothing that it imports knows the `Feed` in front of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError, WorldChangedError
from trainer_client.core.events import Saved
from trainer_client.core.slot_states import SlotState
from trainer_client.network.receiver import Receiver
from trainer_client.session.batch_iterator import BatchIterator
from trainer_client.session.batch_maker import BatchMaker
from trainer_client.session.epoch_account import Accounts
from trainer_client.session.lease_account import LeaseAccount, only_in_lockstep
from trainer_client.session.metrics_settings import NO_METRICS, MetricsSettings
from trainer_client.session.shared_results import SharedResults
from trainer_client.session.trained_cursor import TrainedCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shared.errors import EndedError
    from shared.wire.batch_layout import BucketShape, Field
    from trainer_client.network.receiver import ReceiverSettings
    from trainer_client.session.shared_results import MeansOfTrainers

__all__ = ["FeedSession"]

#: How long to wait for other trainers' results of an epoch, which they report as soon as they hear of its end.
_GATHERING_S = 5.0


class FeedSession:
    """One trainer attached to one stream.

    It lives until `close`, or until there is no reference to it, its iterators or its batches.
    """

    def __init__(self, settings: ReceiverSettings, metrics: MetricsSettings = NO_METRICS) -> None:
        self.receiver = Receiver(settings)
        self.maker = BatchMaker(self.receiver)
        #: In an elastic run: returns the session in the next world.
        self.join_next: Callable[[], FeedSession] | None = None
        #: Whether the caller ends an elastic run together with all ranks itself, after more work.
        self.ends_later = False
        #: The checkpoint that was written or restored last, in words; empty if there is none.
        self.saved = ""
        self._on_close: Callable[[FeedSession], None] | None = None
        try:
            answer = self.receiver.attach(None)
            #: Counts of batches read, and of waits.
            self.accounts = Accounts(self.receiver.spec.fields)
            self._serve_metrics(metrics)
        except BaseException:  # the receive thread runs already, and must not outlive a session that was not made
            self.close()
            raise
        self._results = SharedResults(self.receiver)
        #: The training stream of the run that this feed evaluates for; empty if not known.
        self._run = ""
        self.leases = LeaseAccount(self.receiver, self.accounts, answer) if answer.work else None
        self.cursor = self.leases or TrainedCursor(self.receiver, self.accounts, answer)

    def _serve_metrics(self, settings: MetricsSettings) -> None:
        if settings.listening is not None:
            from trainer_client.session.metrics import serve  # imports prometheus_client only if it is used

            serve(self.receiver, self.maker, self.accounts, listening=settings.listening, targets=settings.targets)

    # --- the stream ---

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return key, dtype and shape of one row, for each array of a batch."""
        return self.receiver.spec.fields

    @property
    def shapes(self) -> tuple[BucketShape, ...]:
        """Return the padded shapes of batches."""
        return self.receiver.spec.shapes

    @property
    def producers(self) -> int:
        """Return how many shards make whole batches, each with its own shapes; 0 if batches are made from samples."""
        return self.receiver.spec.producers

    @property
    def replicas(self) -> int:
        """Return how many batches of each round this trainer gets: one for each of its ranks."""
        return self.receiver.settings.core.ranks.replicas

    @property
    def rank(self) -> int:
        """Return the first of this trainer's ranks."""
        return self.receiver.settings.core.ranks.rank

    @property
    def world(self) -> int:
        """Return the number of ranks of all trainers."""
        return self.receiver.settings.core.ranks.world

    @property
    def in_queue(self) -> bool:
        """Return whether batches are leased, so that trainers need not go in lockstep."""
        return self.leases is not None

    @property
    def most_epochs(self) -> int | None:
        """Return how many epochs all trainers share in queue mode, as given to `connect`; None if it was not given."""
        return self.receiver.settings.core.epochs

    @property
    def trained_rows(self) -> int:
        """Return how many rows with a sample this trainer has trained on."""
        return self.accounts.counts.trained_rows

    @property
    def at_a_time(self) -> int:
        """Return how many batches a framework should take at once: several, if handing over costs more than copying."""
        return self.receiver.spec.at_a_time

    @property
    def stream(self) -> str:
        """Return the stream's name."""
        return self.receiver.spec.stream

    @property
    def evaluation(self) -> bool:
        """Return whether this is an evaluation stream, of which each opening gives the same epoch."""
        return self.receiver.spec.evaluation

    @property
    def error(self) -> BaseException | None:
        """Return the error that stopped the feed, or None; a framework may have swallowed the exception."""
        return self.receiver.outbox.error

    @property
    def ended(self) -> EndedError | None:
        """Return the error of a job that was ended by order, or None while it goes on."""
        return self.receiver.outbox.ended

    # --- reading ---

    def open(self, *, keep_interrupt: bool = False) -> BatchIterator:
        """Return an iterator from the cursor to the end of its epoch; the cursor stays where it is.

        An earlier Ctrl-C counts as handled, unless `keep_interrupt` is set. Raise SettingsError if all epochs of
        `connect(epochs=)` are over.
        """
        if not keep_interrupt:
            self.receiver.outbox.forget_interrupt()
        start = self.cursor.begin_reading()
        if self.most_epochs is not None and start.epoch >= self.most_epochs:
            raise SettingsError(
                expected=f"to read one of the {self.most_epochs} epochs that connect(epochs=) says there are",
                got=f"epoch {start.epoch}, counted from 0",
                where=f"stream {self.stream}",
                remedy="Read while feed.epoch is below that, or pass more epochs to connect, in all trainers.",
            )
        return BatchIterator(self.receiver, self.maker, self.accounts, start, self.leases)

    def serve_framework(self, *, let_go: Callable[[], None], on_close: Callable[[FeedSession], None]) -> None:
        """Prepare for a framework as the reader; `let_go` makes it drop batches that it has finished with.

        Raise SettingsError in queue mode if batches are made whole. `on_close` is called when the session closes.
        """
        if self.leases is not None and self.producers:
            raise only_in_lockstep("batches that are made whole")
        self.maker.on_short_of_slots, self._on_close = let_go, on_close

    def count_to_end(self, batches: BatchIterator) -> None:
        """Count all rounds of an iterator that reached its end as trained on, unless some were counted already."""
        self.cursor.count_to_end(batches.start, batches.taken // self.replicas)

    def count_step_wait(self, wait_s: float) -> None:
        """Add the training loop's wait for a step's data; from now on its waits are reported, not the reader's."""
        self.accounts.count_step_wait(self.cursor.at.epoch, wait_s)
        self.receiver.standing.waited_s += wait_s

    def count_phase(self, phase: str, seconds: float) -> None:
        """Add the training loop's time in one of PHASES."""
        self.accounts.counts.phases_s[phase] += seconds

    def count_retraces(self, traces: int) -> None:
        """Add to the count of steps that were traced in the midst of training."""
        self.accounts.counts.retraces += traces

    def batches_ahead(self) -> tuple[int, int]:
        """Return how many batches are ready and not taken, and how many were taken and are not trained on.

        The latter are in the hands of a reader, such as TensorFlow's prefetching.
        """
        return self.receiver.stream.slots.count(SlotState.OFFERED), self.accounts.staged

    def epoch_rounds(self) -> tuple[int, int] | None:
        """Return how many rounds the cursor's epoch has, and how many are left; None in queue mode."""
        if not isinstance(self.cursor, TrainedCursor):
            return None
        return self.cursor.epoch_rounds(), self.cursor.rounds_left()

    def share_results(  # noqa: PLR0913 - each is a fact of its own
        self, values: Mapping[str, Any], *, rows: int, epoch: int, step: int, wait: bool = False, evaluation: str = ""
    ) -> dict[str, float] | None:
        """Report means over a number of rows to the coordinator; return those over all ranks.

        With `wait`, wait for all ranks; otherwise return None if they are not known within a second. Means of a named
        `evaluation` cover all its batches.
        """
        step = 0 if self.in_queue and not evaluation else step
        return self._results.share(values, rows=rows, epoch=epoch, step=step, wait=wait, evaluation=evaluation)

    def gather_results(self, values: Mapping[str, Any], *, rows: int, epoch: int) -> MeansOfTrainers:
        """Report means of an epoch, in queue mode; return those over all trainers that report within 5 s."""
        return self._results.gather(values, rows=rows, epoch=epoch, patience_s=_GATHERING_S)

    def sum_states(self, states: bytes, *, epoch: int, step: int) -> bytes:
        """Return the sums over all ranks of their metric states at this step, after waiting for all ranks."""
        return self._results.sum_states(states, epoch=epoch, step=step, run=self._run)

    def agree(self, value: float, *, epoch: int, step: int) -> float:
        """Return the mean of all ranks' values at this step, after waiting for all ranks."""
        return self._results.agree(value, epoch=epoch, step=step)

    def watch_others(self, refuse_lost: Callable[[], None]) -> None:
        """Have this function called repeatedly during waits for all ranks; it raises an error if a rank is gone."""
        self.receiver.refuse_lost = refuse_lost

    def evaluate_for(self, training: FeedSession) -> None:
        """Let this feed evaluate for the run that trains with `training`, and notice when a rank of that run is gone.

        The training stream's name identifies the run: each rank of a stream in lockstep has only one trainer.
        """
        self.watch_others(training.receiver.refuse_lost)
        self._run = training.stream

    def end_run(self, why: str, *, epoch: int, step: int) -> None:
        """Report that a run ended in good order, and why; an elastic run ends in all ranks, or in none."""
        self._results.end(why, epoch=epoch, step=0 if self.in_queue else step, together=self.is_elastic)
        if self.is_elastic and not self.ends_later:
            self.end_together()

    def end_together(self) -> None:
        """Wait until all ranks of the world have reached the end of their run."""
        self._results.end_together(self.cursor.at.epoch)

    @property
    def is_elastic(self) -> bool:
        """Return whether this trainer belongs to an elastic world."""
        return self.receiver.settings.core.world_version is not None

    def check_world(self) -> None:
        """Raise WorldChangedError if the elastic world is over, so that no prefetched batch is trained on after it."""
        if isinstance(self.error, WorldChangedError):
            raise self.error

    def wait_for_change(self, timeouts: int) -> bool:
        """Wait up to this many heartbeat timeouts for the elastic world to be over; return whether it is."""
        if not self.is_elastic:
            return False
        error = self.receiver.wait_for_failure(timeouts * self.receiver.spec.heartbeat_timeout_s)
        return isinstance(error, WorldChangedError)

    def note_saved(self, checkpoint: Path | None, step: int) -> None:
        """Note the checkpoint that was just written or restored, for errors that name it; do nothing if it is None."""
        if checkpoint is not None:
            self.saved = f"{checkpoint}, step {step}"
            self.receiver.outbox.tell(Saved(self.saved))

    def ask_whether_served(self) -> None:
        """Raise the feed's error, the job's end, or LostError if no coordinator answers; else do nothing.

        It attaches again without a cursor, so reading begins at the start afterwards; no reader may be reading.
        """
        outbox = self.receiver.outbox
        outbox.raise_if_over()
        if outbox.ended is not None:
            raise outbox.ended
        self.receiver.attach(None)

    def interrupt(self, error: BaseException) -> None:
        """Stop the feed with this error, which is raised in all present and later readers."""
        self.receiver.outbox.interrupt(error)

    def nudge(self) -> None:
        """Wake waiting readers for a moment, so that pending signal handlers run; then they wait on."""
        self.receiver.outbox.nudge()

    # --- the end ---

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still referenced stay valid."""
        if self._on_close is not None:
            self._on_close(self)
        self.receiver.close(timeout_s)
