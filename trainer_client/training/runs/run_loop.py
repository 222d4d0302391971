"""`Run`: for your own training loop, from the cursor to a target, over as many epochs as that takes.

Rules: a batch counts as trained on once the next is asked for, so `state()` inside the loop, after a step, is that of
the step before: call `done()` first to save what the step made. Leaving the loop early loses nothing and ends nothing.
A job that was ended ends the run as if it had been told to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import EndedError, SettingsError
from trainer_client.session.call_checks import fields_of_state
from trainer_client.training.runs.run_progress import RunProgress
from trainer_client.training.runs.until import NotedMeans, RunTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainer_client.batch import Batch
    from trainer_client.feed import Feed
    from trainer_client.session.feed_session import FeedSession
    from trainer_client.training.runs.until import Until

__all__ = ["JOB_ENDED", "LOOP", "STEPS_DONE", "Run", "progress_of"]

JOB_ENDED = "the job was ended"
#: Under this key, callbacks of our own loops find in their `params` how many steps are done since the model began.
STEPS_DONE = "steps done"
#: Under this key, callbacks of a `TrainingLoop` find the loop, to call its `broadcast_variables` for example.
LOOP = "loop"


class Run:
    """A loop of your own from the cursor to a target, over as many epochs as that takes.

    Iterating it gives batches, and counts each as trained on once the next is asked for. It prints when it starts and
    how it ended. Leaving the loop early loses nothing.

    Args:
        feed: The feed of a stream for training.
        until: Where the run ends.
        initial: What gives the model its first values, called as the loop begins unless `restore` was called before:
            `InitialValues` of a Keras model, or a function of yours.

    Raises:
        SettingsError: The feed is of a stream for evaluation.

    Example:
        >>> run = trainer_client.Run(feed, trainer_client.Until(steps=3))
        >>> for batch in run:
        ...     run.note(loss=0.5)
        STARTING: training train from epoch 0, step 0, until 3 steps
        FINISHED: 0 epochs, 3 steps, ...
        >>> run.reason
        '3 steps are reached'
    """

    def __init__(self, feed: Feed, until: Until, *, initial: Callable[[], object] | None = None) -> None:
        self._feed = feed
        #: None once it was called, or the run was restored.
        self._initial = initial
        self._session = feed._session
        if self._session.spec.evaluation:
            raise SettingsError(
                expected="a stream for training", got=f"{self._session.spec.stream}, which is for evaluation",
                where="Run",
                remedy="Read the feed itself: `for batch in feed:` gives the same epoch each time.",
            )  # fmt: skip
        self._progress = progress_of(until, self._session)
        #: The totals before the loop began, or when it was left.
        self._there = RunTotals()
        self._is_running = False
        #: The reason for which the loop was over, or left, last.
        self._past_reason = ""
        self._noted = NotedMeans()
        self._in_hand_rows = 0
        #: Batches of the step in hand, and the rows that were trained on before it.
        self._in_hand = 0
        self._rows = self._session.trained_rows

    @property
    def reason(self) -> str:
        """Why the run is over; empty while it goes on.

        Returns:
            A phrase for people.

        Example:
            >>> trainer_client.Run(feed, trainer_client.Until(steps=3)).reason
            ''
        """
        return self._progress.reason

    @property
    def totals(self) -> RunTotals:
        """What the run has done since the model began from nothing, restarts included.

        Returns:
            A record with `epochs`, `steps`, `samples` (those of this trainer) and `seconds`.

        Example:
            >>> trainer_client.Run(feed, trainer_client.Until(steps=3)).totals.steps
            0
        """
        return self._progress.totals if self._is_running else self._there

    def note(self, **values: float) -> None:
        """Note means over the rows of the batch in hand, each of them a number or what `float` takes.

        At the end of an epoch their means go to the coordinator, which shows them over all ranks. A batch without rows
        adds nothing. Errors of `float` pass through.

        Args:
            **values: The means by name, such as `loss=0.5`.

        Example:
            >>> run = trainer_client.Run(feed, trainer_client.Until(steps=1))
            >>> for batch in run:
            ...     run.note(loss=0.5, error=0.1)
            STARTING: ...
            FINISHED: ...
        """
        self._noted.add(values, self._in_hand_rows)

    def stop(self, why: str = "stopped") -> None:
        """End the run after the step in hand, unless it is over already; may be called from any thread.

        What was read ahead is left for the next run, or in queue mode for other trainers. A loop that has not begun
        ends before its first step. An empty reason ends nothing.

        Args:
            why: The reason, which the run prints and has as `reason`.

        Example:
            >>> run = trainer_client.Run(feed, trainer_client.Until(epochs=75))
            >>> for batch in run:
            ...     run.stop("enough for today")
            STARTING: ...
            FINISHED: 0 epochs, 1 steps, ... enough for today
        """
        self._progress.stop(why)

    def __iter__(self) -> Iterator[Batch]:
        if self._initial is not None:
            self._initial()
            self._initial = None
        there = self._there
        self._progress.begin(
            f"training {self._session.spec.stream}",
            RunTotals(epochs=self._feed.epoch, steps=there.steps, samples=there.samples, seconds=there.seconds),
            past=self._past_reason,
        )
        self._is_running = True
        try:
            while not self.reason:
                yield from self._epoch()
        finally:
            # However the loop is left: it may be begun again, and goes on from these totals.
            self._there, self._is_running, self._past_reason = self._progress.totals, False, self.reason
        self._progress.finish()
        self._session.end_run(self.reason, epoch=self._there.epochs, step=self._there.steps)

    def _epoch(self) -> Iterator[Batch]:
        """Yield the rest of the epoch, and count each batch once the next is asked for.

        If the feed has no epochs left, or its job is ended, stop the run. Other errors of the feed are passed on, and
        SettingsError for a noted mean out of the protocol's bounds.
        """
        session = self._session
        if session.most_epochs is not None and self._feed.epoch >= session.most_epochs:
            self.stop(f"all {session.most_epochs} epochs of the feed are over")
            return
        self._in_hand = 0
        with session.open() as batches:
            for batch in self._until_ended(batches):
                self._in_hand += 1
                self._in_hand_rows = batch.rows
                yield batch
                self.done()
                if self.reason:
                    return
        # With a reason to end, such as a job that was ended, the batches stopped before the epoch was over.
        if self.reason:
            return
        session.cursor.count_to_end(batches.start, batches.rounds)
        self._count(steps=0, samples=0)

    def _until_ended(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        try:
            yield from batches
        except EndedError:
            self.stop(JOB_ENDED)

    def _count(self, *, steps: int, samples: int) -> None:
        epochs, before = self._feed.epoch, self._progress.totals.epochs
        try:
            self._progress.count(epochs=epochs, steps=steps, samples=samples)
        except EndedError:  # ranks in step wait for each other there, to agree on the time
            self.stop(JOB_ENDED)
        if epochs > before:
            self._tell()

    def _tell(self) -> None:
        """Report the results of the epoch that has just ended, if any were noted.

        Raise SettingsError for a number that is out of the protocol's bounds. Errors of `share` pass through.
        """
        noted, self._noted = self._noted, NotedMeans()
        if noted.rows:
            totals = self.totals
            self._session.results.share(noted.means(), rows=noted.rows, epoch=totals.epochs, step=totals.steps)

    def done(self) -> None:
        """Count the batches in hand as trained on, if they are a whole step: one batch for each replica.

        Asking for the next batch does the same; call it before saving what the step made. With fewer batches in hand it
        does nothing. If the job is ended meanwhile, the run stops.

        Raises:
            LostError: No worker says how many batches the epoch has; or ranks in lockstep agree on the time here, and
                one of them or the coordinator is lost.
            SettingsError: The epoch is over, and a noted mean is out of the protocol's bounds.
            StokerError: The feed's own error, if it failed or was closed.

        Example:
            >>> run = trainer_client.Run(feed, trainer_client.Until(steps=1))
            >>> for batch in run:
            ...     run.done()
            ...     saved = run.state()
            STARTING: ...
            FINISHED: ...
            >>> saved["run"]["steps"]
            1
        """
        session = self._session
        # A trainer that holds several ranks has a batch for each in a step, which is not over before all are in hand.
        if self._in_hand < session.ranks.replicas:
            return
        self._in_hand = 0
        session.cursor.count(1)
        rows, self._rows = session.trained_rows - self._rows, session.trained_rows
        self._count(steps=1, samples=rows)

    # --- saving and restoring ---

    def state(self) -> dict[str, Any]:
        """Return the feed's cursor and the run's totals as plain values, for a checkpoint of your own.

        Returns:
            A dict that JSON can hold.

        Raises:
            LostError: In queue mode: the coordinator did not answer.
            StokerError: In queue mode: the feed's own error, if it failed or was closed.

        Example:
            >>> sorted(trainer_client.Run(feed, trainer_client.Until(steps=3)).state())
            ['feed', 'noted', 'run']
        """
        return {"feed": self._feed.state(), "run": self.totals.state(), "noted": self._noted.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to what `state` returned, before the loop begins.

        Args:
            state: What `state` returned, in this run or an earlier one.

        Raises:
            SettingsError: `state` is something else, such as one that was cut short, or of another job, stream or plan.
            RefusedError: Other ranks stand at another cursor.
            LostError: The coordinator did not answer.
            StokerError: The feed's own error, if it failed or was closed.

        Example:
            >>> run = trainer_client.Run(feed, trainer_client.Until(steps=3))
            >>> run.restore(run.state())
        """
        state = fields_of_state(state, ("feed", "run", "noted"), "Run.restore")
        # Before the feed goes there, so that a state that is refused leaves the run as it was.
        there, noted = RunTotals.of(state["run"]), NotedMeans.of(state["noted"])
        self._feed.restore(state["feed"])
        self._initial = None
        self._there, self._noted = there, noted


def progress_of(until: Until, session: FeedSession) -> RunProgress:
    """Return the progress of a run on this feed, which rank 0 alone prints.

    Ranks in lockstep agree on how long it has gone on, because clocks differ. SettingsError of `RunProgress` passes
    through.
    """

    def agree(spent_s: float, totals: RunTotals) -> float:
        return session.results.agree(spent_s, epoch=totals.epochs, step=totals.steps)

    agreed = agree if session.cursor.goes_in_step else None
    return RunProgress(until, prints=session.ranks.rank == 0, agree=agreed)
