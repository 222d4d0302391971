"""The session behind a `Feed`, for the feed itself, the TensorFlow adapter and the callback.

Rules: it joins the parts and decides little itself: the receive thread (`network.receiver`) brings batches,
`BatchMaker` hands them out, `cursor` knows which were trained on, by whichever way trainers share them, `Accounts`
counts, and `results` are shared with all ranks. Callers use the part that they mean. In an elastic run only a member's
identity outlives a world, so there is no state to be brought up to date: each world has a session of its own. Must not
know sockets or TensorFlow, and nothing that it imports knows the `Feed` in front of it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError, WorldChangedError
from shared.metrics.listening import Listening, ListeningWords, listening_of
from trainer_client.core.events import Saved
from trainer_client.core.slot_states import SlotState
from trainer_client.network.receiver import Receiver
from trainer_client.network.trainer_log import claim_name, release_name
from trainer_client.network.world_places import wait_for_place
from trainer_client.session.batch_iterator import BatchIterator
from trainer_client.session.batch_maker import BatchMaker
from trainer_client.session.call_checks import whole
from trainer_client.session.epoch_account import Accounts
from trainer_client.session.lease_account import LeaseAccount, only_in_lockstep
from trainer_client.session.shared_results import SharedResults
from trainer_client.session.trained_cursor import TrainedCursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.errors import EndedError
    from shared.logs import Log
    from trainer_client.network.receiver import ReceiverSettings

__all__ = ["ElasticMember", "FeedSession", "MetricsSettings"]

_WORDS = ListeningWords(listen="metrics_listen", file="metrics_token =", insecure="metrics_insecure = True")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The address to serve metrics at (None: nowhere), and the folder to announce it in."""

    listening: Listening | None = None
    targets: str | Path | None = None

    @classmethod
    def of(
        cls,
        *,
        port: int | None,
        listen: str | None,
        token: str | Path | None,
        insecure: bool,
        targets: str | Path | None,
    ) -> MetricsSettings:
        """Return the settings for these arguments of `connect`; NO_METRICS if neither port nor address is given.

        `port` counts if `listen` names none (0, or None: any free one), and `token` is the token's file. Raise
        SettingsError for an invalid port, address or token file, or if anyone beyond this host could read without a
        token, unless `insecure`.
        """
        if port is None and not listen:
            return NO_METRICS
        port = 0 if port is None else whole(port, "metrics_port", "connect", most=2**16 - 1)
        file = Path(token) if token is not None else None
        return cls(listening=listening_of(listen or "", port, file, insecure=insecure, words=_WORDS), targets=targets)


NO_METRICS = MetricsSettings()


def _named_receiver(settings: ReceiverSettings) -> Receiver:
    """Return a receiver under a name that no other living feed of its stream and rank has in this process.

    Errors of making it pass through.
    """
    core = settings.core
    name = claim_name(core.stream, core.ranks.rank, core.name)
    release = partial(release_name, core.stream, core.ranks.rank, name)
    try:
        receiver = Receiver(replace(settings, core=replace(core, name=name)))
    except BaseException:  # nobody else gives the name back
        release()
        raise
    receiver.at_end(release)
    return receiver


class FeedSession:
    """One trainer attached to one stream.

    It lives until `close`, or until there is no reference to it, its iterators or its batches. Making one raises what
    `Receiver` and its `attach` raise, and SettingsError or MachineError if metrics cannot be served; nothing is left
    open then.
    """

    def __init__(self, settings: ReceiverSettings, metrics: MetricsSettings = NO_METRICS) -> None:
        self.receiver = _named_receiver(settings)
        self.outbox = self.receiver.outbox
        self.maker = BatchMaker(self.receiver)
        #: This trainer's ranks: it gets one batch of each round for each of them.
        self.ranks = settings.core.ranks
        #: How many epochs all trainers share in queue mode, as given to `connect`; None if it was not given.
        self.most_epochs = settings.core.epochs
        #: Whether this trainer belongs to an elastic world.
        self.is_elastic = settings.core.world_version is not None
        #: In an elastic run: returns the session in the next world.
        self.join_next: Callable[[], FeedSession] | None = None
        #: Whether the caller ends an elastic run together with all ranks itself, after more work.
        self.ends_later = False
        #: The checkpoint that was written or restored last, in words; empty if there is none.
        self.saved = ""
        self._on_close: Callable[[FeedSession], None] | None = None
        try:
            answer = self.receiver.attach(None)
            #: The coordinator's description of the stream.
            self.spec = self.receiver.spec
            #: Counts of batches read, and of waits.
            self.accounts = Accounts(self.spec.fields, self.outbox.note_trained)
            self._serve_metrics(metrics)
        except BaseException:  # the receive thread runs already, and must not outlive a session that was not made
            self.close()
            raise
        #: What was trained on: one class for each way in which trainers share batches.
        self.cursor: TrainedCursor | LeaseAccount = (LeaseAccount if answer.work else TrainedCursor)(
            self.receiver, self.accounts, answer
        )
        self.results = SharedResults(self.receiver, self.cursor)

    def _serve_metrics(self, settings: MetricsSettings) -> None:
        if settings.listening is not None:
            from trainer_client.session.metrics import serve  # imports prometheus_client only if it is used

            serve(self.receiver, self.maker, self.accounts, listening=settings.listening, targets=settings.targets)

    @property
    def log(self) -> Log:
        """Return the log of this feed, whose lines name job, stream, trainer, rank and run."""
        return self.receiver.log

    @property
    def leases(self) -> LeaseAccount:
        """Return the account of leased batches; only a stream in queue mode has one (`cursor.refuse_lockstep`)."""
        assert isinstance(self.cursor, LeaseAccount)
        return self.cursor

    @property
    def trained_rows(self) -> int:
        """Return how many rows with a sample this trainer has trained on since it connected."""
        return self.accounts.counts.trained_rows

    @property
    def error(self) -> BaseException | None:
        """Return the error that stopped the feed, or None; a framework may have swallowed the exception."""
        return self.outbox.error

    @property
    def ended(self) -> EndedError | None:
        """Return the error of a job that was ended by order, or None while it goes on."""
        return self.outbox.ended

    # --- reading ---

    def open(self, *, keep_interrupt: bool = False) -> BatchIterator:
        """Return an iterator from the cursor to the end of its epoch; the cursor stays where it is.

        An earlier Ctrl-C counts as handled, unless `keep_interrupt` is set. Raise SettingsError if all epochs of
        `connect(epochs=)` are over. In lockstep, one rank of several, or of an elastic world, first attaches at
        its cursor, once, except in an evaluation stream. Errors of the cursor's `begin_reading` pass through, such as
        RefusedError if other ranks stand elsewhere, and LostError if the coordinator does not answer.
        """
        if not keep_interrupt:
            self.outbox.forget_interrupt()
        start = self.cursor.begin_reading()
        if self.most_epochs is not None and start.epoch >= self.most_epochs:
            raise SettingsError(
                expected=f"to read one of the {self.most_epochs} epochs that connect(epochs=) says there are",
                got=f"epoch {start.epoch}, counted from 0",
                where=f"stream {self.spec.stream}",
                remedy="Read while feed.epoch is below that, or pass more epochs to connect, in all trainers.",
            )
        return BatchIterator(self.receiver, self.maker, self.accounts, start, self.cursor)

    def serve_framework(self, *, let_go: Callable[[], None], on_close: Callable[[FeedSession], None]) -> None:
        """Prepare for a framework as the reader; `let_go` makes it drop batches that it has finished with.

        Raise SettingsError in queue mode if batches are made whole. `on_close` is called when the session closes.
        """
        if self.spec.producers:
            self.cursor.refuse_queue(only_in_lockstep("batches that are made whole"))
        self.maker.on_short_of_slots, self._on_close = let_go, on_close

    def count_step_wait(self, wait_s: float) -> None:
        """Add the training loop's wait for a step's data; from now on its waits are reported, not the reader's."""
        self.accounts.count_step_wait(self.cursor.at.epoch, wait_s)
        self.receiver.standing.waited_s += wait_s
        self.receiver.standing.begin_step()

    def batches_ahead(self) -> tuple[int, int]:
        """Return how many batches are ready and not taken, and how many were taken and are not trained on.

        The latter are in the hands of a reader, such as TensorFlow's prefetching; at most 4096 are counted.
        """
        return self.receiver.stream.slots.count(SlotState.OFFERED), self.accounts.staged

    @property
    def limit_now(self) -> str:
        """Return what limits the job now, as the coordinator says; empty if that is unknown, or it is away."""
        return self.receiver.stream.limits.limit_now(time.monotonic())

    # --- runs ---

    def watch_others(self, refuse_lost: Callable[[], None]) -> None:
        """Have this function called repeatedly during waits for all ranks; it raises an error if a rank is gone.

        Such a wait passes that error on.
        """
        self.receiver.refuse_lost = refuse_lost

    def evaluate_for(self, training: FeedSession) -> None:
        """Let this feed evaluate for the run that trains with `training`, and notice when a rank of it is gone.

        Waits for all ranks then raise the error of the function that `training` watches the others with.
        """
        self.watch_others(training.receiver.refuse_lost)
        # The training stream's name identifies the run: each rank of a stream in lockstep has only one trainer.
        self.results.join_run(training.spec.stream)

    def end_run(self, why: str, *, epoch: int, step: int) -> None:
        """Report that a run ended in good order, and why; an elastic run ends in all ranks, or in none.

        An elastic run waits until all ranks have reached the end, or only notes it if `ends_later`: raise LostError if
        a rank or the coordinator is lost, and the error of a feed that fails or is closed. Other runs wait for a second
        at most. Raise SettingsError if a number is out of the protocol's bounds.
        """
        self.results.end(why, epoch=epoch, step=step, together=self.is_elastic)
        if self.is_elastic and not self.ends_later:
            self.results.end_together()

    def check_world(self) -> None:
        """Raise WorldChangedError if the elastic world is over, so that no prefetched batch is trained on after it.

        Do nothing otherwise, even if another error stopped the feed.
        """
        if isinstance(self.error, WorldChangedError):
            raise self.error

    def wait_for_change(self, timeouts: int) -> bool:
        """Wait up to this many heartbeat timeouts for the elastic world to be over; return whether it is.

        Return False at once if the run is not elastic, and as soon as another error stops the feed.
        """
        if not self.is_elastic:
            return False
        error = self.receiver.wait_for_failure(timeouts * self.spec.heartbeat_timeout_s)
        return isinstance(error, WorldChangedError)

    def note_saved(self, checkpoint: Path | None, step: int) -> None:
        """Note the checkpoint that was just written or restored, for errors that name it; do nothing if it is None."""
        if checkpoint is not None:
            self.saved = f"{checkpoint}, step {step}"
            self.outbox.tell(Saved(self.saved))

    def ask_whether_served(self) -> None:
        """Raise the feed's error, the job's end, or LostError if no coordinator answers; else do nothing.

        Raise ClosedError if the feed is closed, and the error of the coordinator's refusal. It attaches again without a
        cursor, so reading begins at the start afterwards; no reader may be reading.
        """
        self.outbox.raise_if_over()
        if self.ended is not None:
            raise self.ended
        self.receiver.attach(None)

    def interrupt(self, error: BaseException) -> None:
        """Stop the feed with this error, which is raised in all present and later readers; an earlier error stays."""
        self.outbox.interrupt(error)

    def nudge(self) -> None:
        """Wake waiting readers for a moment, so that pending signal handlers run; then they wait on."""
        self.outbox.nudge()

    # --- the end ---

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still referenced stay valid.

        Call `on_close` of `serve_framework` first, whose errors pass through. Wait for the receive thread to end, at
        most this long.
        """
        if self._on_close is not None:
            self._on_close(self)
        self.receiver.close(timeout_s)


class ElasticMember:
    """One process of an elastic run, whose worlds have from `least` to `most` trainers."""

    def __init__(self, least: int, most: int) -> None:
        self._limits = (least, most)
        self._member = secrets.randbits(63)
        self._joins = 0

    def join(self, settings: ReceiverSettings, metrics: MetricsSettings) -> FeedSession:
        """Wait for a place in a world, attach with it, and return the session; its `join_next` joins the next world.

        A world that is over before we are attached is skipped. Raise LostError if no world begins within the timeout or
        the coordinator is lost, and the error of a refusal, usually a RefusedError. Raise MachineError or SettingsError
        if no connection can be made, or metrics cannot be served; other errors of `wait_for_place` and `attach` pass.
        """
        while True:
            self._joins += 1
            placed = wait_for_place(settings, self._limits, self._member, self._joins)
            try:
                session = FeedSession(replace(settings, core=placed), metrics)
            except WorldChangedError:
                continue  # this world was over before we were attached
            session.join_next = partial(self.join, settings, metrics)
            return session
