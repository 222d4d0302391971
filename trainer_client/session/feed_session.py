"""A feed's session: everything behind a `Feed`, for the feed itself, the TensorFlow adapter and the callback.

Rules: it joins the parts and decides little itself: the receive thread (`network.receiver`) brings batches,
`BatchMaker` hands them out, `TrainedCursor` knows what was trained on, and `Accounts` counts. It must not know sockets
or TensorFlow, and nothing that it imports knows the `Feed` in front of it.
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
    from shared.wire.layout import BucketShape, Field
    from trainer_client.network.receiver import ReceiverSettings
    from trainer_client.session.shared_results import MeansOfTrainers

__all__ = ["FeedSession"]

#: How long the results of an epoch are waited for, which others report as soon as they hear of its end.
_GATHERING_S = 5.0


class FeedSession:
    """One trainer attached to one stream, until `close`, or until nobody references it, its iterators or its
    batches.
    """

    def __init__(self, settings: ReceiverSettings, metrics: MetricsSettings = NO_METRICS) -> None:
        self.receiver = Receiver(settings)
        self.maker = BatchMaker(self.receiver)
        #: Of an elastic run: gives the session in the next world.
        self.join_next: Callable[[], FeedSession] | None = None
        #: Whether somebody ends it together with all ranks, after whatever else its run does.
        self.ends_later = False
        #: The checkpoint that was written or restored last, for people; empty: none was.
        self.saved = ""
        self._on_close: Callable[[FeedSession], None] | None = None
        try:
            answer = self.receiver.attach(None)
            #: Counts of what was read and waited for.
            self.accounts = Accounts(self.receiver.spec.fields)
            self._serve_metrics(metrics)
        except BaseException:
            self.close()
            raise
        self._results = SharedResults(self.receiver)
        #: The stream that is trained on by the run that this feed evaluates for; empty: not known.
        self._run = ""
        self.leases = LeaseAccount(self.receiver, self.accounts, answer) if answer.work else None
        self.cursor = self.leases or TrainedCursor(self.receiver, self.accounts, answer)

    def _serve_metrics(self, settings: MetricsSettings) -> None:
        if settings.listening is not None:
            from trainer_client.session.metrics import serve  # prometheus_client only when it is used

            serve(self.receiver, self.maker, self.accounts, listening=settings.listening, targets=settings.targets)

    # --- what the stream is ---

    @property
    def fields(self) -> tuple[Field, ...]:
        """Key, dtype and shape of one row, for each array of a batch."""
        return self.receiver.spec.fields

    @property
    def shapes(self) -> tuple[BucketShape, ...]:
        """The padded shapes that batches come in."""
        return self.receiver.spec.shapes

    @property
    def producers(self) -> int:
        """How many shards make whole batches, each with its own shapes; 0 if batches are made from samples."""
        return self.receiver.spec.producers

    @property
    def replicas(self) -> int:
        """How many batches of each round this trainer gets: one for each of its ranks."""
        return self.receiver.settings.core.ranks.replicas

    @property
    def rank(self) -> int:
        """The first of this trainer's ranks."""
        return self.receiver.settings.core.ranks.rank

    @property
    def world(self) -> int:
        """How many ranks there are in all."""
        return self.receiver.settings.core.ranks.world

    @property
    def in_queue(self) -> bool:
        """Whether batches are leased, so that trainers need not go in lockstep."""
        return self.leases is not None

    @property
    def most_epochs(self) -> int | None:
        """In queue mode: how many epochs there are for all trainers, if `connect` was told."""
        return self.receiver.settings.core.epochs

    @property
    def trained_rows(self) -> int:
        """How many rows that hold a sample this trainer has trained on."""
        return self.accounts.counts.trained_rows

    @property
    def at_a_time(self) -> int:
        """How many batches a framework should take at a time: several, if handing over costs more than copying."""
        return self.receiver.spec.at_a_time

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.receiver.spec.stream

    @property
    def evaluation(self) -> bool:
        """Whether each opening gives the same epoch."""
        return self.receiver.spec.evaluation

    @property
    def error(self) -> BaseException | None:
        """What stopped the feed, kept because a framework may swallow the exception."""
        return self.receiver.outbox.error

    @property
    def ended(self) -> EndedError | None:
        """That the job was ended, if it was."""
        return self.receiver.outbox.ended

    # --- reading ---

    def open(self, *, keep_interrupt: bool = False) -> BatchIterator:
        """Start reading at the cursor, to the end of its epoch; the cursor stays where it is.

        An earlier Ctrl-C counts as handled, unless it is to be kept.
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
        """A framework reads from now on; `let_go` makes it drop batches that it has finished with."""
        if self.leases is not None and self.producers:
            raise only_in_lockstep("batches that are made whole")
        self.maker.on_short_of_slots, self._on_close = let_go, on_close

    def count_to_end(self, batches: BatchIterator) -> None:
        """An iterator reached its end: if nobody counted its rounds, they all count as trained on."""
        self.cursor.count_to_end(batches.start, batches.taken // self.replicas)

    def count_step_wait(self, wait_s: float) -> None:
        """The training loop waited this long for a step's data; from now on its figures count, not the reader's."""
        self.accounts.count_step_wait(self.cursor.at.epoch, wait_s)
        self.receiver.standing.waited_s += wait_s

    def count_phase(self, phase: str, seconds: float) -> None:
        """The training loop spent this long in a phase other than waiting: one of PHASES."""
        self.accounts.counts.phases_s[phase] += seconds

    def count_retraces(self, traces: int) -> None:
        """A step was traced so often in the midst of training."""
        self.accounts.counts.retraces += traces

    def batches_ahead(self) -> tuple[int, int]:
        """How many batches are ready and not taken yet, and how many were handed to a reader, such as TensorFlow's
        prefetching, and are not trained on.
        """
        return self.receiver.stream.slots.count(SlotState.OFFERED), self.accounts.staged

    def epoch_rounds(self) -> tuple[int, int] | None:
        """How many rounds the cursor's epoch has, and how many of them are left; None where nobody knows (queue)."""
        if not isinstance(self.cursor, TrainedCursor):
            return None
        return self.cursor.epoch_rounds(), self.cursor.rounds_left()

    def share_results(  # noqa: PLR0913 - each is a fact of its own
        self, values: Mapping[str, Any], *, rows: int, epoch: int, step: int, wait: bool = False, evaluation: str = ""
    ) -> dict[str, float] | None:
        """Report means over a number of rows to the coordinator; returns those over all ranks, if asked to wait for
        them. Those of a named `evaluation` are of all its batches.
        """
        step = 0 if self.in_queue and not evaluation else step
        return self._results.share(values, rows=rows, epoch=epoch, step=step, wait=wait, evaluation=evaluation)

    def gather_results(self, values: Mapping[str, Any], *, rows: int, epoch: int) -> MeansOfTrainers:
        """In queue mode: report means of an epoch, and return those over all trainers that are there."""
        return self._results.gather(values, rows=rows, epoch=epoch, patience_s=_GATHERING_S)

    def sum_states(self, states: bytes, *, epoch: int, step: int) -> bytes:
        """Return the sums over all ranks of the run of what each says at this step; waits for them."""
        return self._results.sum_states(states, epoch=epoch, step=step, run=self._run)

    def agree(self, value: float, *, epoch: int, step: int) -> float:
        """The mean of the values of all ranks at this step; waits for them."""
        return self._results.agree(value, epoch=epoch, step=step)

    def watch_others(self, refuse_lost: Callable[[], None]) -> None:
        """Call this now and then while all ranks are waited for: it raises an error if one of them is gone."""
        self.receiver.refuse_lost = refuse_lost

    def evaluate_for(self, training: FeedSession) -> None:
        """Evaluate for the run that trains on this feed, and notice when one of its ranks is gone.

        The name of its stream tells it from other runs: each rank of a stream in lockstep has one trainer.
        """
        self.watch_others(training.receiver.refuse_lost)
        self._run = training.stream

    def end_run(self, why: str, *, epoch: int, step: int) -> None:
        """Tell the coordinator that a run ended in good order; an elastic one ends in all ranks, or in none."""
        self._results.end(why, epoch=epoch, step=0 if self.in_queue else step, together=self.is_elastic)
        if self.is_elastic and not self.ends_later:
            self.end_together()

    def end_together(self) -> None:
        """Wait until all ranks of the world have come to the end of their run."""
        self._results.end_together(self.cursor.at.epoch)

    @property
    def is_elastic(self) -> bool:
        """Whether its ranks are those of a world that may change."""
        return self.receiver.settings.core.world_version is not None

    def check_world(self) -> None:
        """Raise the end of the elastic world, if it has come: before a batch that is here already is trained on."""
        if isinstance(self.error, WorldChangedError):
            raise self.error

    def wait_for_change(self, timeouts: int) -> bool:
        """Whether the world is over, or is within so many heartbeat timeouts."""
        if not self.is_elastic:
            return False
        error = self.receiver.wait_for_failure(timeouts * self.receiver.spec.heartbeat_timeout_s)
        return isinstance(error, WorldChangedError)

    def note_saved(self, checkpoint: Path | None, step: int) -> None:
        """Note the checkpoint that was just written or restored: what ends training names it."""
        if checkpoint is not None:
            self.saved = f"{checkpoint}, step {step}"
            self.receiver.outbox.tell(Saved(self.saved))

    def ask_whether_served(self) -> None:
        """Raise whatever has stopped the feed, that the job was ended, or that no coordinator answers; nothing is read
        meanwhile, for that begins at the start again.
        """
        outbox = self.receiver.outbox
        outbox.raise_if_over()
        if outbox.ended is not None:
            raise outbox.ended
        self.receiver.attach(None)

    def interrupt(self, error: BaseException) -> None:
        """Raise this error in whoever is waiting for a batch, or will be."""
        self.receiver.outbox.interrupt(error)

    def nudge(self) -> None:
        """Wake whoever is waiting for a batch, so that signal handlers run, and then the wait goes on."""
        self.receiver.outbox.nudge()

    # --- the end ---

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still referenced stay valid."""
        if self._on_close is not None:
            self._on_close(self)
        self.receiver.close(timeout_s)
