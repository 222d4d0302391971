"""A model whose trainable variables servers hold, in one trainer: it looks, pulls and pushes; the chief gives shares.

Rules: a trainer knows one generation; if a server has another, it has moved, and the trainer begins anew. Gradients go
to all other servers before the first is asked to apply them. It must not know feeds or files.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shared.errors import LostError, SettingsError
from shared.wire.message_parts import NAME, DoneSet, PartGradient, TableForm, VariablePart
from shared.wire.topics import server_messages as m
from trainer_client.training.checkpoints.saved_model import plain_value
from trainer_client.training.servers.row_shares import HeldVariable, refuse_too_little_memory, rows_of, shares_of
from trainer_client.training.servers.served_optimizer import OptimizerVariables, rows_between
from trainer_client.training.servers.served_tables import MovedError, ServedTables, refuse_unfit_tables
from trainer_client.training.servers.share_store import frame_of, split_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shared.wire.message_parts import Lease
    from trainer_client.training.checkpoints.saved_tables import SavedTables
    from trainer_client.training.servers.server_connections import Reply, ServerConnections

__all__ = ["MovedError", "ServedModel", "SharesSettings", "refuse_lockstep"]

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesSettings:
    """The chief's settings for the servers' shares."""

    staleness: int
    #: The run is over after this many batches; 0: no limit.
    most: int
    #: How many bytes a server may hold; None: no limit.
    memory: int | None


class ServedModel:
    """A built model and its optimizer, whose trained variables and state servers hold; the optimizer is built here.

    Raise SettingsError for a model or optimizer that servers cannot hold, such as an optimizer that is built.
    """

    def __init__(self, model: Any, optimizer: Any, servers: ServerConnections, settings: SharesSettings) -> None:
        #: The version of the values that were pulled, and the newest that was heard of. A pull asks for the latter at
        #: least: a server that is behind the first would lack gradients that this trainer knows to be applied.
        self.version = self._heard_version = 0
        #: The generation that was joined; 0: none.
        self.generation = 0
        #: Why the run is over; empty while it goes on.
        self.over = ""
        self._variables = list(model.trainable_variables)
        refuse_what_servers_cannot_hold(model, optimizer)
        refuse_unfit_tables(model, optimizer)
        #: The tables of which this trainer has the rows of its batch only.
        self.tables = ServedTables(model, servers)
        self._state = OptimizerVariables(optimizer, self._variables)
        self._servers = servers
        self._settings = settings
        #: Our name at the servers, a new one each time that we join.
        self._trainer = secrets.randbits(63)
        #: The parts that each server holds.
        self._shares: list[tuple[VariablePart, ...]] = []
        #: The number of the last cut that was read; 0: none was.
        self._cut = 0
        #: The batch whose gradients the first server refused last: the others are still to drop them.
        self._refused: Lease | None = None

    @property
    def heard_version(self) -> int:
        """How many batches are applied, by the newest version that was heard of."""
        return max(self.version, self._heard_version)

    # --- joining ---

    def look(self, heed: Callable[[], None] | None = None) -> bool:
        """Join the servers if all serve one generation; return whether they do, and note why the run is over, if it is.

        Raise SettingsError if they hold another model, LostError if a server does not answer in time, and RefusedError
        if one refuses. `heed` is called while waiting, and may raise to end that.
        """
        # Under a new name, as messages under the old one may still be on their way and must not count.
        if self.generation:
            self.quit()
            self._trainer = secrets.randbits(63)
        self.generation, self._refused = 0, None
        self.tables.join(self._trainer, 0)
        answers = [answer for answer, _ in self._servers.ask_all(m.Look(serial=0, trainer=self._trainer), heed)]
        self.over = answers[0].over
        generations = {answer.generation for answer in answers}
        # 0 is a server without a share: it was started again, or the chief has not given it one.
        if len(generations) > 1 or 0 in generations:
            return False
        self.version = self._heard_version = answers[0].version
        self.generation, self._shares = answers[0].generation, [answer.parts for answer in answers]
        self._refuse_another_model([answer.tables for answer in answers])
        self.tables.join(self._trainer, self.generation)
        self.tables.note_version(self.heard_version)
        return True

    def wait_for_shares(self, patience_s: float, heed: Callable[[], None] | None = None) -> None:
        """Join the servers as soon as the chief has given all of them their shares.

        Raise LostError if that takes longer than `patience_s`, or a server does not answer in time, RefusedError if one
        refuses, and SettingsError if they hold another model; `heed` may raise as well, and ends the wait.
        """
        until_s = time.monotonic() + patience_s
        while not self.look(heed):
            if time.monotonic() > until_s:
                raise LostError(
                    expected=f"parameter servers with a model within {patience_s:g} s", got="some without",
                    where=", ".join(self._servers.endpoints), remedy="Start the chief, which gives them their shares.",
                )  # fmt: skip
            threading.Event().wait(_LOOK_EVERY_S)

    def _refuse_another_model(self, tables: Sequence[tuple[TableForm, ...]]) -> None:
        for forms in tables:
            if forms != self.tables.forms:
                raise _another_model(f"tables {list(forms)}")
        rows = [0] * len(self._variables)
        for part in (part for share in self._shares for part in share):
            if part.variable >= len(rows) or part.shape[1:] != tuple(self._variables[part.variable].shape)[1:]:
                raise _another_model(f"a part of variable {part.variable} with shape {list(part.shape)}")
            rows[part.variable] += rows_of(part.shape)
        if rows != [rows_of(variable.shape) for variable in self._variables]:
            raise _another_model(f"variables of {rows} rows")

    # --- the chief ---

    def withdraw(self) -> None:
        """Have the servers serve nothing until they are given shares, so that nobody trains meanwhile.

        Raise LostError if a server does not answer in time, and RefusedError if one refuses.
        """
        self._servers.ask_all(m.Withdraw(serial=0))

    def set_rate(self, rate: float) -> None:
        """Set the learning rate for all that anybody pushes from now on; raise MovedError if servers moved.

        Raise LostError if the first server does not answer in time, and RefusedError if it refuses.
        """
        # To the first server alone, whose orders bring the rate to the others together with the batches.
        self._ask_first(m.SetRate(serial=0, trainer=self._trainer, generation=self.generation, rate=rate))

    def _ask_first(self, message: Any, frame: bytes = b"") -> m.Taken:
        """Return the first server's answer; raise MovedError if it has another generation, or none.

        Raise LostError if it does not answer in time, and RefusedError if it refuses.
        """
        answer, _ = self._servers.ask({0: (message, frame)})[0]
        if answer.code == "moved":
            raise MovedError
        return cast("m.Taken", answer)

    def serve(self, done: DoneSet, version: int, saved: SavedTables | None = None) -> None:
        """Give every server its share of the model as it is; `done` is the batches that are applied to it.

        Rows of tables are those of a checkpoint, if there is one. If a server is restarted or serves another share
        meanwhile, not all serve this one in the end, which the next look shows. Raise SettingsError if a share does not
        fit into a server's memory, and what `ask` raises: LostError, RefusedError or ValueError.
        """
        held = [
            HeldVariable(
                shape=tuple(variable.shape),
                dtype=str(variable.dtype),
                item_bytes=np.dtype(str(variable.dtype)).itemsize,
                can_be_cut=self._state.can_be_cut(at, tuple(variable.shape)),
            )
            for at, variable in enumerate(self._variables)
        ]
        shares = shares_of(held, len(self._servers))
        if self._settings.memory is not None:
            refuse_too_little_memory(held, shares, self._state.copies(), self._settings.memory)
        generation = secrets.randbits(63)
        given = self.tables.give(saved, generation)
        if given is None:
            return
        questions = {at: self._share(share, given[at], generation, done, version) for at, share in enumerate(shares)}
        # The first server last: it decides for all, so it must not serve before the others hold their shares.
        others = {at: question for at, question in questions.items() if at}
        replies = self._servers.ask(others)
        if len(replies) == len(others) and all(answer.code == "serving" for answer, _ in replies.values()):
            self._servers.ask({0: questions[0]})

    def _share(
        self, parts: tuple[VariablePart, ...], given: list[int], generation: int, done: DoneSet, version: int
    ) -> tuple[Any, bytes]:
        """Return the message and the frame that give a server these parts of the model.

        The frame has the parts' values, the optimizer's variables of no part, then those of each part.
        """
        arrays = [plain_value(variable) for variable in self._variables]
        slots = {
            part.variable: [plain_value(variable) for variable in self._state.of_each[part.variable]] for part in parts
        }
        frame = frame_of(
            [
                *(_cut(arrays[part.variable], part) for part in parts),
                *(plain_value(variable) for variable in self._state.common),
                *(_cut(slot, part) for part in parts for slot in slots[part.variable]),
            ]
        )
        settings = self._settings
        return m.ServeShare(
            serial=0, generation=generation, version=version, staleness=settings.staleness, most=settings.most,
            parts=parts, tables=self.tables.forms, given=tuple(given), done=done, nbytes=len(frame),
        ), frame  # fmt: skip

    def save(self, settled: int) -> DoneSet:
        """Read one cut of the servers' variables into model and optimizer; return the batches applied to it.

        Tables' rows outside training are that cut's from now on. Epochs before `settled` are settled, so servers may
        forget them. Raise MovedError if servers have moved, LostError if a server does not answer in time, and
        RefusedError if one refuses. ProtocolError of `_take_in` passes through.
        """
        cut = secrets.randbits(63)
        replies = self._ask_values(m.Save(serial=0, generation=self.generation, cut=cut, settled=settled))
        self._take_in(replies, has_slots=True)
        self._cut = cut
        self.tables.note_cut(cut)
        self.version = replies[0][0].version
        return cast("DoneSet", replies[0][0].done)

    def _take_in(self, replies: Sequence[Reply], *, has_slots: bool = False) -> None:
        """Assign the servers' values to the model's variables, and the optimizer's variables of no part.

        With `has_slots`, those of each part follow and are assigned as well. ProtocolError of `_assign` passes through.
        """
        common = [(None, variable) for variable in self._state.common]
        # Variables of no part come from every server. Those of the first count, which decides: they are assigned last.
        for (_, frame), parts in reversed(list(zip(replies, self._shares, strict=True))):
            values = [(part, self._variables[part.variable]) for part in parts]
            slots = [(part, variable) for part in parts for variable in self._state.of_each[part.variable]]
            _assign([*values, *common, *(slots if has_slots else ())], frame)

    def finish(self, why: str) -> None:
        """End the run for everybody; raise MovedError if it goes on with another chief.

        All servers get the message, and the first passes it on as well, unless it dies before. Raise LostError if the
        first does not answer in time, and RefusedError if it refuses. Of `why`, what a message has no room for is cut.
        """
        finish = m.Finish(serial=0, generation=self.generation, why=why[: NAME.longest])
        # To all: if the first died now, nobody would be left to tell the others, which would wait for ever.
        self._servers.tell_all(finish)
        self._ask_first(finish)

    # --- evaluations ---

    def offer_evaluation(self, *, epoch: int, step: int, label: str, streams: Sequence[str], frame: bytes) -> None:
        """Offer others to evaluate the last cut with this worker; `frame` has the variables that servers do not hold.

        Raise MovedError if servers have moved, LostError if the first does not answer in time, RefusedError if it
        refuses, and ValueError if the label is longer than 200 characters or there are too many streams.
        """
        self._offer(self._cut, epoch=epoch, step=step, label=label, streams=tuple(streams), frame=frame)

    def end_evaluation(self) -> None:
        """Offer no evaluation any more; errors are those of `offer_evaluation`."""
        self._offer(0, epoch=0, step=0, label="", streams=(), frame=b"")

    def _offer(self, cut: int, *, frame: bytes, **what: Any) -> None:
        offer = m.OfferEvaluation(
            serial=0, trainer=self._trainer, generation=self.generation, cut=cut, nbytes=len(frame), **what
        )
        self._ask_first(offer, frame)

    def ask_evaluation(self, known: int) -> tuple[m.OfferedEvaluation, memoryview]:
        """Return the evaluation that is offered, whose cut is 0 if there is none, and the frame that came with it.

        The frame is empty if its cut is the `known` one. Raise MovedError if servers have moved, LostError if the first
        does not answer in time, and RefusedError if it refuses.
        """
        question = m.AskEvaluation(serial=0, trainer=self._trainer, generation=self.generation, known=known)
        answer, frame = self._servers.ask({0: (question, b"")})[0]
        if isinstance(answer, m.Taken):
            raise MovedError
        return answer, frame

    def pull_cut(self, cut: int) -> bool:
        """Take the values of a cut into the model; return False, and leave the model as it was, if it was replaced.

        Raise MovedError if servers have another generation, or none, LostError if a server does not answer in time, and
        RefusedError if one refuses. ProtocolError of `_take_in` passes through.
        """
        question = m.PullCut(serial=0, trainer=self._trainer, generation=self.generation, cut=cut)
        replies = self._servers.ask_all(question)
        codes = {answer.code for answer, _ in replies if isinstance(answer, m.Taken)}
        if "moved" in codes:
            raise MovedError
        if not codes:
            self._take_in(replies)
            self.tables.note_cut(cut)
        return not codes

    # --- steps ---

    def pull(self) -> None:
        """Take the servers' values, their learning rate and their count of steps.

        Raise MovedError if they have another generation, or none, LostError if a server does not answer in time, and
        RefusedError if one refuses. ProtocolError of `_take_in` passes through.
        """
        replies = self._ask_values(
            m.Pull(serial=0, trainer=self._trainer, generation=self.generation, at_least=self._heard_version)
        )
        self._take_in(replies)
        self.version = self._heard_version = replies[0][0].version
        self.tables.note_version(self.heard_version)

    def _ask_values(self, message: m.Pull | m.Save) -> Sequence[Reply]:
        """Return all servers' values; raise MovedError if some have none of this generation to give.

        Raise LostError if a server does not answer in time, and RefusedError if one refuses.
        """
        replies = self._servers.ask_all(message)
        if any(isinstance(answer, m.Taken) for answer, _ in replies):
            raise MovedError
        return replies

    def push(
        self,
        lease: Lease,
        gradients: dict[int, Any],
        rows: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] | None = None,
    ) -> bool:
        """Have a batch's gradients applied, those of variables and of rows by table; return whether it is in the model.

        It is not if the gradients were too old, or the run is over. A batch that was in it already counts. Raise
        MovedError if servers have moved, and what `ask` raises: LostError, RefusedError or ValueError.
        """
        refused, self._refused = self._refused, None
        pushed = {at: self._push(at, lease, gradients, rows or {}, refused) for at in range(len(self._servers))}
        # The first server last: once it has decided, the others can apply the gradients even if this worker is gone.
        held = self._servers.ask({at: question for at, question in pushed.items() if at})
        if any(answer.code != "held" for answer, _ in held.values()):
            raise MovedError
        answer = self._ask_first(*pushed[0])
        # The first server does not pass refusals on, so the others are to drop the gradients by the next push.
        if answer.code != "applied":
            self._refused = lease
        self.over, self._heard_version = answer.why, answer.version
        self.tables.note_version(self.heard_version)
        # `repeated` is as good: the batch is in the model already, and its last worker died before it could report it.
        return answer.code in ("applied", "repeated")

    def _push(
        self, at: int, lease: Lease, gradients: dict[int, Any], rows: Mapping[str, Any], refused: Lease | None
    ) -> tuple[Any, bytes]:
        """Return the message and the frame with a server's part of the gradients.

        A variable without a gradient has no part in them. Without any gradients the message is no step. `refused` is
        the batch whose gradients the server is to drop.
        """
        parts, arrays = [], list[Any]()
        for place, part in enumerate(self._shares[at]):
            gradient = gradients.get(part.variable)
            if isinstance(gradient, tuple):
                own = rows_between(gradient, part.start, part.start + part.shape[0])
                parts.append(PartGradient(place, len(own[0])))
                arrays += own
            elif gradient is not None:
                parts.append(PartGradient(place, None))
                arrays.append(_cut(gradient, part))
        tables, of_rows = self.tables.gradients_for(at, rows)
        frame = frame_of([*arrays, *of_rows])
        return m.Push(
            serial=0, trainer=self._trainer, generation=self.generation, lease=lease, based_on=self.version,
            refused=refused, is_step=bool(gradients or rows), parts=tuple(parts), tables=tables, nbytes=len(frame),
        ), frame  # fmt: skip

    def quit(self) -> None:
        """Tell the servers that this trainer leaves and pushes nothing more; no answer is waited for."""
        self._servers.tell_all(m.Quit(trainer=self._trainer))


def _cut(array: Any, part: VariablePart) -> Any:
    """Return a part's rows of an array with the variable's shape; any other array is returned whole."""
    return array[part.start : part.start + part.shape[0]] if part.shape and array.shape[1:] == part.shape[1:] else array


def _assign(places: Sequence[tuple[VariablePart | None, Any]], frame: memoryview) -> None:
    kinds = []
    for part, variable in places:
        shape = tuple(variable.shape)
        is_cut = part is not None and part.shape[1:] == shape[1:] and len(part.shape) == len(shape)
        kinds.append((part.shape if part is not None and is_cut else shape, str(variable.dtype)))
    for (part, variable), array in zip(places, split_frame(frame, kinds), strict=True):
        if array.shape == tuple(variable.shape):
            variable.assign(array)
        else:
            assert part is not None
            variable.value[part.start : part.start + part.shape[0]].assign(array)


def refuse_what_servers_cannot_hold(model: Any, optimizer: Any) -> None:
    """Raise SettingsError for trained layers of equal paths, constraints, several optimizers, or a scaled loss."""
    seen: dict[str, int] = {}
    for layer in model._flatten_layers(include_self=False):  # noqa: SLF001 - `layers` has the outer ones only
        inner = {id(variable) for below in layer._flatten_layers(include_self=False) for variable in below.variables}  # noqa: SLF001
        for variable in (variable for variable in layer.trainable_variables if id(variable) not in inner):
            name = variable.path.rpartition("/")[0]
            if seen.setdefault(name, id(layer)) != id(layer):
                raise _cannot_hold(
                    "layers and tables of different names", f'two that are called "{name}"', "Rename one."
                )
    has_constraints = any(getattr(variable, "constraint", None) is not None for variable in model.trainable_variables)
    for is_there, expected, got, remedy in (
        (
            has_constraints, "variables without constraints", "some with",
            "Leave constraints out: servers would not apply them.",
        ),
        (
            hasattr(optimizer, "optimizers"), "one optimizer for all variables", f"a {type(optimizer).__name__}",
            "Take one of them.",
        ),
        (
            hasattr(optimizer, "inner_optimizer"), "a loss that is not scaled", "mixed_float16",
            "Take --precision mixed_bfloat16, or float32.",
        ),
    ):  # fmt: skip
        if is_there:
            raise _cannot_hold(expected, got, remedy)


def _cannot_hold(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="--strategy parameter-server", remedy=remedy)


def _another_model(got: str) -> SettingsError:
    return SettingsError(
        expected="the model that the chief gave to the parameter servers", got=got, where="--model",
        remedy="Start all processes with the same --model and --param.",
    )  # fmt: skip


def refuse_lockstep(session: Any) -> None:
    """Raise SettingsError if the session's batches are not leased: workers of unequal speed share them."""
    session.cursor.refuse_lockstep(
        SettingsError(
            expected='mode = "queue", as workers of unequal speed share batches',
            got=f"{session.spec.stream}, in lockstep", where="--strategy parameter-server",
            remedy='Write mode = "queue" in the table of this stream in the job file.',
        )
    )  # fmt: skip
