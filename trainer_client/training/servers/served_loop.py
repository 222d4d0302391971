"""The training loop of one worker whose variables parameter servers hold: lease, pull, compute, push.

Rules:
- A batch is done once its gradients are applied. If they are refused it is given back, which costs it no try.
- The chief commits the variables of all servers with the batches that are applied to them, of one cut. If servers lost
  theirs, it gives all of them the last checkpoint and takes the queue back to it; everybody else waits meanwhile.
- A chief that begins while servers serve goes on with what they have.
- A learning rate that the chief's callbacks set is on the servers before anything else is trained here. If servers go
  back to a checkpoint, so does the rate, and the epoch's callbacks are called again.
- Other workers take part in the chief's evaluations between their batches, and after the last one wait a while for it.
- A worker that joins servers goes where the queue is then: the chief may have taken it back since the worker attached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shared.errors import EndedError
from trainer_client.tf import ctrl_c
from trainer_client.training.loop.base_loop import BaseLoop
from trainer_client.training.loop.step import APPLIED
from trainer_client.training.loop.teller import Scope
from trainer_client.training.runs.run_loop import JOB_ENDED, STEPS_DONE
from trainer_client.training.runs.until import NotedMeans, RunTotals
from trainer_client.training.servers.applied import done_set_of, merged
from trainer_client.training.servers.joint_evaluation import JointEvaluation
from trainer_client.training.servers.served_model import MovedError, ServedModel, refuse_lockstep
from trainer_client.training.servers.served_optimizer import CollectedGradients, OptimizerSettings
from trainer_client.training.strategies.single import Single

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_client.training.loop.base_loop import TrainingData
    from trainer_client.training.runs.until import LoopSettings
    from trainer_client.training.servers.served_model import SharesSettings
    from trainer_client.training.servers.server_connections import ServerConnections

__all__ = ["ServedLoop", "ServedSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSettings:
    """Settings of a worker that shares servers with others."""

    #: Whether this worker gives servers their shares, commits checkpoints and ends the run.
    is_chief: bool
    #: Steps from one pull to the next.
    pull_every: int
    shares: SharesSettings
    #: How many workers there are.
    workers: int = 1
    #: How long to wait for the chief.
    patience_s: float = 600.0


class ServedLoop(BaseLoop):
    """A loop that trains a compiled model: `ServedLoop(model, data, servers, worker, settings).run()`.

    Raise SettingsError for a stream in lockstep, a model with a `train_step` of its own, or several `EarlyStop`s.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        model: Any,
        data: TrainingData,
        servers: ServerConnections,
        worker: ServedSettings,
        settings: LoopSettings,
        callbacks: Sequence[Any] = (),
        evaluations: JointEvaluation | None = None,
    ) -> None:
        refuse_lockstep(data.feed._session)
        self._leases = data.feed._session.leases
        super().__init__(model, data, Single(compiles_updates=False), settings, callbacks, writes=worker.is_chief)
        self._servers, self._worker = servers, worker
        self._evaluations = evaluations or JointEvaluation()
        if worker.workers > 1:
            self._teller.scope = Scope.SHARE
        #: Whether the servers, as far as we know, serve the generation that we joined.
        self._is_joined = False
        #: Steps since the last pull; None: pull before the next.
        self._since_pull: int | None = None
        #: The learning rate that callbacks set and that servers do not know yet.
        self._rate: float | None = None

    def run(self) -> str:
        """Train until the target is reached, or training ends early; return why it ended.

        Raise KeyboardInterrupt, after the chief has saved, if the process is interrupted; LostError if a server, the
        chief's shares or the loaders stay away; RefusedError if one of them refuses; DataError for gradients that are
        not finite, an id that a table lacks or a checkpoint that does not fit; SettingsError for a model, optimizer or
        callback that servers cannot follow; and MachineError or OSError if the chief cannot write. Other errors of
        callbacks, of servers, of evaluating and of the feed are passed on.
        """
        self._warm_up()
        try:
            with ctrl_c.deferred() as interruption:
                self._train(interruption)
            self._finish()
        finally:
            self._teller.close()
            self._served.quit()  # last of all: servers end then, and their answers have been read
        return self.reason

    def _train(self, interruption: ctrl_c.Interruption) -> None:
        """Train until there is a reason to end; raise KeyboardInterrupt, after the chief has saved, if interrupted.

        The job's end is such a reason. Errors of joining, steps, evaluating, callbacks and saving are passed on.
        """
        try:
            self._begin(interruption)
            while not (self.reason and self._end()):
                if not self._is_joined:
                    self._join(interruption)
                try:
                    self._train_epoch(interruption)
                except MovedError:  # while a callback evaluated: what it lacks is trained and judged again
                    self._is_joined = False
                _heed(interruption)
        except EndedError:  # the job has nothing more to train on, even if servers have moved
            self._progress.stop(JOB_ENDED)
            self._end()
        except KeyboardInterrupt as error:
            self._save()
            raise self._interrupted(error) from None

    def _end(self) -> bool:
        """Commit what all have trained and end the run, in the chief; return whether it is over.

        It is not if servers have moved: what they lost is to be trained again. For other workers it is. Raise LostError
        or RefusedError if a server or the coordinator does not answer in time or refuses, MachineError or OSError if
        nothing can be written, and the error of a feed that fails or is closed; other errors of `finish` pass.
        """
        if not self._worker.is_chief:
            return True
        self._is_joined = self._save()
        try:
            if self._is_joined:
                self._served.finish(self.reason)
        except MovedError:
            self._is_joined = False
        return self._is_joined

    # --- steps ---

    def _train_epoch(self, interruption: ctrl_c.Interruption) -> None:
        """Train to the epoch's end, or until the run is over, interrupted, or taken back elsewhere.

        Errors of the feed, of joining, steps, callbacks, evaluating and saving are passed on, MovedError among them.
        """
        epoch = self._session.cursor.at.epoch
        self._call(lambda: self._callbacks.on_epoch_begin(epoch))
        iterator, batch = iter(self._data.elements), 0
        while not (self.reason or interruption.is_asked):
            if not self._is_joined and self._join(interruption):
                return  # the queue is elsewhere, so what was read is no longer ours
            element = self._wait_next(iterator)
            if element is None:
                self._end_epoch(epoch)
                self._wait_for_last_evaluation(interruption)
                return
            self._call(partial(self._callbacks.on_train_batch_begin, batch))
            loss = self._train_on(element)
            if loss is not None:
                self._call(partial(self._callbacks.on_train_batch_end, batch, {"loss": loss}))
            batch += 1
            self._look_up()
            if self._evaluations.take_part(self._served, self._model):
                self._since_pull = None

    def _call(self, callbacks: Callable[[], None]) -> None:
        """Call callbacks, then send servers the learning rate if they changed it, in the chief.

        Raise SettingsError if they changed anything else of the optimizer, or set a rate that is not finite; LostError
        or RefusedError if the first server does not answer in time or refuses. Errors of the callbacks are passed on,
        MovedError if servers have moved while one evaluates. In other workers nothing is compared.
        """
        if not (self._worker.is_chief and self._callbacks.callbacks):
            callbacks()
            return
        # Servers have optimizers of their own, so this one is compared around each call: a rate is passed on before
        # anything else is trained here, and any other change would silently have no effect.
        settings = self._optimizer_settings
        rate, steps = settings.rate(), settings.steps()
        with self._served.tables.raising_failures():
            callbacks()
        settings.refuse_changes(steps)
        if settings.rate() != rate:
            self._rate = settings.rate()
            self._set_rate()

    def _set_rate(self) -> None:
        """Send servers the learning rate that was set last, if they do not know it; keep it if they have moved.

        Raise LostError if the first server does not answer in time, and RefusedError if it refuses.
        """
        if self._rate is None:
            return
        try:
            self._served.set_rate(self._rate)
            self._rate = None
        except MovedError:
            self._is_joined = False

    def _train_on(self, element: Any) -> float | None:
        """Take one step, and count it or give the batch back; return its loss, or None if none was computed.

        Raise DataError for gradients that are not finite after the last retry or an id that a table lacks, and
        SettingsError for a loss or model that the step cannot take. Errors of servers, such as LostError, RefusedError
        and ProtocolError, and of the feed are passed on.
        """
        with self._timed("step"):
            loss, rows, is_in = self._try(element)
            if is_in:
                assert loss is not None
                self._session.cursor.count(1)
                self._note_step(loss, rows)
            else:
                # Refused gradients were computed from values that are too old, so pull before the next batch.
                self._leases.give_back()
                self._since_pull = None
            self._progress.stop(self._served.over)
        return loss

    def _steps_done(self) -> int:
        """Return how many steps of all workers are applied, as checkpoints count them, and note it in `params`."""
        steps = max(self._progress.steps, self._served.heard_version)
        self._params[STEPS_DONE] = steps
        return steps

    def _try(self, element: Any) -> tuple[float | None, int, bool]:
        """Pull if it is due, compute and push; return loss, valid rows and whether the batch is in the model.

        It is not in if servers had moved, the gradients were too old or the run is over. The loss is None if servers
        had moved before anything was computed. Raise LostError if a server does not answer in time, and RefusedError if
        one refuses. Errors of `_finite_step`, such as DataError and SettingsError, and of lookups of tables' rows, and
        ProtocolError of `pull` pass.
        """
        loss, rows = None, 0
        lease = self._leases.in_hand()
        try:
            if self._since_pull is None or self._since_pull >= self._worker.pull_every:
                self._served.pull()
                self._since_pull = 0
            loss, rows, became = self._finite_step(element)
            self._since_pull += 1
            # A batch with nothing to apply is pushed without gradients, so that servers know it as done.
            is_applied = became == APPLIED
            gradients, of_tables = (self._kept.read(), self._kept.read_rows()) if is_applied else ({}, {})
            return loss, rows, self._served.push(lease, gradients, of_tables)
        except MovedError:
            self._is_joined = False
            return loss, rows, False

    def _outcome_of(self, element: Any) -> tuple[float, float, float]:
        """Take a step; return loss, valid rows and outcome. Errors pass, first that of a lookup of tables' rows."""
        try:
            return super()._outcome_of(element)
        finally:
            # First of all: of rows that could not be looked up, neither loss nor gradients mean anything.
            self._served.tables.raise_failure()

    def _end_epoch(self, epoch: int) -> None:
        """Share the epoch's results and call callbacks; the chief does so on the servers' values, and commits those.

        If servers have moved, the chief only shares, or raises MovedError while a callback evaluates. Raise
        SettingsError if the logs lack the value that early stopping goes by, if callbacks changed the optimizer, or for
        a number that is out of the protocol's bounds; errors of callbacks, of the feed, of servers and of writing are
        passed on.
        """
        noted, self._noted = self._noted, NotedMeans()
        self._progress.count(epochs=self._session.cursor.at.epoch)
        logs, rows, whose = self._results_of(epoch, noted)
        cut = self._cut()  # brings the servers' values into the model, so that callbacks evaluate these
        if self._worker.is_chief and cut is None:
            return  # servers have moved: the epoch is evaluated when it is over again
        with self._evaluations.offered(self._served, self._model, epoch + 1, self._params[STEPS_DONE]):
            self._call(partial(self._end_epoch_of_callbacks, epoch, logs))
        self._teller.tell_epoch(self._progress.totals, logs, whose)
        if self._early_stop is not None and JOB_ENDED not in self._params:
            self._early_stop.note(epoch, logs, is_trained=rows > 0)
        self._heed_callbacks()
        self._commit(cut)

    def _results_of(self, epoch: int, noted: NotedMeans) -> tuple[dict[str, Any], int, str]:
        """Report this worker's results of an epoch; return means, over how many rows, and a phrase on whose.

        The chief of several workers waits a while for the others and returns the means of all that have reported, empty
        without any rows. Otherwise they are this worker's own, and the phrase is empty. Raise SettingsError for a
        number that is out of the protocol's bounds, and, while waiting, the error of a feed that fails or is closed.
        """
        logs: dict[str, Any] = noted.means()
        if not self._worker.is_chief or self._worker.workers == 1:
            self._session.results.share(logs, rows=noted.rows, epoch=epoch + 1, step=0)
            return logs, noted.rows, ""
        gathered = self._session.results.gather(logs, rows=noted.rows, epoch=epoch + 1)
        return gathered.means if gathered.rows else {}, gathered.rows, gathered.words()

    def _wait_for_last_evaluation(self, interruption: ctrl_c.Interruption) -> None:
        """Take part in the evaluation of the last epoch, if this was it; errors of `wait_for_last` are passed on."""
        if self.reason:
            epochs = self._progress.totals.epochs
            self._evaluations.wait_for_last(self._served, self._model, epochs, partial(_heed, interruption))

    # --- beginning and ending ---

    def _begin(self, interruption: ctrl_c.Interruption) -> None:
        """Join the servers, to which the chief may have to give shares first, and begin the run from there.

        Raise LostError if servers or their shares stay away, DataError if the chief's checkpoint is damaged or does not
        fit, SettingsError if servers hold another model, MachineError or OSError if the chief cannot write, and
        KeyboardInterrupt if a worker is interrupted while it waits. Errors of callbacks and of the feed are passed on,
        and RefusedError or ProtocolError of a server.
        """
        self._saved.mark(finished=False)
        self._model.stop_training = False
        if self._worker.is_chief:
            there = self._begin_as_chief()
        else:
            self._follow_chief(interruption)
            there = RunTotals(steps=self._served.version)
        self._is_joined = True
        self._start(replace(there, epochs=self._session.cursor.at.epoch), self._served.over)
        self._call(self._callbacks.on_train_begin)

    def _follow_chief(self, interruption: ctrl_c.Interruption) -> bool:
        """Join servers once the chief has given them shares, and go where the queue is then.

        Return whether that is elsewhere. Raise LostError if that takes too long or the coordinator is silent,
        SettingsError if servers hold another model, RefusedError if a server refuses, and KeyboardInterrupt if the
        process is interrupted. Errors of the feed are passed on.
        """
        self._served.wait_for_shares(self._worker.patience_s, partial(_heed, interruption))
        self._is_joined = True
        # Only now: the chief takes the queue back before it gives shares, so it is where it stays.
        return self._leases.follow()

    def _begin_as_chief(self) -> RunTotals:
        totals = self._saved.read(self._model, self._early_stop)
        # Servers that outlived the last chief may be ahead of its checkpoint: what they have is not trained again.
        if totals is not None and self._can_go_on():
            self._log.info("goes on with what parameter servers have", version=self._served.version)
            return replace(totals, steps=self._served.version)
        return self._restore()

    def _can_go_on(self) -> bool:
        """Take the servers' values and learning rate; return False if there is nothing to go on with.

        That is so if not all serve one generation, the run is over there, or they move meanwhile. Raise SettingsError
        if they hold another model, LostError if a server does not answer in time, and RefusedError if one refuses.
        ProtocolError of `pull` passes through.
        """
        if not self._served.look() or self._served.over:
            return False
        try:
            self._served.pull()
        except MovedError:
            return False
        return True

    def _restore(self) -> RunTotals:
        """Take the queue back to the last checkpoint, and give that to all servers; return its totals.

        If there is none, the first one is written here. Raise DataError if all checkpoints are damaged or the newest
        does not fit the model, SettingsError if it is of another job, stream or plan or a share does not fit into a
        server's memory, LostError or RefusedError if a server or the coordinator does not answer in time or refuses,
        and MachineError or OSError if nothing can be written. Errors of the feed are passed on.
        """
        # Without a checkpoint, servers that lose their shares later would leave nothing to go back to.
        is_first = self._saved.read(self._model, None) is None
        # Servers stop first: nobody may train on values that the queue, once it is taken back, does not match.
        self._served.withdraw()
        totals, self._noted = self._saved.restore(self._model, self._session, self._early_stop)
        self._served.serve(done_set_of(self._session.cursor.state()), totals.steps, self._saved.tables)
        self._served.look()
        self._since_pull = self._rate = None
        if is_first:
            self._save()
        return totals

    def _join(self, interruption: ctrl_c.Interruption) -> bool:
        """Join servers that have moved; return whether the queue is elsewhere now.

        The chief takes all back to the last checkpoint if servers lost their shares. Raise LostError if that takes too
        long; errors of servers, of the feed, of restoring and of writing are passed on, and KeyboardInterrupt if the
        process is interrupted.
        """
        # Whatever was pulled is of another generation: gradients computed from it would be refused.
        self._since_pull = None
        is_elsewhere = self._join_as_chief(interruption) if self._worker.is_chief else self._follow_chief(interruption)
        self._progress.go_back(epochs=self._session.cursor.at.epoch, steps=self._served.version)
        self._progress.stop(self._served.over)
        self._heed_early_stop()
        return is_elsewhere

    def _join_as_chief(self, interruption: ctrl_c.Interruption) -> bool:
        self._is_joined = True
        if self._served.look(partial(_heed, interruption)):
            self._set_rate()
            return False
        self._log.warning("parameter servers lost their shares: all go back to the last checkpoint")
        self._restore()
        return True

    def _when_built(self) -> None:
        """Have the step collect its gradients, as the servers have the optimizer.

        Raise SettingsError for what servers cannot hold, such as an optimizer that is built, and for tables with XLA.
        """
        model = self._model
        self._served = ServedModel(model, model.optimizer, self._servers, self._worker.shares)
        self._served.tables.refuse_xla(is_on=self._settings.xla)
        # Between pulls the worker's own copy goes on by its own gradients; with a pull before each step none is left.
        self._kept = CollectedGradients(model.optimizer, model.trainable_variables, goes_on=self._worker.pull_every > 1)
        self._step.optimizer, self._step.takes_rows = self._kept, True
        self._optimizer_settings = OptimizerSettings(model)

    def _finish(self) -> None:
        self._callbacks.on_train_end()  # a rate set there would have no effect, so it is not looked for
        if self._worker.is_chief:
            self._session.end_run(self.reason, epoch=self._progress.totals.epochs, step=0)
        self._saved.mark(finished=True)
        self._progress.finish(is_share=self._worker.workers > 1)

    # --- saving ---

    def hold_tables(self) -> None:
        """Have the model hold the tables of the newest checkpoint whole, as an export needs them; once `run` is over.

        Raise DataError if no checkpoint is whole or the newest is of another model, and OSError if none can be read.
        """
        self._saved.read(self._model, None)
        self._served.tables.hold(self._saved.tables)

    def _is_save_due(self) -> bool:
        return self._is_joined and self._is_long_ago(self._served.version)

    def _save(self) -> bool:
        """Commit what all have trained; return whether it was: only in the chief, unless servers have moved.

        Raise LostError if a server or the coordinator does not answer in time, RefusedError if a server refuses,
        MachineError or OSError if nothing can be written, and the error of a feed that fails or is closed.
        """
        return self._commit(self._cut())

    def _cut(self) -> dict[str, Any] | None:
        """Read one version of all variables into the model; return the feed's state with the batches in it.

        Return None in other workers than the chief, or if servers have moved or were not joined. Raise LostError if a
        server or the coordinator does not answer in time, RefusedError if a server refuses, and the error of a feed
        that fails or is closed. ProtocolError of `save` passes.
        """
        if not self._worker.is_chief or self._served.generation == 0:
            return None
        with self._timed("checkpoint"):
            # In this order: what the coordinator knows to be settled by now is in the servers' cut, which comes later.
            state = self._session.cursor.state()
            try:
                done = self._served.save(int(state["epochs"][0][0]))
            except MovedError:
                self._is_joined = False
                return None
            self._since_pull = 0
            self._progress.count(epochs=self._progress.totals.epochs, steps=self._steps_done() - self._progress.steps)
            whole = merged(done_set_of(state), done)
            return state | {"epochs": [[epoch.epoch, epoch.fresh, list(epoch.missing)] for epoch in whole.epochs]}

    def _commit(self, cut: dict[str, Any] | None) -> bool:
        """Commit a cut, as long as nothing else was trained or pulled; return whether there was one.

        Return False too if servers have moved. Raise LostError or RefusedError if one does not answer in time or
        refuses while tables are read, and MachineError or OSError if the system refuses to write.
        """
        if cut is None:
            return False
        with self._timed("checkpoint"):
            epochs, steps = self._session.cursor.at.epoch, self._served.version
            totals = replace(self._progress.totals, epochs=epochs, steps=steps)
            tables = self._served.tables.saved_arrays()
            try:
                written = self._saved.commit(self._model, cut, totals, self._noted, self._early_stop, tables)
            except MovedError:  # while tables were read: nothing is written
                self._is_joined = False
                return False
        self._note_saved(written, steps)
        return True


def _heed(interruption: ctrl_c.Interruption) -> None:
    if interruption.is_asked:
        raise KeyboardInterrupt
