"""The tables of a model whose rows servers hold, in one trainer: rows of a batch, and whole tables piece by piece.

Rules: nothing here grows with a table. A row belongs to the server that the hash of its id names. Rows are asked for
while a step computes, in TensorFlow's own threads: an error cannot pass through its graph, so it is kept, and raised
where the step is taken. In training, rows are as the servers have them; otherwise they are those of the last cut, which
the model's variables are of as well. It must not know files.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shared.errors import DataError, SettingsError
from shared.wire.message_parts import TableForm, TableGradient
from shared.wire.topics import server_messages as m
from trainer_client.layers.initial_rows import initial_rows, servers_of
from trainer_client.layers.served_embedding import tables_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from trainer_client.training.checkpoints.saved_tables import SavedTables
    from trainer_client.training.servers.server_connections import ServerConnections

__all__ = ["MovedError", "ServedTables", "refuse_unfit_tables"]

#: Optimizers whose update of a number depends on its own gradient and state alone, so that rows can be updated apart.
_BY_NUMBER = ("SGD", "Adagrad", "Adam", "Adamax", "Adadelta", "RMSprop", "Ftrl", "Lion")
#: How many rows of a checkpoint are read at once, in bytes.
_PIECE_BYTES = 2**22


class MovedError(Exception):
    """An error: the servers have another generation, or none."""


class ServedTables:
    """The served tables of a model, which get their rows here from now on."""

    def __init__(self, model: Any, servers: ServerConnections) -> None:
        self._layers = tables_in(model)
        #: The tables, by place.
        self.forms = tuple(layer.form for layer in self._layers)
        self._places = {form.name: place for place, form in enumerate(self.forms)}
        self._servers = servers
        #: Our name at the servers, the generation that was joined (0: none), and the newest version that we know of.
        self._trainer = self._generation = self._at_least = 0
        #: The cut that the model's variables are of; 0: none.
        self._cut = 0
        #: The error of a lookup of the step in hand.
        self._failure: Exception | None = None
        #: Several tables of one step may be looked up at once, each in a thread of TensorFlow's. The thread that takes
        #: the step waits for all of them, so with this lock one thread at a time uses the sockets.
        self._lock = threading.Lock()
        for layer in self._layers:
            layer.source = self

    def refuse_xla(self, *, is_on: bool) -> None:
        """Raise SettingsError if XLA is on and there are tables: its code could not ask for their rows."""
        if is_on and self.forms:
            raise SettingsError(
                expected="a model without ServedEmbedding", got=f"table {self.forms[0].name}", where="--xla",
                remedy="Leave it out: XLA cannot compile steps that ask servers for rows.",
            )  # fmt: skip

    def join(self, trainer: int, generation: int) -> None:
        """Ask as this trainer, from servers of this generation; 0: rows are as they are made, and nobody is asked."""
        self._trainer, self._generation, self._cut = trainer, generation, 0

    def note_version(self, version: int) -> None:
        """Have rows that are looked up from now on contain at least this many batches."""
        self._at_least = version

    def note_cut(self, cut: int) -> None:
        """Have rows outside training be those of this cut; 0: those that servers have by then."""
        self._cut = cut

    # --- rows of a batch ---

    def rows(self, form: TableForm, ids: NDArray[np.int64], *, training: bool) -> NDArray[np.float32]:
        """Return the row of each id; if that fails, rows as they are made, and the error is kept for `raise_failure`.

        Outside training the error is raised as well.
        """
        try:
            with self._lock:
                _refuse_outside(form, ids)
                return self._rows(self._places[form.name], ids, training=training)
        except Exception as error:  # TensorFlow would make another error of it, without its type
            self._failure = self._failure or error
            if not training:
                raise
            return initial_rows(form, ids)

    def raise_failure(self) -> None:
        """Raise the first error of a lookup since the last call, if there was one.

        As a rule it is MovedError, LostError, RefusedError, or DataError for an id that the table does not have.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @contextmanager
    def raising_failures(self) -> Iterator[None]:
        """Raise the error of a lookup in the block, in place of the one that TensorFlow makes of it; others pass."""
        try:
            yield
        except tf.errors.OpError:
            self.raise_failure()
            raise

    def _rows(self, table: int, ids: NDArray[np.int64], *, training: bool) -> NDArray[np.float32]:
        form = self.forms[table]
        # Before the servers are joined, steps are only tried.
        if self._generation == 0:
            return initial_rows(form, ids)
        rows = np.empty((len(ids), form.dim), np.float32)
        for start in range(0, len(ids), m.MOST_IDS):
            piece = ids[start : start + m.MOST_IDS]
            servers = servers_of(piece, len(self._servers))
            places = {at: np.flatnonzero(servers == at) for at in np.unique(servers).tolist()}
            replies = self._servers.ask(
                {at: (self._pull_of(table, piece[there], training=training), b"") for at, there in places.items()}
            )
            if len(replies) < len(places) or any(isinstance(answer, m.Taken) for answer, _ in replies.values()):
                raise MovedError
            for at, there in places.items():
                rows[start + there] = np.frombuffer(replies[at][1], np.float32).reshape(len(there), form.dim)
        return rows

    def _pull_of(self, table: int, ids: NDArray[np.int64], *, training: bool) -> m.PullRows:
        return m.PullRows(
            serial=0, trainer=self._trainer, generation=self._generation, at_least=self._at_least, table=table,
            cut=0 if training else self._cut, ids=ids.tobytes(),
        )  # fmt: skip

    def gradients_for(
        self, server: int, gradients: Mapping[str, tuple[NDArray[np.int64], NDArray[np.generic]]]
    ) -> tuple[tuple[TableGradient, ...], list[NDArray[Any]]]:
        """Return a push's entries for tables with rows on a server, by place, and ids and values of each in turn."""
        named, arrays = list[TableGradient](), list[Any]()
        for name, (ids, values) in sorted(gradients.items(), key=lambda gradient: self._places[gradient[0]]):
            is_there = servers_of(ids, len(self._servers)) == server
            if is_there.any():
                named.append(TableGradient(self._places[name], int(np.count_nonzero(is_there))))
                arrays += [ids[is_there], values[is_there]]
        return tuple(named), arrays

    # --- whole tables, in the chief ---

    def give(self, saved: SavedTables | None, generation: int) -> list[list[int]] | None:
        """Give every server its rows of a checkpoint, for a share to come; return how many of each table it has.

        Return None if a server serves a share meanwhile. Raise LostError if a server does not answer in time, and
        RefusedError if one refuses.
        """
        given = [[0] * len(self.forms) for _ in range(len(self._servers))]
        for table, form in enumerate(self.forms):
            for arrays in saved.pieces(form.name, _PIECE_BYTES) if saved is not None else ():
                servers = servers_of(arrays[0], len(self._servers))
                questions = {}
                for at in np.unique(servers).tolist():
                    own = [np.ascontiguousarray(array[servers == at]) for array in arrays]
                    frame = b"".join(array.tobytes() for array in own)
                    questions[at] = m.GiveRows(
                        serial=0, generation=generation, table=table, form=form, rows=len(own[0]), nbytes=len(frame)
                    ), frame  # fmt: skip
                    given[at][table] += len(own[0])
                replies = self._servers.ask(questions)
                if len(replies) < len(questions) or any(answer.code != "given" for answer, _ in replies.values()):
                    return None
        return given

    def hold(self, saved: SavedTables | None) -> None:
        """Have the model's layers hold a checkpoint's tables whole, which needs memory; it must have all of them."""
        for layer in self._layers:
            assert saved is not None
            layer.hold(*saved.whole(layer.form.name))

    def saved_arrays(self) -> Iterator[tuple[str, str, tuple[int, ...], Iterator[memoryview]]]:
        """Yield each array of the last cut: its name in a checkpoint, dtype, shape, and the pieces that it is made of.

        The pieces have to be taken before the next array. Raise MovedError if servers have moved, LostError if a server
        does not answer in time, and RefusedError if one refuses; pieces raise the same.
        """
        for table, form in enumerate(self.forms):
            for server in range(len(self._servers)):
                answer, _ = self._piece(server, table, 0, 0)
                for array in range(answer.arrays):
                    shape = (answer.rows, form.dim) if array else (answer.rows,)
                    dtype = "float32" if array else "int64"
                    yield f"tables/{table}/{server}/{array}", dtype, shape, self._pieces(server, table, array, shape)

    def _pieces(self, server: int, table: int, array: int, shape: tuple[int, ...]) -> Iterator[memoryview]:
        at, row_bytes = 0, 4 * shape[1] if len(shape) == 2 else 8
        while at < shape[0]:
            _, frame = self._piece(server, table, array, at)
            at += frame.nbytes // row_bytes
            yield frame

    def _piece(self, server: int, table: int, array: int, start: int) -> tuple[m.TableRows, memoryview]:
        question = m.SaveRows(
            serial=0, generation=self._generation, cut=self._cut, table=table, array=array, start=start
        )  # fmt: skip
        answer, frame = self._servers.ask({server: (question, b"")})[server]
        if not isinstance(answer, m.TableRows):
            raise MovedError
        return answer, frame


def _refuse_outside(form: TableForm, ids: NDArray[np.int64]) -> None:
    """Raise DataError for an id that a table of so many rows does not have."""
    if form.rows is None or not len(ids) or (ids.min() >= 0 and ids.max() < form.rows):
        return
    outside = ids[(ids < 0) | (ids >= form.rows)]
    raise DataError(
        expected=f"ids from 0 to {form.rows - 1}", got=f"{outside[0]}", where=f"table {form.name}",
        remedy="Give the table more rows, or none, so that any integer is an id.",
    )  # fmt: skip


def refuse_unfit_tables(model: Any, optimizer: Any) -> None:
    """Raise SettingsError for tables that share a name with another layer, or that this optimizer cannot train by rows.

    A layer without trained variables of its own may have a table's name. Do nothing for a model without tables.
    """
    tables = tables_in(model)
    if not tables:
        return
    # A layer that merely contains others has no variables of its own, and may be called as the table in it is.
    names = [
        layer.name
        for layer in model._flatten_layers(include_self=False)  # noqa: SLF001 - `layers` has the outer ones only
        if layer in tables or layer._trainable_variables  # noqa: SLF001 - `trainable_variables` has those of inner layers
    ]
    for table in tables:
        if names.count(table.name) > 1:
            raise _unfit("layers and tables of different names", f'two that are called "{table.name}"', "Rename one.")
    kind = type(optimizer).__name__.removesuffix("W")
    if kind not in _BY_NUMBER:
        raise _unfit(
            f"an optimizer that updates each number by itself ({', '.join(_BY_NUMBER)})", type(optimizer).__name__,
            "Take one of these, or keras.layers.Embedding.",
        )  # fmt: skip
    for setting, reason in (
        ("weight_decay", "it would change rows that no batch names"),
        ("global_clipnorm", "take clipnorm or clipvalue, which are each table's own"),
        ("use_ema", "averages would be those of all rows"),
        ("gradient_accumulation_steps", "batches count one by one"),
    ):
        value = getattr(optimizer, setting, None)
        if value:
            raise _unfit(f"an optimizer without {setting}, as the model has a ServedEmbedding", f"{setting} = {value}",
                f"Leave it out: {reason}.")  # fmt: skip


def _unfit(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="--strategy parameter-server", remedy=remedy)
