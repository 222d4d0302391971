"""The served tables of a checkpoint: where they lie in its file, and their rows, which are read as they are asked for.

Rules: a table may be larger than memory, so its arrays stay in the file, of which pages are read as they are needed; it
may be removed from its folder meanwhile. Each server's rows lie by rising id, whichever servers there are now. Rows
that no gradient has met are in no file: they are made. The file is checked as a whole before any of it is read.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shared.errors import DataError
from shared.wire.message_parts import TableForm
from trainer_client.layers.initial_rows import initial_rows
from trainer_client.layers.served_embedding import tables_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["SavedTables", "attach_saved_tables", "record_of_tables"]

#: How many bytes of an array are hashed at once.
_PIECE_BYTES = 2**22


def record_of_tables(model: Any) -> list[list[Any]]:
    """Return a description of a model's tables, in the order of their layers, for the record of a checkpoint."""
    return [list(astuple(layer.form)) for layer in tables_in(model)]


class SavedTables:
    """The tables of one checkpoint, out of its arrays and its record; without tables there are none."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> None:
        self.forms = [TableForm(*form) for form in record.get("tables", ())]
        #: For each table by name: what each server had, as ids, rows, and the optimizer's variables for them.
        self._parts: dict[str, list[list[NDArray[Any]]]] = {form.name: [] for form in self.forms}
        for table, form in enumerate(self.forms):
            server = 0
            while f"tables/{table}/{server}/0" in arrays:
                part: list[NDArray[Any]] = []
                while (name := f"tables/{table}/{server}/{len(part)}") in arrays:
                    part.append(arrays[name])
                self._parts[form.name].append(part)
                server += 1

    def refuse_another_model(self, model: Any) -> None:
        """Raise DataError if the model has other tables than the checkpoint; their order counts for nothing."""
        saved, own = (
            sorted(forms, key=lambda form: form.name) for forms in (self.forms, [t.form for t in tables_in(model)])
        )
        if saved != own:
            raise DataError(
                expected=f"tables as the model has them: {', '.join(map(_named, own)) or 'none'}",
                got=", ".join(map(_named, saved)) or "none", where="the checkpoint",
                remedy="Train the same model, with the same initializers and seeds, or use another folder.",
            )  # fmt: skip

    def rows(self, form: TableForm, ids: NDArray[np.int64], *, training: bool) -> NDArray[np.float32]:
        """Return the row that each id has in the checkpoint, or one that is made for an id that has none."""
        del training
        rows = initial_rows(form, ids)
        for saved_ids, saved_rows, *_ in self._parts[form.name]:
            places, is_there = find_sorted(saved_ids, ids)
            rows[is_there] = saved_rows[places[is_there]]
        return rows

    def pieces(self, name: str, nbytes: int) -> Iterator[list[NDArray[Any]]]:
        """Yield pieces of a table, each with about so many bytes of ids, rows and the optimizer's variables for them.

        Ids rise within a piece.
        """
        for part in self._parts[name]:
            row_bytes = sum(array.itemsize * array[:1].size for array in part)
            rows = max(1, nbytes // max(1, row_bytes))
            for start in range(0, len(part[0]), rows):
                yield [np.array(array[start : start + rows]) for array in part]

    def whole(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return all ids of a table, rising, and their rows, in memory."""
        ids = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in self._parts[name])])
        dim = next(form.dim for form in self.forms if form.name == name)
        rows = np.concatenate([np.zeros((0, dim), np.float32), *(part[1] for part in self._parts[name])])
        order = np.argsort(ids)
        return ids[order], rows[order]

    def digest(self) -> str:
        """Return a hash of all tables' forms, ids and rows, but not the optimizer's variables; empty without tables."""
        if not self.forms:
            return ""
        state = xxhash.xxh3_64()
        for form in self.forms:
            state.update(repr(form).encode())
            for part in self._parts[form.name]:
                for array in part[:2]:
                    rows = max(1, _PIECE_BYTES // max(1, array.itemsize * array[:1].size))
                    for start in range(0, len(array), rows):
                        state.update(np.ascontiguousarray(array[start : start + rows]).data)
        return state.hexdigest()


def attach_saved_tables(model: Any, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> SavedTables:
    """Have the model's served tables get their rows from a checkpoint, and return its tables.

    Raise DataError if it has other tables than the model.
    """
    saved = SavedTables(arrays, record)
    saved.refuse_another_model(model)
    for layer in tables_in(model):
        layer.source = saved
    return saved


def find_sorted(whole: NDArray[np.int64], ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where each id is in an array of rising ones, and whether it is there; places of others mean nothing.

    The array may lie in a file: a few of its pages are read for each id, and it is never copied.
    """
    # By halves, as `np.searchsorted` would first copy an array that a file holds unaligned.
    low, high = np.zeros(len(ids), np.int64), np.full(len(ids), len(whole), np.int64)
    while (is_open := low < high).any():
        middle = np.where(is_open, (low + high) // 2, 0)
        is_below = is_open & (whole[middle] < ids)
        low = np.where(is_below, middle + 1, low)
        high = np.where(is_open & ~is_below, middle, high)
    is_there = low < len(whole)
    is_there[is_there] = whole[low[is_there]] == ids[is_there]
    return low, is_there


def _named(form: TableForm) -> str:
    rows = "any id" if form.rows is None else f"{form.rows} rows"
    return f"{form.name} ({rows} of {form.dim}, {form.initializer} {form.first:g} {form.second:g}, seed {form.seed})"
