"""Evaluation of one version of the model by all workers: the chief offers its last cut, and others take part in it.

Rules:
- An evaluation is of the chief's cut and of the chief's own variables in all workers; batches are leased, and the
  coordinator sums them, each once. Streams in lockstep are the chief's alone.
- A worker takes part between two of its training batches, and trains on when the evaluation is over; it pulls anew
  then, and has its own batch statistics back.
- Servers that have moved end no evaluation: a worker notices it with its next push or pull.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shared.logs import Log
from trainer_client.training.checkpoints.saved_model import assign_values, plain_value
from trainer_client.training.evaluating.evaluation_sums import Judged, digest_of_arrays
from trainer_client.training.runs.printed_lines import part_line
from trainer_client.training.servers.served_model import MovedError
from trainer_client.training.servers.share_store import frame_of, split_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer_client.feed import Feed
    from trainer_client.training.evaluating.evaluation_part import EvaluationPart
    from trainer_client.training.servers.served_model import ServedModel

__all__ = ["EvaluationFollower", "EvaluationLeader", "JointEvaluation"]

#: How often a worker asks for an evaluation between its batches.
_ASK_EVERY_S = 0.5
#: How long a worker that has nothing left to train on waits for the chief to evaluate the last epoch, and how often it
#: looks meanwhile. Before that the chief gathers results for five seconds at most.
_LAST_S, _LOOK_EVERY_S = 30.0, 0.1
_NONE_CAME = "evaluation of the last epoch did not come, so this worker ends without it"


class JointEvaluation:
    """A worker's part in evaluations; here none, as for a run without validation streams."""

    @contextmanager
    def offered(self, _served: ServedModel, _model: Any, _epochs: int, _step: int) -> Iterator[None]:
        """Offer the cut that was just read into the model while the block evaluates it; here not.

        `_epochs` and `_step` say how many are done.
        """
        yield

    def take_part(self, _served: ServedModel, _model: Any) -> bool:
        """Take part in an offered evaluation, here not; return whether the model's trained values changed: False."""
        return False

    def wait_for_last(self, _served: ServedModel, _model: Any, _epochs: int, _heed: Callable[[], None]) -> None:
        """Wait for the evaluation after the last epoch and take part; here return at once."""


class EvaluationLeader(JointEvaluation):
    """The chief's part, which evaluates on these feeds of validation streams after every so many epochs."""

    def __init__(self, feeds: Sequence[Feed], every: int) -> None:
        sessions = [feed._session for feed in feeds]
        #: Streams of which batches are leased, so that others may take some.
        self._streams = [session.spec.stream for session in sessions if session.cursor.names_evaluations]
        self._every = every

    @contextmanager
    def offered(self, served: ServedModel, model: Any, epochs: int, step: int) -> Iterator[None]:
        """Offer the cut that was just read into the model while the block evaluates it.

        It is not offered if it is not evaluated after so many epochs, if no stream's batches are leased, or if servers
        have moved. Raise LostError if the first server does not answer in time, RefusedError if it refuses, and
        ValueError if the model's name is longer than 200 characters or there are too many streams. If the block raises,
        the offer is not ended.
        """
        if not self._streams or epochs % self._every:
            yield
            return
        frame = frame_of([plain_value(variable) for variable in model.non_trainable_variables])
        with suppress(MovedError):
            served.offer_evaluation(epoch=epochs, step=step, label=model.name, streams=self._streams, frame=frame)
        yield
        with suppress(MovedError):
            served.end_evaluation()


class EvaluationFollower(JointEvaluation):
    """Another worker's part: `connect` returns the part on streams, and is called when these are first offered.

    `every` is after how many epochs the chief evaluates.
    """

    def __init__(self, connect: Callable[[Sequence[str]], EvaluationPart], every: int) -> None:
        self._connect = connect
        self._every = every
        self._part: EvaluationPart | None = None
        #: The cut of the last evaluation that was offered; 0: none was.
        self._known = 0
        self._asked_s = 0.0
        #: Whether the first server has answered that the run is over.
        self._is_over = False

    def take_part(self, served: ServedModel, model: Any) -> bool:
        """Take part in an evaluation that is offered; return whether the model's trained values may be others now.

        The first server is asked twice a second at most, and each evaluation is taken part in once. Raise LostError if
        a server or the coordinator does not answer in time, RefusedError if one refuses, ProtocolError if the offer is
        of another model, and EndedError if the job is ended meanwhile; errors of connecting, of metrics and of the
        model are passed on.
        """
        now_s = time.monotonic()
        if now_s - self._asked_s < _ASK_EVERY_S:
            return False
        self._asked_s = now_s
        try:
            offer, frame = served.ask_evaluation(self._known)
            self._is_over = bool(offer.over)
            if offer.cut in (0, self._known):
                return False
            self._known = offer.cut
            self._part = self._part or self._connect(offer.streams)
            if not served.pull_cut(offer.cut):
                return False
            self._evaluate(served, self._part, model, (offer, frame))
        except MovedError:
            pass
        return True

    def _evaluate(self, served: ServedModel, part: EvaluationPart, model: Any, offered: tuple[Any, Any]) -> None:
        """Evaluate the trained values that the model has with the chief's other variables; give it its own ones back.

        Print a line for each stream; do nothing if the evaluation is over by now. Errors of `take_part` are raised
        here, and MovedError if servers have moved.
        """
        offer, frame = offered
        untrained = model.non_trainable_variables
        own = [plain_value(variable) for variable in untrained]
        try:
            assign_values(untrained, split_frame(frame, [(value.shape, str(value.dtype)) for value in own]))
            # Asked again, as connecting and pulling took a while: in an evaluation that is over and that its chief has
            # left, this worker would be alone, and begin it anew.
            if served.ask_evaluation(self._known)[0].cut != offer.cut:
                return
            version = digest_of_arrays([plain_value(variable) for variable in model.variables])
            judged = Judged(label=offer.label, version=version, epoch=offer.epoch, step=offer.step)
            with served.tables.raising_failures():
                taken = part.take_part(judged)
            for stream, batches in taken.items():
                print(part_line(stream, offer.step, offer.epoch, batches), flush=True)
        finally:
            assign_values(untrained, own)

    def wait_for_last(self, served: ServedModel, model: Any, epochs: int, heed: Callable[[], None]) -> None:
        """Wait for the evaluation after the last epoch, `epochs` in all, and take part in it.

        Return at once if the epoch is not evaluated, and else once an evaluation is done, the run is over, servers have
        moved, or the chief has offered nothing for half a minute, which is logged. `heed` may raise, which ends the
        wait; errors of `take_part` are raised here.
        """
        until_s = time.monotonic() + _LAST_S
        while epochs % self._every == 0 and not self._is_over:
            heed()
            if self.take_part(served, model):
                return
            if time.monotonic() >= until_s and not self._is_over:
                Log("trainer").warning(_NONE_CAME, epoch=epochs, waited_s=_LAST_S)
                return
            threading.Event().wait(_LOOK_EVERY_S)
