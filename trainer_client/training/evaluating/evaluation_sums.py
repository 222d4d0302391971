"""Sums of metric states over all samples of an evaluation, though several processes may each evaluate some.

This process may evaluate alone; or ranks in lockstep have a share each; or trainers in queue mode lease batches.

Rules: states are what a batch alone adds to the metrics' variables, as float64. Sums are handed out once they are over
all batches, and only then. In queue mode an evaluation is known by its name, which is the same for all who evaluate one
model, at one step, by the same metrics; a name holds hashes of all three. It must not know TensorFlow: states are
anything that NumPy makes an array of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.hashing import digest64
from shared.wire.message_parts import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from trainer_client.session.feed_session import FeedSession

__all__ = ["EvaluationSums", "Judged", "LeasedSums", "OwnSums", "RankSums", "digest_of_arrays", "sums_of"]

#: The longest label of a name, which leaves room for a hash.
_LABEL = NAME.longest - 20


class OwnSums:
    """Sums of a process that evaluates all batches."""

    #: Whether others add to the sums, so that nothing but sums counts.
    is_shared = False
    #: What the evaluation is called where others may take part; empty where nobody can.
    name = ""
    #: How many batches were given up, so that the sums lack them.
    given_up = 0

    def __init__(self) -> None:
        self._sums: Any = None

    def begin(self, layout: str, nbytes: int) -> None:
        """Begin with no sums; `layout` describes the metrics, and a batch's states take `nbytes` bytes."""
        self._sums = None

    def add(self, states: Any) -> None:
        """Add the states of a batch, without waiting for a device to have computed them."""
        self._sums = states if self._sums is None else self._sums + states

    def whole(self) -> NDArray[np.float64]:
        """Return the sums of this process's batches; a single 0 if there was none."""
        return np.asarray(0.0 if self._sums is None else self._sums, np.float64)


class RankSums(OwnSums):
    """Sums over ranks in lockstep, which each evaluate their own batches and add them up at the end."""

    is_shared = True

    def __init__(self, session: FeedSession, *, epoch: int, step: int) -> None:
        super().__init__()
        self._session, self._epoch, self._step = session, epoch, step
        self._nbytes = 0

    def begin(self, layout: str, nbytes: int) -> None:
        """Begin with no sums, and note the size of states."""
        super().begin(layout, nbytes)
        self._nbytes = nbytes

    def whole(self) -> NDArray[np.float64]:
        """Return the sums over all ranks, after waiting for them.

        Raise SettingsError if ranks have states of different sizes, LostError if a rank or the coordinator is lost,
        EndedError if ranks part at the job's end, and the error of a feed that fails or is closed.
        """
        # A rank that had no batch has a single zero so far: all ranks have to send states of the same size.
        own = np.broadcast_to(super().whole(), (self._nbytes // 8,)).astype("<f8").tobytes()
        return np.frombuffer(self._session.results.sum_states(own, epoch=self._epoch, step=self._step), "<f8")


class LeasedSums:
    """Sums over trainers in queue mode: they evaluate what they lease, and the coordinator adds each batch once."""

    is_shared = True

    def __init__(self, session: FeedSession, *, label: str, version: str) -> None:
        self.name, self.given_up = "", 0
        self._session, self._leases = session, session.leases
        self._label, self._version = label, version

    def begin(self, layout: str, nbytes: int) -> None:
        """Name the evaluation by a hash of what its results depend on, and join it under that name, from its start.

        `layout` describes the metrics, and a batch's states take `nbytes` bytes. Batches that were taken and not
        settled are forgotten.
        """
        digest = digest64(f"{self._version} {layout}".encode())
        self.name = f"{self._label[:_LABEL]} {digest:016x}"
        self._leases.begin_evaluation(self.name, nbytes)

    def add(self, states: Any) -> None:
        """Note the states of the batch in hand, which is reported done with them; raise IndexError if there is none."""
        # In one report: a trainer that is killed between two would leave a batch that is done and not in the sum, or in
        # it twice once another has done it again.
        self._leases.note_states(np.asarray(states, "<f8").tobytes())

    def whole(self) -> NDArray[np.float64] | None:
        """Return the sums of all trainers, or None if batches are left; note how many batches were given up.

        Raise EndedError if some are left and the job was ended, as they will never be done, LostError if the
        coordinator does not answer, and the error of a feed that fails or is closed.
        """
        answer = self._leases.ask_sums()
        if answer is None:
            if self._session.ended is not None:
                raise self._session.ended
            return None
        sums, self.given_up = answer
        return np.frombuffer(sums, "<f8")


#: The sums of one evaluation: begun once, then added to with each batch, until the whole ones are there.
EvaluationSums = OwnSums | LeasedSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The model that an evaluation judges: its name for people, a hash of what results depend on, and when."""

    label: str
    version: str
    epoch: int
    step: int


def sums_of(session: FeedSession, judged: Judged) -> EvaluationSums:
    """Return the sums for this stream, by how trainers share it: leases, ranks in lockstep, or one process.

    Sums over leases are named, so that evaluations of another model, epoch, step or plan are apart.
    """
    if session.cursor.names_evaluations:
        # Whatever results depend on is in the name, so evaluations of another model, step or plan are apart.
        version = f"{judged.version} {judged.epoch} {judged.step} {session.spec.plan_digest}"
        return LeasedSums(session, label=judged.label, version=version)
    if session.cursor.goes_in_step:
        return RankSums(session, epoch=judged.epoch, step=judged.step)
    return OwnSums()


def digest_of_arrays(arrays: Iterable[Any]) -> str:
    """Return a hash of arrays' bytes, dtypes and shapes, in order, as 16 hexadecimal digits."""
    whole = [np.ascontiguousarray(array) for array in arrays]
    parts = [f"{array.dtype}{array.shape}{digest64(array.tobytes()):016x}" for array in whole]
    return f"{digest64(' '.join(parts).encode()):016x}"
